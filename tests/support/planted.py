"""Mistakes to plant in layouts, caches and backends, each of which the self-test at load must find."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.backends.cache import RaggedCache, RaggedLayer
from specdec.backends.hf import HFBackend
from specdec.layout import Compiler, Layout, PartialMask, Shapes
from specdec.masks.exact.regions import Region, with_regions
from specdec.runtime.probes.examination import passes_to_test
from specdec.tree import DraftTree


@dataclass(frozen=True)
class Place:
    """One bit of a layout: a node of a row, a slot, and what to make of it."""

    row: int
    node: int
    slot: int
    is_shown: bool


@dataclass(frozen=True)
class Spoiled:
    """A mask compiler with a mistake in each layout that has a place for it."""

    compiler: Any
    spoil: Callable[[Layout, Sequence[DraftTree]], Layout]

    @property
    def attention(self) -> str | None:
        return self.compiler.attention

    @property
    def bit_exact(self) -> bool:
        return self.compiler.bit_exact

    @property
    def max_depth(self) -> int | None:
        return self.compiler.max_depth

    def register(self) -> None:
        self.compiler.register()

    @property
    def has_fixed_shapes(self) -> bool:
        return self.compiler.has_fixed_shapes

    def refuses(self, device: torch.device, dtype: torch.dtype) -> str:
        return self.compiler.refuses(device, dtype)

    def operations(self, device: torch.device) -> AbstractContextManager[object]:
        return self.compiler.operations(device)

    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        return self.spoil(self.compiler.compile(trees, lengths, shapes), trees)


def foreign(tree: DraftTree, row: int, length: int, seen: torch.Tensor) -> Place | None:
    """The last node sees the last node of another branch."""
    node = len(tree) - 1
    others = sorted({*range(node)} - {*tree.lineage(node)})
    return Place(row, node, length + others[-1], True) if others else None


def parent(tree: DraftTree, row: int, length: int, seen: torch.Tensor) -> Place | None:
    """The last node doesn't see its parent."""
    node = len(tree) - 1
    return Place(row, node, length + tree.parents[node], False) if node else None


def prefix(tree: DraftTree, row: int, length: int, seen: torch.Tensor) -> Place | None:
    """The last node doesn't see the first committed token that it should."""
    node = len(tree) - 1
    slots = seen[node, :length].nonzero().flatten().tolist()
    return Place(row, node, slots[0], False) if slots else None


def in_masks(choose: Callable[..., Place | None], change: Callable[[torch.Tensor, Place], torch.Tensor]) -> Any:
    """A mistake in the masks of a layout, in the last row that has a place for it."""

    def spoil(layout: Layout, trees: Sequence[DraftTree]) -> Layout:
        masks = dict(layout.masks)
        for kind, mask in layout.masks.items():
            seen = layout.visible(kind)
            rows = enumerate(zip(trees, layout.lengths, strict=True))
            places = [choose(tree, row, length, seen[row]) for row, (tree, length) in rows]
            chosen = [place for place in places if place is not None]
            if chosen:
                masks[kind] = change(mask, chosen[-1])
        return replace(layout, masks=masks)

    return spoil


