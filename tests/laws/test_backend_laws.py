"""Every backend that can be made here: a tree equals its paths, and keeping equals starting anew."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from specdec import ToyModel
from specdec.backends import Backend, HFBackend, KVBlock, Output, StaticBackend, ToyBackend
from specdec.layout import Layout
from specdec.masks import DenseCompiler, SlotTableCompiler
from specdec.plugins import load_plugins
from specdec.testing import check_backend
from tests.support import families
from tests.support.examined import examined
from tests.support.examples import examples

Plain = Callable[[list[int]], torch.Tensor]
compiler = DenseCompiler()


def plain_of(model: PreTrainedModel) -> Plain:
    """The model's own logits after a text; one pass without a cache also answers for every beginning of its text."""
    known = dict[tuple[int, ...], torch.Tensor]()

    def plain(tokens: list[int]) -> torch.Tensor:
        if tuple(tokens) not in known:
            for length, logits in enumerate(families.plain_logits(model, tokens), 1):
                known[tuple(tokens[:length])] = logits
        return known[tuple(tokens)]

    return plain


def toy() -> tuple[Backend, Plain]:
    model = ToyModel.random(vocab_size=families.VOCAB, order=4, seed=3)
    return ToyBackend.load(model, compiler), lambda tokens: torch.tensor(model.probs(tuple(tokens))).log()


def hf() -> tuple[Backend, Plain]:
    model = families.make(*families.TREES["gemma3"])  # windowed and full layers together
    return examined(HFBackend.load(model, compiler)), plain_of(model)


def static() -> tuple[Backend, Plain]:
    model = families.make(*families.TREES["gemma3"])
    return examined(StaticBackend.load(model, compiler)), plain_of(model)


def fused() -> tuple[Backend, Plain]:
    from tests.backends.fused.test_fused_backend import OnCpu  # which uses plain_of

    model = families.make(*families.TREES["gemma3"])
    return examined(OnCpu.load(model, SlotTableCompiler())), plain_of(model)


MAKERS = {"toy": toy, "hf": hf, "static": static, "fused": fused}


def test_every_registered_backend_is_tested_here() -> None:
    own = {plugin.name for plugin in load_plugins().of_kind("backends") if plugin.distribution == "specdec"}
    assert own == set(MAKERS)


@pytest.fixture(scope="module", params=MAKERS)
def driven(request: pytest.FixtureRequest) -> tuple[Backend, Plain]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.backends.supported_passes.PREFILL_CHUNK", 8)  # so that short prompts come in several
        backend, plain = MAKERS[request.param]()
    backend.shapes = replace(backend.shapes, chunk=8)
    return backend, plain


@examples(6)
@given(seed=st.integers(0, 10**6))
def test_rows_of_any_lengths_trees_and_paths_stay_apart(driven: tuple[Backend, Plain], seed: int) -> None:
    backend, plain = driven
    check_backend(backend, plain, getattr(backend, "compiler", compiler), seed=seed)


class Careless(ToyBackend):
    """The toy backend with one law broken."""

    def __init__(self, model: ToyModel, broken: str) -> None:
        super().__init__(model, compiler)
        self.broken = broken

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        if self.broken == "commit":
            paths = [range(len(path)) for path in paths]
        super().commit(paths)

    def rollback(self, row: int, length: int) -> None:
        super().rollback(row, length if self.broken != "rollback" else max(0, length - 1))

    def release(self, row: int) -> None:
        super().release(row if self.broken != "release" else self.num_rows - 1)

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        return super().copy_block(row, start, stop if self.broken != "copy_block" else stop - 1)

    def forward(self, layout: Layout) -> Output:
        if self.broken == "first":
            layout = replace(layout, first=0)
        output = super().forward(layout)
        if self.broken == "rows" and len(layout.lengths) > 1:
            output.logits[-1] = output.logits[0]
        return output


@pytest.mark.parametrize("broken", ["commit", "rollback", "release", "copy_block", "first", "rows"])
def test_a_backend_that_breaks_a_law_is_found_out(broken: str) -> None:
    model = ToyModel.random(vocab_size=families.VOCAB, order=4, seed=3)

    def plain(tokens: list[int]) -> torch.Tensor:
        return torch.tensor(model.probs(tuple(tokens))).log()

    def check() -> None:
        for seed in range(5):
            check_backend(Careless(model, broken), plain, seed=seed)

    with pytest.raises((AssertionError, IndexError)):  # the latter is the toy's own, for slots that nothing is in
        check()
