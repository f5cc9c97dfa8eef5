"""The parts of the GPU measurement on a CPU, with tiny sizes and torch's kernels; no time is asserted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.card import card, reading_ms
from benchmarks.gpu.gpu import Sizes
from benchmarks.gpu.kernels import Case, kernels_alone
from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.passes import Measured, passes
from benchmarks.gpu.products import OWN, UNSPLIT, compared, row_bits, ways_on
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY
from benchmarks.gpu.speed import batches, contest
from benchmarks.gpu.texts import texts
from specdec.backends.fused.backend import FusedBackend
from specdec.masks.slot_table.compiler import SlotTableCompiler
from tests.support import fused_kernels

CPU = torch.device("cpu")
SIZES = Sizes.on(CPU)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report.opened(tmp_path, 600.0)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused layers by torch's kernels, and the masks that a GPU would have."""
    monkeypatch.setattr(FusedBackend, "_serves", lambda _: True)
    monkeypatch.setattr(FusedBackend, "_kernels", lambda _: fused_kernels)
    monkeypatch.setattr("specdec.masks.slot_table.compiler.has_kernels", lambda _: True)
    monkeypatch.setattr(SlotTableCompiler, "operations", lambda *_: torch.no_grad())
    monkeypatch.setattr("specdec.masks.exact.compiler.has_kernels", lambda _: True)


def found_by(report: Report, part: Callable[[Report, Findings], object]) -> dict[str, Any]:
    report.part("part", 600.0, part)
    found: dict[str, Any] = report.found["part"]
    assert "failed" not in found, found
    return found


def failures(found: Any) -> list[str]:
    """The errors in findings, whose texts begin with their names."""
    if isinstance(found, dict):
        return [failure for each in found.values() for failure in failures(each)]
    return [found] if isinstance(found, str) and "Error:" in found else []


def test_rates_of_the_card(report: Report) -> None:
    report.part("card", 60.0, partial(card, CPU, 2**20))
    found = report.found["card"]
    assert not failures(found)
    found["read, TB/s"] = 0.5
    model = TINY.model(torch.bfloat16, CPU, 256)
    read = sum(weight.numel() for name, weight in model.named_parameters() if "embed" not in name)
    assert reading_ms(report, model) == pytest.approx(2 * read / 0.5e9)


def test_the_shapes_are_those_of_the_models() -> None:
    def millions(shape: Any) -> float:
        with torch.device("meta"):
            return shape.model(torch.bfloat16, torch.device("meta"), 256).num_parameters() / 1e6

    assert round(millions(SMOLLM2) - SMOLLM2.vocab * SMOLLM2.hidden / 1e6, 1) == 134.5  # its head is its embedding
    assert round(millions(LLAMA_8B)) == 8030
    assert len(LLAMA_8B.matrices()) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_specdecs_products_are_the_same_and_others_are_seen(report: Report, dtype: torch.dtype) -> None:
    found = found_by(report, row_bits([TINY], dtype, CPU, SIZES.rows))
    assert not failures(found)
    matrices = [found[f"{outputs} by {inputs}"] for outputs, inputs in TINY.matrices()]
    assert {each[OWN] for each in matrices} == {"the same bits"}
    if dtype == torch.float32:
        assert any("rows differ" in each[f"{OWN} = {UNSPLIT}"] for each in matrices)


def test_numbers_of_rows_with_other_bits_are_named() -> None:
    ways = ways_on(CPU)
    own = ways[OWN]
    odd = {**ways, "cuBLAS": lambda rows, weight: own(rows, weight) + (len(rows) in {2, 7}), UNSPLIT: own}
    found = compared(odd, (24, 48), torch.float32, CPU, (1, 2, 7, 16))
    assert found == {
        OWN: "the same bits",
        "cuBLAS": "other bits with 2, 7 rows",
        UNSPLIT: "the same bits",
        f"{OWN} = {UNSPLIT}": "the same bits",
    }
    at_the_top = {**odd, "cuBLAS": lambda rows, weight: own(rows, weight) + (torch.arange(len(rows)) == 0)[:, None]}
    assert compared(at_the_top, (24, 48), torch.float32, CPU, (1, 2, 7, 16))["cuBLAS"] == "other bits with 1, 2, 7 rows"


