"""The bits of a row among others: products by specdec's kernel, and by cuBLAS as it is and without split sums."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn.functional import linear

from benchmarks.gpu.kernels import kernels_of
from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.shapes import Shape
from specdec.backends.fused.layer import LayerKernels
from specdec.backends.fused.parts import LinearWeights
from specdec.models.split_k import without_split_k
from specdec.models.weights.row_independence import RowFunction

ROWS = (1, 2, 7, 16, 17, 33, 48, 64, 100, 128, 512, 2048)
OWN, UNSPLIT = "own", "cuBLAS without split-K"
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def row_bits(
    shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device, counts: Sequence[int]
) -> Callable[[Report, Findings], None]:
    """Return the part that compares rows of all matrices; ``counts`` are numbers of rows, the largest one last."""

    def run(report: Report, found: Findings) -> None:
        ways = ways_on(device)
        for outputs, inputs in dict.fromkeys(size for shape in shapes for size in shape.matrices()):
            name = f"{outputs} by {inputs}"
            report.attempt(found, name, partial(compared, ways, (outputs, inputs), dtype, device, counts))

    return run


def ways_on(device: torch.device) -> dict[str, Product]:
    """The ways to multiply rows by a weight; on a CPU all are torch's."""
    return {
        OWN: partial(_own, kernels_of(device)),
        "cuBLAS": linear,
        UNSPLIT: _unsplit if device.type == "cuda" else linear,
    }


def _own(kernels: LayerKernels, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = rows.new_empty(len(rows), len(weight))
    kernels.products(rows, [LinearWeights(weight)], out)
    return out


def _unsplit(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with without_split_k():
        return linear(rows, weight)


@torch.no_grad()
def compared(
    ways: dict[str, Product],
    size: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    counts: Sequence[int],
) -> dict[str, str]:
    """The numbers of rows with which a row has other bits than with the most, and where the ways differ."""
    draw, most = torch.Generator(device).manual_seed(0), counts[-1]
    weight = torch.randn(size, generator=draw, device=device, dtype=dtype) / size[1] ** 0.5
    # In sums that cancel, rounding to half precision hides nothing.
    rows = RowFunction(partial(linear, weight=weight), size[1], dtype, device, weight).rows(most)
    made = {name: {count: run(_some(rows, count), weight) for count in counts} for name, run in ways.items()}
    found = {
        name: _said([count for count in counts if not torch.equal(by[count], _some(by[most], count))], "other bits")
        for name, by in made.items()
    }
    own, others = made[OWN], made[UNSPLIT]
    differing = [count for count in counts if not torch.equal(own[count], others[count])]
    share = float((own[most] != others[most]).float().mean())
    found[f"{OWN} = {UNSPLIT}"] = _said(differing, f"{share:.2g} of the numbers with {most} rows differ; not equal")
    return found


def _some(rows: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` rows, not the first ones: a row's place must not matter either."""
    first = 1 + count * 7 % (len(rows) - count) if count < len(rows) else 0
    return rows[first : first + count]


def _said(counts: Sequence[int], what: str) -> str:
    return f"{what} with {', '.join(map(str, counts))} rows" if counts else "the same bits"
