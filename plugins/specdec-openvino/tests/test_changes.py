"""A generator that lives on while its model changes writes what the model says now; in a forked process it refuses."""

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import Generator, RequestError


def fused_step(model: PreTrainedModel) -> None:
    _step(model, torch.optim.AdamW(model.parameters(), lr=0.5, fused=True))


def foreach_step(model: PreTrainedModel) -> None:
    _step(model, torch.optim.SGD(model.parameters(), lr=5.0, foreach=True))


def plain_step(model: PreTrainedModel) -> None:
    _step(model, torch.optim.AdamW(model.parameters(), lr=0.5, foreach=False, fused=False))


def write_by_data(model: PreTrainedModel) -> None:
    model.lm_head.weight.data.mul_(-1.0)


def scaling(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 40


def _step(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    ids = torch.tensor([[5, 9, 2, 7, 1]])
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "change",
    [
        foreach_step,
        plain_step,
        fused_step,
        write_by_data,
        scaling,
    ],
)
def test_a_change_is_noticed_by_the_next_call(families: ModuleType, change: Callable[[PreTrainedModel], None]) -> None:
    model: PreTrainedModel = families.make(*families.TREES["llama"])
    with Generator(model, backend="openvino", proposer="autoregressive", numerics="fast") as generator:
        generator.generate([5, 9, 2], max_new_tokens=4)
        change(model)
        ours = list(generator.generate([5, 9, 2], max_new_tokens=12, eos_token_id=()).token_ids)
    prompt = torch.tensor([[5, 9, 2]])
    theirs = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, eos_token_id=-1)
    assert ours == theirs[0, 3:].tolist()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_forked_process_is_refused_and_drops_the_generator(
    families: ModuleType, in_fork: Callable[[Callable[[], object]], None], is_closed: bool
) -> None:
    """To free a graph is to wait for its threads, which that process doesn't have."""
    owned: list[Any] = [families.make(*families.TREES["llama"])]
    owned.append(Generator(owned[0], backend="openvino", proposer="autoregressive", numerics="fast"))
    owned[1].generate([5, 9, 2], max_new_tokens=4)

    def drop() -> None:
        with pytest.raises(RequestError, match=r"use backend='hf' and torch.set_num_threads\(1\)"):
            owned[1].generate([5, 9, 2], max_new_tokens=4)
        if is_closed:
            owned[1].close()
        owned.clear()
        gc.collect()

    in_fork(drop)
    owned[1].generate([5, 9, 2], max_new_tokens=4)
    owned[1].close()