def test_each_kernel_is_compared_and_timed(report: Report) -> None:
    part = kernels_alone([TINY], (1, 3), (16, 300), torch.float32, CPU, 2**14)
    found = found_by(report, part)
    assert not failures(found)
    names = set(Case(TINY, 1, 16, torch.float32, CPU, 2**14).calls())
    assert set(found["tiny, error against torch"]) == names
    assert set(found["tiny, error against torch"].values()) == {0.0}
    assert set(found["tiny, us of a call with 3 nodes"]) == names | {"attention, context 300"}


def test_a_mistaken_kernel_has_an_error(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mistaken:
        def norm(self, x: torch.Tensor, *others: Any) -> None:
            fused_kernels.norm(2 * x + 1, *others)

        def __getattr__(self, name: str) -> Any:
            return getattr(fused_kernels, name)

    made = Mistaken()
    monkeypatch.setattr("benchmarks.gpu.kernels.kernels_of", lambda _: made)
    errors = found_by(report, kernels_alone([TINY], (2,), (16,), torch.float32, CPU, 2**14))[
        "tiny, error against torch"
    ]
    assert errors.pop("norm") > 0.1
    assert max(errors.values()) < 1e-6


@pytest.mark.usefixtures("fused", "no_findings")
def test_passes_prompts_and_kernels_by_each_backend(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in (("NUM_STEPS", 2), ("WARM_STEPS", 2), ("MOST_TOKENS", 300)):
        monkeypatch.setattr(f"benchmarks.gpu.profiling.{name}", few)
    ways, model = ["static auto", "fused auto"], TINY.model(torch.bfloat16, CPU, 512)
    found = found_by(report, passes(model, ways, Measured((1, 4), (16,), (24,), 0.1)))
    assert not failures(found)
    for way in ways:
        assert set(found[f"{way}, ms by nodes after 16 tokens"]) == {"1", "4"}
        assert len(found[f"{way}, ms of a prompt of 24 tokens"]) == 3
        assert "by layer" in found[f"{way}, a step of auto"]


@pytest.mark.usefixtures("fused", "no_findings")
def test_speed_by_each_backend(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.speed.WARM_UP", 8)
    ways, model = ["static auto", "fused auto"], TINY.model(torch.bfloat16, CPU, 256)
    found = found_by(report, contest(model, [[1, 2, 3, 1, 2, 3]], 8, ways=ways))
    assert not failures(found)
    assert len(found["contenders"]) == 10
    assert found["contenders"]["transformers, static cache"]["over transformers"].endswith("1 of 1 texts equal")


@pytest.mark.usefixtures("fused", "no_findings")
def test_batches_by_each_backend(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.speed.WARM_UP", 2)
    found = found_by(
        report, batches(TINY.model(torch.bfloat16, CPU, 256), [[1, 2, 3]], 4, ["static auto", "fused auto"], (2, 3))
    )
    assert not failures(found)
    assert len([name for name in found if name.endswith(" texts")]) == 2 * 2 * 2
    assert "tokens/step" in found["fused auto auto, 3 texts"]


def test_texts_are_plain_decodings(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.texts.WAYS", {"auto": {}, "fused": {"backend": "fused"}})
    monkeypatch.setattr("benchmarks.gpu.texts.STRATEGIES", {name: name for name in ("auto", "suffix")})
    found = found_by(report, texts("float32", "cpu", 2, 6, 40))
    assert "needs Triton and a GPU" in found["fused"]["failed"]
    for name in ("auto", "suffix"):
        results = found["auto"][name]
        assert {results[key] for key in ("greedy", "temperature 1", "in a batch")} == {"2 of 2 equal"}
