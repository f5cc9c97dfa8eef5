"""Stacks of regions: the open slots of several rows are summed in one batched product, which saves calls.

The sums of each region don't change: padded slots have weight 0, and rows of products and matrices of a batch are
independent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specdec.masks.exact.regions import Region

_CALLS = 2**16  # number of terms whose sums take about as long as the calls of a stack
_MOST_ROWS = 64  # of a region's products: padding and copying more takes longer than the calls


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Regions with about the same number of nodes, and the indices of their parts; heads are those of one group.

    Attributes:
        num_rows: rows of each region's products, one for each head and node; the last ones may be padding.
        sources: the row, head and node of each product's rows, (regions, 1) and twice (regions, num_rows).
        slots: the row and slot of each region's open keys, (regions, 1) and (regions, slots).
        bias: -inf if a row doesn't see a slot, else 0, (regions, 1, num_rows, slots).
        taken: the region and row of each result to be used.
        targets: the row, node and head of these results in the output.
    """

    regions: tuple[Region, ...]
    num_rows: int
    sources: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    slots: tuple[torch.Tensor, torch.Tensor]
    bias: torch.Tensor
    taken: tuple[torch.Tensor, torch.Tensor]
    targets: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    _lines: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)  # all layers of a pass share them

    def take_rows(self, query: torch.Tensor) -> torch.Tensor:
        """Return the products' rows, (regions, groups, num_rows, size), of (rows, groups, heads, width, size)."""
        rows, heads, nodes = self.sources
        return query[rows, :, heads, nodes].transpose(1, 2).contiguous()

    def take_open(self, states: torch.Tensor) -> torch.Tensor:
        """Return the open slots' keys or values, (regions, groups, slots, size), of (rows, groups, slots, size)."""
        num_groups, size = states.shape[1], states.shape[3]
        if any(stride % size for stride in states.stride()[:3]) or states.stride(3) != 1:
            states = states.contiguous()
        # Whole lines are copied from the memory as a matrix, as an index of rows and slots takes six times as long.
        strides = [stride // size for stride in states.stride()[:3]]
        num_lines = 1 + sum((count - 1) * stride for count, stride in zip(states.shape, strides, strict=False))
        taken = states.as_strided((num_lines, size), (size, 1)).index_select(0, self._lines_at(num_groups, *strides))
        return taken.view(len(self.regions), num_groups, -1, size)

    def _lines_at(self, num_groups: int, of_row: int, of_group: int, of_slot: int) -> torch.Tensor:
        """Return the memory lines of the open slots, from the strides of rows, groups and slots."""
        key = num_groups, of_row, of_group, of_slot
        if key not in self._lines:
            rows, slots = self.slots
            groups = torch.arange(num_groups, device=rows.device)[:, None] * of_group
            lines = (rows * of_row)[:, None] + groups + (slots * of_slot)[:, None]
            self._lines[key] = lines.flatten()
        return self._lines[key]

    def put(self, output: torch.Tensor, results: torch.Tensor) -> None:
        """Write results, (regions, groups, num_rows, size), to (rows, width, groups, heads, size)."""
        rows, nodes, heads = self.targets
        output[rows, nodes, :, heads] = results.transpose(1, 2)[self.taken].to(output.dtype)


def stacks_of(
    regions: Sequence[Region], num_heads: int, slot_size: int, multiple: int, fewest_slots: int
) -> tuple[list[Stack], list[Region]]:
    """Return the stacks of a pass, and the regions that are faster alone.

    Args:
        num_heads: heads of a group.
        slot_size: numbers per slot, all groups together.
        multiple: the rows of a product are padded to a multiple of this.
        fewest_slots: the minimum number of slots of a product.
    """
    by_size: dict[int, list[Region]] = {}
    alone: list[Region] = []
    for region in regions:
        num_rows, size = num_heads * len(region.hidden), multiple
        while size < num_rows:
            size *= 2
        if num_rows > _MOST_ROWS:
            alone.append(region)
        else:
            by_size.setdefault(size, []).append(region)
    stacks: list[Stack] = []
    for size, of_size in by_size.items():
        for alike in _by_slots(of_size, max(1, _CALLS // slot_size)):
            if len(alike) > 1:
                stacks.append(_stack(alike, num_heads, size, fewest_slots))
            else:
                alone.extend(alike)
    return stacks, alone


def _by_slots(regions: Sequence[Region], worth: int) -> Iterator[tuple[Region, ...]]:
    """Divide regions into stacks, longest first; a new stack begins if that saves enough padded slots."""
    ordered = sorted(regions, key=lambda region: region.hidden.shape[1], reverse=True)
    longest, begin = ordered[0].hidden.shape[1], 0
    for place, region in enumerate(ordered):
        num_slots = region.hidden.shape[1]
        if (longest - num_slots) * (len(ordered) - place) > worth:
            yield tuple(ordered[begin:place])
            longest, begin = num_slots, place
    yield tuple(ordered[begin:])


def _stack(regions: tuple[Region, ...], num_heads: int, num_rows: int, fewest_slots: int) -> Stack:
    device = regions[0].hidden.device
    num_slots = max(fewest_slots, *(region.hidden.shape[1] for region in regions))
    rows = torch.tensor([[region.row] for region in regions], device=device)
    heads = torch.zeros(len(regions), num_rows, dtype=torch.long)
    nodes, slots = torch.zeros_like(heads), torch.zeros(len(regions), num_slots, dtype=torch.long)
    bias = torch.zeros(len(regions), 1, num_rows, num_slots)
    wanted: list[tuple[torch.Tensor, ...]] = []
    for number, region in enumerate(regions):
        own = _nodes_of(region)
        used = num_heads * len(own)
        heads[number, :used] = torch.arange(num_heads).repeat_interleave(len(own))
        nodes[number, :used] = own.repeat(num_heads)
        nodes[number, used:] = own[0]
        open_slots = torch.cat([torch.arange(piece.start, piece.stop) for piece in region.open])
        slots[number, : len(open_slots)] = open_slots
        slots[number, len(open_slots) :] = open_slots[0]  # which is seen, hence a number
        bias[number, 0, :, len(open_slots) :] = -torch.inf
        bias[number, 0, :used, : len(open_slots)] = region.hidden.cpu().repeat(num_heads, 1)
        place = torch.arange(used)
        regions_of_rows, target = torch.full_like(place, number), torch.full_like(place, region.row)
        wanted.append((regions_of_rows, place, target, nodes[number, :used], heads[number, :used]))
    parts = [torch.cat(part).to(device) for part in zip(*wanted, strict=True)]
    return Stack(
        regions=regions,
        num_rows=num_rows,
        sources=(rows, heads.to(device), nodes.to(device)),
        slots=(rows, slots.to(device)),
        bias=bias.to(device),
        taken=(parts[0], parts[1]),
        targets=(parts[2], parts[3], parts[4]),
    )


def _nodes_of(region: Region) -> torch.Tensor:
    nodes = region.nodes
    return torch.arange(nodes.start, nodes.stop) if isinstance(nodes, slice) else nodes.cpu()