def changed(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """The mask with one bit wrong, whatever its form."""
    if isinstance(mask, PartialMask):
        return _changed_split(mask, place)
    spoiled = mask.clone()
    hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    spoiled[place.row, 0, place.node, place.slot] = (mask.dtype == torch.bool) if place.is_shown else hidden
    return with_regions(spoiled, mask.regions) if hasattr(mask, "regions") else spoiled


def _changed_split(mask: Any, place: Place) -> torch.Tensor:
    """The mask of specdec-flash with one bit wrong."""
    tail, prefixes = mask.as_subclass(torch.Tensor).clone(), list(mask.prefixes)
    slots = mask.slots
    columns = list(range(slots.start, slots.stop)) if isinstance(slots, slice) else slots[place.row].tolist()
    if place.slot in columns:
        tail[place.row, 0, place.node, columns.index(place.slot)] = 0.0 if place.is_shown else -torch.inf
    else:
        prefixes[place.row] = slice(place.slot + 1, prefixes[place.row].stop)
    return type(mask).of(tail, mask.slots, tuple(prefixes), mask.blind)


def changed_region(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """The mask of exact attention as it was, with one bit of its regions wrong."""
    regions = tuple(_changed_region(region, place) for region in mask.regions)  # type: ignore[attr-defined]
    return with_regions(mask.clone(), regions)


def _changed_region(region: Region, place: Place) -> Region:
    size = int(region.hidden.shape[0])
    nodes = region.nodes
    own = list(range(nodes.start, nodes.stop)) if isinstance(nodes, slice) else nodes.tolist()
    assert len(own) == size
    columns = [slot for piece in region.open for slot in range(piece.start, piece.stop)]
    if region.row != place.row or place.node not in own:
        return region
    if place.slot not in columns:
        return replace(region, closed=slice(place.slot + 1, region.closed.stop), _biases={})
    hidden = region.hidden.clone()
    hidden[own.index(place.node), columns.index(place.slot)] = 0.0 if place.is_shown else -torch.inf
    return replace(region, hidden=hidden, _biases={})


def in_positions(change: int) -> Callable[[Layout, Sequence[DraftTree]], Layout]:
    """The last node's position is off."""

    def spoil(layout: Layout, trees: Sequence[DraftTree]) -> Layout:
        positions = layout.positions.clone()
        positions[-1, len(trees[-1]) - 1] += change
        return replace(layout, positions=positions)

    return spoil


LAYOUTS: dict[str, Any] = {
    "another branch shown": in_masks(foreign, changed),
    "parent hidden": in_masks(parent, changed),
    "prefix slot hidden": in_masks(prefix, changed),
    "position +1": in_positions(1),
    "position -1": in_positions(-1),
}
REGIONS: dict[str, Any] = {
    "another branch shown to a region": in_masks(foreign, changed_region),
    "parent hidden from a region": in_masks(parent, changed_region),
    "prefix slot hidden from a region": in_masks(prefix, changed_region),
}


class Untested(HFBackend):
    """A backend with the passes that the self-test begins with."""

    def __init__(self, model: PreTrainedModel, compiler: Compiler) -> None:
        super().__init__(model, compiler, passes_to_test(HFBackend(model, compiler))[0])


class _ShiftedLayer(RaggedLayer):
    """Keys are written beside their slots."""

    shift = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        width = key_states.shape[2]
        written = keys.clone()
        for row, start in enumerate(self.placement.starts):
            to = max(0, start + self.shift)
            stop = min(to + width, keys.shape[2])
            written[row, :, start : start + width] = 0
            written[row, :, to:stop] = key_states[row, :, : stop - to]
        keys.copy_(written)
        return keys, values


class _LateLayer(_ShiftedLayer):
    shift = 1


class _EarlyLayer(_ShiftedLayer):
    shift = -1


class LateKeys(Untested):
    def _make_cache(self, num_layers: int) -> RaggedCache:
        return RaggedCache(num_layers, _LateLayer)


class EarlyKeys(Untested):
    def _make_cache(self, num_layers: int) -> RaggedCache:
        return RaggedCache(num_layers, _EarlyLayer)


class KeepsAnotherBranch(Untested):
    """The last node of a path is taken for the one before it in the tree."""

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit([[*path[:-1], path[-1] - 1] if len(path) > 1 and path[-1] > 1 else path for path in paths])


class _OneSlotOff(RaggedCache):
    """Kept nodes come to lie one slot behind where they belong."""

    def commit(self, row: int, path: Sequence[int]) -> None:
        if any(node != to for to, node in enumerate(path)):
            self.lengths[row] += 1
            super().commit(row, path)
            self.lengths[row] -= 1
        else:
            super().commit(row, path)


class KeepsOneSlotOff(Untested):
    def _make_cache(self, num_layers: int) -> RaggedCache:
        return _OneSlotOff(num_layers)


class RollsBackTooLittle(Untested):
    def rollback(self, row: int, length: int) -> None:
        super().rollback(row, length + 1)


class RollsBackTooFar(Untested):
    def rollback(self, row: int, length: int) -> None:
        super().rollback(row, length - 1)


BACKENDS: dict[str, type[Untested]] = {
    "another branch kept": KeepsAnotherBranch,
    "kept one slot off": KeepsOneSlotOff,
    "keys one slot late": LateKeys,
    "keys one slot early": EarlyKeys,
    "rollback one short": RollsBackTooLittle,
    "rollback one too far": RollsBackTooFar,
}


def spoiled(compiler: Compiler, mistake: str) -> Spoiled:
    """A compiler with one of the mistakes of layouts."""
    return Spoiled(compiler, {**LAYOUTS, **REGIONS}[mistake])


def mistakes_of(compiler: Compiler) -> tuple[str, ...]:
    """The mistakes that can be planted in a compiler's layouts."""
    return (*LAYOUTS, *(REGIONS if compiler.bit_exact else ()))
