"""The logits of a few passes, by which graphs of one model, and sizes of passes, are compared."""

from collections.abc import Callable, Sequence

import torch

from specdec.layout import Layout
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.passes import Passes

_STRIDE = 7919  # between tokens
_SIZES = 64, 32, 16, 8  # of passes


def trial_logits(passes: Passes, blocks: Blocks, widths: Sequence[int], vocab_size: int) -> list[torch.Tensor]:
    """Return the logits of chains of some widths, one after another in a row of their own.

    Args:
        blocks: of the passes, without rows.
    """
    blocks.open()
    length, logits = 0, list[torch.Tensor]()
    for width in widths:
        positions = torch.arange(length, length + width)[None]
        ids = (positions * _STRIDE + 1) % vocab_size
        logits.append(passes.run(Layout((length,), (width,), ids, positions, {}, tuple(range(width))))[0])
        blocks.commit(0, range(width))
        length += width
    return logits


def most_rounded_alike(passes: Callable[[], tuple[Passes, Blocks]], vocab_size: int) -> int:
    """Return how many tokens a pass may have for each of them to have the bits that it has in a small pass.

    Args:
        passes: makes passes over a cache of their own, without a limit.
    """
    expected = torch.cat(trial_logits(*passes(), (_SIZES[-1],) * (_SIZES[0] // _SIZES[-1]), vocab_size), 1)
    for size in _SIZES[:-1]:
        if torch.equal(trial_logits(*passes(), (size,), vocab_size)[0], expected[:, :size]):
            return size
    return _SIZES[-1]
