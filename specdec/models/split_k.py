"""Products of cuBLAS whose sums aren't split, for exact numerics on GPUs."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_NAMES = "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"
_CHANGING = threading.RLock()  # the settings are the process's


def is_barrable() -> bool:
    """Return True if torch can bar the split: from 2.10 on."""
    return hasattr(torch.backends.cuda.matmul, f"{_NAMES[0]}_split_k")


@contextmanager
def without_split_k() -> Iterator[None]:
    """Temporarily bar cuBLAS from splitting the sums of half-precision products; where ``is_barrable``.

    cuBLAS splits a sum among several programs where few rows would leave multiprocessors idle, so a row's bits depend
    on the number of rows. On Hopper the split is the only cause (MMA-Sim, arXiv 2511.10909); the probe of products
    tests whether rows are independent then. A graph that is captured in the block replays the same products later.

    The settings are the process's, so one thread at a time is in the block: another model's exact pass that isn't a
    replay waits. Other products in half precision, in any thread, have no split either meanwhile: their last bits may
    change, and torch raises an error for those that cuBLASLt can't compute.
    """
    cuda, matmul = torch.backends.cuda, torch.backends.cuda.matmul
    with _CHANGING:
        library = cuda.preferred_blas_library()
        # A setter takes both values, but its getter returns the first one alone.
        before = [(name, (getattr(matmul, name), getattr(matmul, f"{name}_split_k"))) for name in _NAMES]
        try:
            with warnings.catch_warnings(action="ignore"):  # that it is experimental
                cuda.preferred_blas_library("cublaslt")  # cuBLAS itself has no way to bar the split
            for name in _NAMES:
                setattr(matmul, name, (False, False))
            yield
        finally:
            for name, allowed in before:
                setattr(matmul, name, allowed)
            cuda.preferred_blas_library(library)
