"""The logits of a few passes, by which graphs of one model are compared."""

from collections.abc import Sequence

import torch

from specdec.layout import Layout
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.passes import Passes

_STRIDE = 7919  # between tokens


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
        blocks.keep(0, range(width))
        length += width
    return logits
