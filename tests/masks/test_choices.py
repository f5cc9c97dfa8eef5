"""Compilers declare what they serve: numerics choose among the installed ones, and nothing else names their classes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import AttentionInterface

import specdec
from specdec import Generator, PluginError, hookimpl
from specdec.masks.base import MaskCompiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.plugins.names import BUILT_INS
from specdec.plugins.registry import Registry, load_plugins
from tests.masks.test_slot_table import have_kernels
from tests.support import entry_points, families

CPU = torch.device("cpu")


class Swift(DenseCompiler):
    """A third party's, which is faster than the built-in one."""

    preference: ClassVar[int] = 1
    refusal: ClassVar[str] = ""

    @classmethod
    def choices(cls, device: torch.device) -> Mapping[int, Any]:
        return {cls.preference: cls()}

    def refuses(self, device: torch.device, dtype: torch.dtype) -> str:
        return self.refusal


def install(monkeypatch: pytest.MonkeyPatch, cls: type[MaskCompiler]) -> None:
    @hookimpl
    def specdec_masks() -> Mapping[str, type[MaskCompiler]]:
        return {"swift": cls}

    entry_points.install(monkeypatch, specdec_masks=specdec_masks)


def mask_of(**options: Any) -> Any:
    with Generator(families.make(*families.TREES["llama"]), proposer="autoregressive", **options) as generator:
        return generator.mask


def test_the_built_in_ones_are_chosen_by_device() -> None:
    registry = load_plugins()
    assert registry.compilers(CPU, bit_exact=True, least=-1) == [ExactCompiler()]
    assert registry.compilers(CPU, bit_exact=False) == [DenseCompiler()]


def test_a_gpu_with_kernels_has_slot_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    have_kernels(monkeypatch)
    registry = load_plugins()
    unsplit = SlotTableCompiler(products="unsplit")
    assert registry.compilers(CPU, bit_exact=True) == [SlotTableCompiler(), unsplit]
    slow = SlotTableCompiler(products="own")
    assert registry.compilers(CPU, bit_exact=True, least=-1) == [SlotTableCompiler(), unsplit, slow]
    monkeypatch.setattr(torch.backends.cuda, "matmul", object())  # an older torch
    assert registry.compilers(CPU, bit_exact=True, least=-1) == [SlotTableCompiler(), slow]
    with pytest.raises(PluginError, match=r"refused: products='unsplit': needs torch 2\.10 or later"):
        mask_of(mask="slot_table:products=unsplit")


def test_a_third_partys_is_chosen_if_it_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Swift)
    assert type(mask_of(numerics="fast")) is Swift
    assert type(mask_of(numerics="auto")) is ExactCompiler
    monkeypatch.setattr(Swift, "preference", 0)
    assert type(mask_of(numerics="fast")) is DenseCompiler


def test_one_that_refuses_the_model_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Swift)
    monkeypatch.setattr(Swift, "refusal", "it is for float16")
    assert type(mask_of(numerics="fast")) is DenseCompiler
    assert type(mask_of(mask="swift")) is Swift  # its user knows better


def test_one_whose_choices_fail_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Swift)
    monkeypatch.setattr(Swift, "choices", lambda _: [].pop())
    with pytest.raises(PluginError, match=r"mask swift-dist/swift failed with IndexError"):
        mask_of(numerics="fast")


def test_no_choices_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "compilers", lambda *_, **__: [])
    with pytest.raises(specdec.ModelError, match="no installed mask compiler offers numerics='exact' on cpu"):
        mask_of(numerics="exact")


def test_core_names_no_compilers_class() -> None:
    package = Path(specdec.__file__).parent
    classes = re.compile("|".join(place.partition(":")[2] for place in BUILT_INS["masks"].values()))
    allowed = {package / "plugins" / "names.py", *(package / "masks").rglob("*.py")}
    assert len(classes.pattern.split("|")) >= 3
    assert [path for path in package.rglob("*.py") if path not in allowed and classes.search(path.read_text())] == []


class Untrue(Swift):
    """One whose attention fails the self-test."""

    attention: ClassVar[str | None] = "specdec_untrue"

    def register(self) -> None:
        AttentionInterface.register("specdec_untrue", untrue)


def untrue(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Any:
    return query.transpose(1, 2), None


def test_one_whose_attention_is_wrong_gives_way_to_one_that_takes_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Untrue)
    assert type(mask_of(numerics="fast")) is DenseCompiler
