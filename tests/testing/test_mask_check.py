"""``check_mask`` passes every registered compiler, on a device as well, and sees each broken law."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from specdec import Generator
from specdec.layout import Shapes
from specdec.masks import DenseCompiler, MaskCompiler, SlotTableCompiler
from specdec.masks.slot_table.kernel import PREFIX, STOP, SlotTable, slot_table_attention
from specdec.testing import check_mask
from specdec.tree import DraftTree
from tests.support import families
from tests.support.generators import MASKS, REGISTRY
from tests.support.pretend_device import NAME, pretend_device

example = pytest.importorskip("specdec_example_attention")
WINDOWED = "gemma3"


@pytest.mark.parametrize("mask", MASKS)
def test_registered_compilers_keep_the_laws(mask: str) -> None:
    check_mask(REGISTRY.make("masks", mask), families.make(*families.TREES[WINDOWED]))


@pytest.mark.filterwarnings("ignore:Set seed for `privateuseone` device")
@pytest.mark.parametrize(
    "compiler",
    [pytest.param(SlotTableCompiler(), marks=pytest.mark.nightly), example.TreeBitsCompiler()],  # the former takes long
    ids=repr,
)
def test_passes_on_a_device_are_captured_with_any_mask_of_a_fixed_shape(compiler: MaskCompiler) -> None:
    with pretend_device():
        check_mask(compiler, families.make(*families.TREES[WINDOWED]).to(NAME))


@pytest.mark.parametrize("name", ["llama", WINDOWED])
def test_a_plug_ins_attention_gets_static_shapes_and_the_text_of_others(name: str) -> None:
    model, prompts = families.make(*families.TREES[name]), [[1, 2, 3, 1, 2, 3], [4], [5, 6]]
    settings: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}
    with Generator(model, proposer="autoregressive", numerics="fast") as plain:
        expected = [result.token_ids for result in plain.generate(prompts, **settings)]
    with Generator(model, proposer="prompt_lookup", backend="static", mask=example.TreeBitsCompiler()) as generator:
        assert generator.shapes.takes_trees
        assert generator.weights.engine == "static"
        assert [result.token_ids for result in generator.generate(prompts, **settings)] == expected


class Growing(SlotTableCompiler):
    """The shape of its masks follows the text."""

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        masks = super().masks(trees, lengths, positions, shapes)
        padded = (torch.nn.functional.pad(mask.as_subclass(torch.Tensor), (0, lengths[0])) for mask in masks.values())
        return dict(zip(masks, (each.as_subclass(SlotTable) for each in padded), strict=True))


class Unnumbered(SlotTable):
    def numbered_from(self, first: int) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


class FromTheFirstRow(SlotTableCompiler):
    """Its masks name the rows of a pass as if it began at the cache's first."""

    def masks(self, *given: Any) -> dict[str, torch.Tensor]:
        return {kind: mask.as_subclass(Unnumbered) for kind, mask in super().masks(*given).items()}


class Ordinary(DenseCompiler):
    """It has fixed shapes by its own account alone."""

    has_fixed_shapes: ClassVar[bool] = True


class Leaking(SlotTableCompiler):
    """A node of a tree sees one slot of the text too few."""

    def masks(self, *given: Any) -> dict[str, torch.Tensor]:
        masks = super().masks(*given)
        for mask in masks.values():
            numbers = mask.as_subclass(torch.Tensor)
            numbers[..., PREFIX].sub_((numbers[..., PREFIX] < numbers[..., STOP]).int())
        return masks


class Own(SlotTableCompiler):
    """Attention that looks at the numbers in a mask from Python."""

    attention: ClassVar[str | None] = "specdec_looking"
    look: ClassVar[Callable[[torch.Tensor], int]]

    def register(self) -> None:
        AttentionInterface.register("specdec_looking", self._attend)

    def _attend(self, module: Any, query: Any, key: Any, value: Any, mask: torch.Tensor, **others: Any) -> Any:
        last = type(self).look(mask)  # position that a node of this pass sees
        seen = mask.as_subclass(torch.Tensor).clone()
        seen[..., STOP].clamp_(max=last)
        return slot_table_attention(module, query, key, value, seen, **others)


class Waiting(Own):
    look = lambda mask: int(mask[..., STOP].max())  # noqa: E731 - a method of the class


class Baking(Own):
    look = lambda mask: max(map(max, mask[:, 0, :, STOP].tolist()))  # noqa: E731 - as above


@pytest.mark.parametrize(
    ("compiler", "fault"),
    [
        (Growing(), "the shape of a mask over 1 nodes depends on the text's length"),
        (FromTheFirstRow(), "is off by"),
        (Ordinary(), "Tensor is not a FixedMask"),
        (Leaking(), "does not see slot"),
        (Waiting(), "no pass was captured: aten.item.default reads numbers from the device"),
        (Baking(), "is off by"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_broken_law_is_seen(compiler: MaskCompiler, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_mask(compiler, families.make(*families.TREES["llama"]))
