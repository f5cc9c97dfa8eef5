"""The settings of cuBLAS in exact numerics: set in the block, and the caller's afterwards."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch

from specdec import models
from specdec.models import independent_rows as module
from specdec.models.independent_rows import independent_rows
from specdec.models.split_k import without_split_k
from tests.models.test_independent_rows import Noted

MATMUL = torch.backends.cuda.matmul
TYPES = "bf16", "fp16"
Settings = tuple[str, list[tuple[bool, bool]]]
UNDIVIDED: Settings = ("cublaslt", [(False, False)] * 2)


class Library:
    """The preferred library, as torch keeps it; a build for CPUs refuses cuBLASLt."""

    def __init__(self) -> None:
        self.name = "cublas"

    def __call__(self, name: str | None = None) -> str:
        self.name = name or self.name
        return self.name

    def settings(self) -> Settings:
        names = [f"allow_{each}_reduced_precision_reduction" for each in TYPES]
        return self.name, [(getattr(MATMUL, name), getattr(MATMUL, f"{name}_split_k")) for name in names]


@contextmanager
def reductions(bf16: tuple[bool, bool], fp16: tuple[bool, bool]) -> Iterator[None]:
    """A caller's settings; afterwards they are torch's defaults."""
    for name, allowed in zip(TYPES, (bf16, fp16), strict=True):
        setattr(MATMUL, f"allow_{name}_reduced_precision_reduction", allowed)
    try:
        yield
    finally:
        for name in TYPES:
            setattr(MATMUL, f"allow_{name}_reduced_precision_reduction", (True, True))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    if not hasattr(MATMUL, "allow_bf16_reduced_precision_reduction_split_k"):
        pytest.skip("needs torch 2.10")
    library = Library()
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", library)
    return library


@pytest.mark.parametrize("bf16", [(True, True), (False, True), (False, False)])
def test_sums_are_not_split_in_the_block_and_the_callers_settings_return(
    bf16: tuple[bool, bool], library: Library
) -> None:
    with reductions(bf16, (False, True)):
        before = library.settings()
        with suppress(ZeroDivisionError), without_split_k():
            assert library.settings() == UNDIVIDED
            with without_split_k():
                assert library.settings() == UNDIVIDED
            assert library.settings() == UNDIVIDED
            raise ZeroDivisionError
        assert library.settings() == before == ("cublas", [bf16, (False, True)])


def test_one_thread_at_a_time_changes_them(library: Library) -> None:
    has_entered, seen = threading.Event(), list[Settings]()

    def enter() -> None:
        with without_split_k():
            has_entered.set()
            seen.append(library.settings())

    before, other = library.settings(), threading.Thread(target=enter)
    with without_split_k():
        other.start()
        assert not has_entered.wait(0.05)
    other.join()
    assert seen == [UNDIVIDED]
    assert library.settings() == before


def test_exact_numerics_on_gpus_are_in_the_block(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(models), "independent_rows_kernels", Noted())  # which needs Triton
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    before = library.settings()
    with independent_rows(torch.device("cuda"), products="unsplit"):
        assert library.settings() == before  # without Triton numerics aren't exact
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    with independent_rows(torch.device("cpu"), products="unsplit"):
        assert library.settings() == before
    with independent_rows(torch.device("cuda")):
        assert library.settings() == before
    with independent_rows(torch.device("cuda"), products="unsplit"):
        assert library.settings() == UNDIVIDED
    assert library.settings() == before
