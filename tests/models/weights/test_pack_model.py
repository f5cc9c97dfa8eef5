"""The order in which kernels are tried, and what a packing that isn't suitable leaves behind."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec.machine.facts import computes_in_bfloat16
from specdec.models.weights import onednn, pack_model
from specdec.models.weights.onednn import OneDNNKernel
from specdec.models.weights.pack_model import packings
from specdec.models.weights.packing import packed_weights
from specdec.plugins.registry import load_plugins
from tests.support import families

CPU = torch.device("cpu")
KERNELS = load_plugins().kernels()
pytestmark = pytest.mark.skipif(
    bool(OneDNNKernel().why_not(torch.float32, CPU) or KERNELS["fbgemm"].why_not(torch.float32, CPU)),
    reason="a kernel doesn't serve here",
)


def llama(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return families.make(*families.TREES["llama"]).to(dtype)


class Ranked(OneDNNKernel):
    """oneDNN's kernel, in another place of the order."""

    def __init__(self, place: int) -> None:
        self.place = place

    def rank(self, dtype: torch.dtype) -> int:
        return self.place


def kernels_of(model: PreTrainedModel, requested: str, **more: Any) -> list[str]:
    """Return the kernels in the order in which they pack a model."""
    failed = dict[str, str]()
    for weights in packings(model, requested, {**KERNELS, **more}, failed):
        failed[weights.kernel] = "it is slow"
    return [*failed]


@pytest.mark.parametrize(
    ("dtype", "has_instructions", "expected"),
    [
        (torch.float32, True, "onednn"),
        (torch.float32, False, "onednn"),
        (torch.float16, True, "fbgemm"),
        (torch.bfloat16, True, "onednn"),
        (torch.bfloat16, False, "fbgemm"),
    ],
)
def test_the_preferred_kernel_of_a_dtype(
    dtype: torch.dtype, has_instructions: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if KERNELS[expected].why_not(dtype, CPU):
        pytest.skip("it doesn't serve here")
    monkeypatch.setattr(onednn, "computes_in_bfloat16", lambda _: has_instructions)
    assert kernels_of(llama(dtype), "packed")[0] == expected


def test_float32_that_float16_can_represent_is_stored_in_half_of_the_bytes() -> None:
    assert kernels_of(llama().half().float(), "packed")[:2] == ["fbgemm", "onednn"]


def test_bfloat16_is_tried_by_both_where_the_processor_has_instructions() -> None:
    if not computes_in_bfloat16(CPU):
        pytest.skip("onednn may not serve")
    assert kernels_of(llama(torch.bfloat16), "packed")[:2] == ["onednn", "fbgemm"]


def test_kernels_of_others_go_where_they_say_and_equals_by_name() -> None:
    others = {"late": Ranked(9), "b": Ranked(-1), "a": Ranked(-1)}
    assert kernels_of(llama(), "packed", **others) == ["a", "b", "onednn", "late"]
    assert kernels_of(llama(), "late", **others) == ["late"]


def test_each_packing_is_undone_when_the_next_is_requested_and_stock_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pack_model, "_LEAST_BYTES", 0)
    model, failed = llama(), dict[str, str]()
    before = {name: each.clone() for name, each in model.named_parameters()}
    found = packings(model, "auto", {"onednn": OneDNNKernel(), "other": Ranked(5)}, failed)
    for name in ("onednn", "other"):
        weights = next(found)
        assert (weights.kernel, len(packed_weights(model))) == (name, weights.num_packed)
        failed[name] = f"{name} is slow"
    assert str(weights).endswith("linear layers, not by onednn: onednn is slow")
    stock = next(found)
    assert (str(stock), stock.is_fallback) == ("stock: onednn: onednn is slow; other: other is slow", True)
    assert not packed_weights(model)
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())
    assert not list(found)


def test_a_kernel_that_has_failed_before_is_left_out() -> None:
    weights = next(packings(llama(), "packed", {"onednn": OneDNNKernel(), "other": Ranked(5)}, {"onednn": "no"}))
    assert (weights.kernel, weights.why) == ("other", "not by onednn: no")


def num_parts(model: PreTrainedModel) -> int:
    """Return the number of weights that are part of a joined matrix."""
    return sum(weight.matrix.is_part for weight in packed_weights(model))


def test_layers_of_the_same_rows_are_joined_unless_the_model_does_not_run_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    assert next(packings(model, "packed", KERNELS, {})).num_packed == len(packed_weights(model))
    assert num_parts(model) == 5 * model.config.num_hidden_layers
    monkeypatch.setattr(pack_model, "_runs", lambda model: not num_parts(model))
    model = llama()
    assert next(packings(model, "packed", KERNELS, {})).num_packed == len(packed_weights(model))
    assert num_parts(model) == 0
