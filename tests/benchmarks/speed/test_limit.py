"""Steps against the memory's limit: the bytes, the products and the arithmetic; no time is asserted."""

import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch

from benchmarks.speed import limit
from benchmarks.speed.limit import CALLS, STEPS, Timed, interleaved, products, report, weight_bytes
from specdec import Generator, demo
from specdec.models.weights.base import Kernel
from specdec.models.weights.fbgemm import FBGEMMKernel
from specdec.models.weights.layers import given_the_same_rows, product_layers
from specdec.models.weights.packing import pack
from tests.support import families


class Counting(Kernel):
    """Holds matrices as they are, and counts products."""

    def __init__(self) -> None:
        self.count = 0

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        return ""

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.clone()

    def multiply(self, rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        self.count += 1
        return torch.nn.functional.linear(rows, packed, bias)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        return packed.clone()


def test_bytes_are_those_of_all_linear_layers_once_without_the_embeddings() -> None:
    model = demo.load("bfloat16")[0]
    config = model.config
    size, width = config.head_dim, config.hidden_size
    attention = 2 * size * width * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * width * config.intermediate_size
    expected = 2 * (config.num_hidden_layers * layer + config.vocab_size * width)
    assert weight_bytes(list(product_layers(model))) == expected
    with Generator(model, proposer="autoregressive", numerics="fast"):
        assert weight_bytes(list(product_layers(model))) == expected


def test_a_kernel_that_holds_halves_reads_half_the_bytes() -> None:
    kernel = FBGEMMKernel()
    if kernel.why_not(torch.float32, torch.device("cpu")):
        pytest.skip("this torch was built without FBGEMM")
    model = families.make(*families.TREES["llama"]).half().float()
    layers = list(product_layers(model))
    stock = weight_bytes(layers)
    pack(kernel, [[layer] for layer in layers])
    assert 2 * weight_bytes(layers) == stock == 4 * sum(layer.weight.numel() for layer in layers)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_products_are_every_layers_and_those_that_are_joined_are_one(family: str) -> None:
    model = families.make(*families.TREES[family])
    layers = list(product_layers(model))
    expected = [made() for made in products(layers)]
    for layer, product in zip(layers, expected, strict=True):
        width = layer.matrix.shape[1]
        assert torch.equal(product, layer.module(torch.ones(1, 1, width)))
    kernel, groups = Counting(), given_the_same_rows(model, [each for each in layers if not each.is_transposed])
    grouped = {layer.name for group in groups for layer in group}
    pack(kernel, [*groups, *([layer] for layer in layers if layer.name not in grouped)])
    for layer, made, product in zip(layers, products(layers), expected, strict=True):
        torch.testing.assert_close(made(), product, msg=layer.name)
    assert kernel.count == len(layers) - len(grouped) + len(groups)


def test_rates_and_fractions() -> None:
    bare = Timed("a bare sum", 40 * 10**9, [1.0, 2.0, 4.0])
    step = Timed("whole step, fast", 10**9, [0.1, 0.05, 0.2])
    assert (bare.rate, bare.maximum_rate, step.rate) == (20e9, 40e9, 10e9)
    said, table = report(bare, [step]).split("\n\n")
    assert said == "A sum over 38147 MiB reads 40.0 GB/s at most, 20.0 in the median."
    assert table.splitlines()[2] == "| whole step, fast | 1000.0 | 100.00 [75.00, 150.00] | 10.0 | 25% | 50% |"


def test_the_prompts_own_step_and_the_first_behind_it_are_left_out(
    built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[list[float]] = []

    def note(times: Iterable[float]) -> list[float]:
        noted.append(list(times))
        return [after - before for before, after in pairwise(noted[-1])][1:]

    monkeypatch.setattr(limit, "_between", note)
    model, prompt = built_in[0], [5, 9, 30]
    model.generation_config.eos_token_id, before = None, model.generation_config.eos_token_id
    try:
        with Generator(model, proposer="autoregressive", numerics="fast") as generator:
            ours, theirs = limit.steps(generator, prompt), limit.steps_of_transformers(model, prompt)
    finally:
        model.generation_config.eos_token_id = before
    assert [len(times) for times in noted] == [STEPS + 2] * 2  # a token each, that of the prompt's step first
    assert len(ours) == len(theirs) == STEPS
    assert all(seconds > 0 for seconds in [*ours, *theirs])


def test_moments_take_turns_after_a_warm_up() -> None:
    order: list[str] = []

    def moment(name: str) -> list[float]:
        order.append(name)
        return [float(len(order))]

    found = interleaved({name: lambda name=name: moment(name) for name in "abc"}, repeats=2)  # type: ignore[misc]
    assert [sorted(order[start : start + 3]) for start in (0, 3, 6)] == [["a", "b", "c"]] * 3
    assert {name: [order[int(place) - 1] for place in places] for name, places in found.items()} == {
        name: [name, name] for name in "abc"
    }
    assert min(min(places) for places in found.values()) > 3


def test_a_small_run_prints_all_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(limit, "BUFFER", 2**16)
    monkeypatch.setattr(sys, "argv", ["limit", "--dtype", "float32", "--threads", "1", "--repeats", "1"])
    limit.main()
    printed = capsys.readouterr().out
    names = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")][2:]
    assert names == ["products alone", "whole step, fast", "whole step, exact", "transformers"]
    assert "29 linear layers" in printed
    assert len(limit.calls([lambda: None])) == CALLS
