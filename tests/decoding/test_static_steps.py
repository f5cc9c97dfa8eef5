"""A step of static passes on a device: the numbers in one copy, the choices in one, and one wait."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specdec import Generator, demo
from specdec.backends.fused.backend import FusedBackend
from specdec.backends.static import StaticBackend
from specdec.heads.graph_runner import GraphRunner
from specdec.heads.strategies import eagle3
from specdec.machine import cuda_graphs
from specdec.machine.cuda_graphs import Graphs
from specdec.sampling.randomness import Randomness
from tests.backends.fused.test_fused_backend import model_of
from tests.support import fused_kernels
from tests.support.pretend_device import NAME, PretendDevice, PretendTensor, pretend_device

REPEATING = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("llama")


@pytest.fixture
def device(model: Any) -> Iterator[PretendDevice]:
    with pretend_device() as device:
        yield device


def drawn(logits: Any, positions: Any, seeds: Any, temperatures: Any) -> torch.Tensor:
    """The kernel's draws, made on the host of what the device holds."""
    held = [each.held if isinstance(each, PretendTensor) else each for each in (logits, positions, seeds, temperatures)]
    scores, tokens = held[0].double() / held[3][:, None, None], torch.zeros(held[0].shape[:2], dtype=torch.int64)
    for row, column in torch.cartesian_prod(*map(torch.arange, tokens.shape)).tolist():
        noise = Randomness(int(held[2][row])).gumbel(int(held[1][row, column]) + 1, scores.shape[2])
        tokens[row, column] = (scores[row, column] + noise).argmax()
    return PretendTensor(tokens) if isinstance(logits, PretendTensor) else tokens


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused layers and draws on any device."""
    monkeypatch.setattr(FusedBackend, "_serves", lambda _: True)
    monkeypatch.setattr(FusedBackend, "_kernels", lambda _: fused_kernels)
    monkeypatch.setattr(StaticBackend, "_drawing", staticmethod(lambda _: drawn))


def steps(
    device: PretendDevice, generator: Generator, prompts: list[list[int]], **settings: Any
) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Uploads and waits of each step that reads no prompt and ends no text, and the texts."""
    counted, texts = list[tuple[int, int]](), dict[int, list[int]]()
    with generator.open_batch() as batch:
        for prompt in prompts:
            batch.add(prompt, max_new_tokens=NUM_TOKENS, eos_token_id=[], **settings)
        before = device.uploads, device.waits
        while record := batch.advance():
            after = device.uploads, device.waits
            if record.kind == "step" and not any(outcome.finish_reason for outcome in record.outcomes):
                counted.append((after[0] - before[0], after[1] - before[1]))
            before = after
            for outcome in record.outcomes:
                texts.setdefault(outcome.request, []).extend(outcome.tokens)
    return counted[1:], [*texts.values()]


def cases() -> Iterator[Any]:
    """Yield a strategy, a number of rows and a temperature: each strategy alone and in a batch, greedy and drawn."""
    for i, proposer in enumerate(["autoregressive", "prompt_lookup", "token_recycling"]):
        for j, num_rows in enumerate([1, 4]):
            for k, temperature in enumerate([0.0, 0.9]):
                marks = [pytest.mark.nightly] if (i + j + k) % 2 else []
                yield pytest.param(proposer, num_rows, temperature, marks=marks)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("proposer", "num_rows", "temperature"), [*cases()])
