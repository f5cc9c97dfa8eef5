"""The sizes that passes are padded to, which depend on the processor.

With AVX-512 a pass over six tokens takes about as long as one over two. With AVX2 alone it takes an eighth longer, and
with weights in 8 bits 1.6 times as long, so there are sizes in between.
"""

from typing import Any

import torch

_SIZES = 1, 6, 8, 12, 16, 20, 24, 28, 32
_SIZES_OF_AVX2 = 1, 2, 4, *_SIZES[1:]
_NUM_EXPERTS = "num_experts", "num_local_experts", "n_routed_experts"


def uses_avx2(device: str) -> bool:
    """Return True if a device is this machine's processor, and that has no AVX-512."""
    return device == "CPU" and torch.backends.cpu.get_cpu_capability() == "AVX2"


def pass_sizes(config: Any, device: str) -> tuple[int, ...]:
    """Return a model's sizes, ascending; none for mixtures, which would load experts for padding."""
    text = config.get_text_config()
    if any(getattr(text, name, None) for name in _NUM_EXPERTS):
        return ()
    return _SIZES_OF_AVX2 if uses_avx2(device) else _SIZES
