"""The choice of torch's fused attention kernels for a pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn(device: torch.device) -> Iterator[None]:
    """Temporarily bar torch's fused attention from cuDNN, if the device is a GPU.

    cuDNN makes a plan for each new length of the context, and so in every step: 9 ms a layer on an H100 in bfloat16,
    where torch's other kernels take microseconds. cuDNN stays where the caller has barred all of these.
    """
    cuda = torch.backends.cuda
    others = cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled
    was_enabled = device.type == "cuda" and cuda.cudnn_sdp_enabled() and any(each() for each in others)  # type: ignore[no-untyped-call]  # torch is untyped here
    if was_enabled:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if was_enabled:
            torch.backends.cuda.enable_cudnn_sdp(True)