def test_one_copy_each_way(model: Any, device: PretendDevice, proposer: str, num_rows: int, temperature: float) -> None:
    there = deepcopy(model).to(NAME)
    settings: dict[str, Any] = {"temperature": temperature, "seed": 5}
    with Generator(there, backend="fused", mask="slot_table", weights="stock", proposer=proposer) as generator:
        prompts = [REPEATING[start:] for start in range(num_rows)]
        counted, texts = steps(device, generator, prompts, **settings)
        _, plain = steps(device, generator, prompts[:1], proposer="autoregressive", **settings)
    assert counted
    # The slots of accepted nodes that move are a copy for each row.
    assert all(1 <= uploads <= 1 + num_rows * (proposer != "autoregressive") for uploads, _ in counted), counted
    assert {waits for _, waits in counted} == {1}
    assert texts[0] == plain[0]


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    ("others", "temperature", "num_rows"),
    [
        pytest.param("", 0.0, 1, marks=pytest.mark.nightly),
        pytest.param("", 0.0, 2, marks=pytest.mark.nightly),
        ("", 0.9, 1),
        ("+suffix", 0.0, 2),
    ],
)
def test_with_a_head_a_step_waits_twice(
    built_in: tuple[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    device: PretendDevice,
    others: str,
    temperature: float,
    num_rows: int,
) -> None:
    """Once for the draft, of whatever depth, and once for the model's pass; each has one copy there."""
    there = deepcopy(built_in[0]).to(NAME)
    settings: dict[str, Any] = {"temperature": temperature, "seed": 5}
    monkeypatch.setattr(eagle3, "runner_by_torch", GraphRunner)
    options: dict[str, Any] = {"backend": "fused", "mask": "slot_table", "weights": "stock"}
    with Generator(there, proposer=f"eagle3:head={demo.head_folder()}{others}", **options) as generator:
        prompts = [list(built_in[1](demo.prompts()[row].text)["input_ids"]) for row in range(num_rows)]
        counted, texts = steps(device, generator, prompts, **settings)
        _, plain = steps(device, generator, prompts[:1], proposer="autoregressive", **settings)
    # A merge drafts only where that pays.
    assert {waits for _, waits in counted} <= ({1, 2} if others else {2})
    # Each row's accepted path may bring two more: of the slots that move, and of the hidden states that the head reads.
    noise = 10 * num_rows if temperature else 0
    assert all(waits <= uploads <= waits + 2 * num_rows + noise for uploads, waits in counted), counted
    assert texts[0] == plain[0]


@pytest.mark.usefixtures("fused", "device")
def test_what_the_pass_draws_is_what_the_host_draws(model: Any) -> None:
    settings: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_new_tokens": NUM_TOKENS}
    with Generator(model, backend="hf", numerics="fast", proposer="autoregressive") as generator:
        expected = generator.generate(REPEATING, **settings).token_ids
    there = deepcopy(model).to(NAME)
    with Generator(there, backend="fused", mask="slot_table", weights="stock", proposer="prompt_lookup") as generator:
        assert generator.generate(REPEATING, **settings).token_ids == expected


@pytest.mark.usefixtures("fused", "device")
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "memory ran out (OutOfMemoryError: CUDA out of memory)"),
        (RuntimeError("operation not permitted\nwhen stream is capturing"), "RuntimeError: operation not permitted"),
    ],
)
def test_a_fault_in_a_capture_is_told_and_passes_go_on(
    built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, fault: Exception, told: str
) -> None:
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    monkeypatch.setattr(cuda_graphs, "Graph", Mock(side_effect=fault))
    monkeypatch.setattr(Graphs, "captures", property(lambda graphs: not graphs.fault, lambda *_: None), raising=False)
    monkeypatch.setattr(eagle3, "runner_by_torch", GraphRunner)
    options: dict[str, Any] = {"backend": "fused", "mask": "slot_table", "weights": "stock"}
    prompt, head = list(built_in[1](demo.prompts()[0].text)["input_ids"]), f"eagle3:head={demo.head_folder()}"
    with Generator(deepcopy(built_in[0]).to(NAME), **options) as generator:
        results = [
            generator.generate(prompt, proposer=proposer, max_new_tokens=NUM_TOKENS, eos_token_id=[])
            for proposer in ("autoregressive", head, f"{head}+suffix")
        ]
    assert len({result.token_ids for result in results}) == 1
    for result, num_notes in zip(results, (1, 2, 2), strict=True):
        notes = [note for note in result.notes if "without CUDA graphs" in note]
        assert notes[0].startswith(f"passes run without CUDA graphs: {told}")
        assert len(notes) == num_notes
