"""Every backend that can be made here: a tree equals its paths, and keeping equals starting anew."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import ROOT, ToyModel
from specdec.backends import hf as hf_module
from specdec.backends.base import Backend
from specdec.backends.hf import HFBackend
from specdec.backends.static import StaticBackend
from specdec.backends.toy import ToyBackend
from specdec.masks.dense import DenseCompiler
from specdec.plugins.registry import load_plugins
from tests import families
from tests.generators import path_to, random_tree

Plain = Callable[[list[int]], torch.Tensor]
compiler = DenseCompiler()


def toy() -> tuple[Backend, Plain]:
    model = ToyModel.random(vocab_size=families.VOCAB, order=4, seed=3)
    return ToyBackend.load(model, compiler), lambda tokens: torch.tensor(model.law(tuple(tokens))).log()


def hf() -> tuple[Backend, Plain]:
    model = families.make(*families.TREES["gemma3"])  # windowed and full layers together
    return HFBackend.load(model, compiler), lambda tokens: families.plain_logits(model, tokens)[-1]


def static() -> tuple[Backend, Plain]:
    model = families.make(*families.TREES["gemma3"])
    return StaticBackend.load(model, compiler), lambda tokens: families.plain_logits(model, tokens)[-1]


MAKERS = {"toy": toy, "hf": hf, "static": static}


def test_every_registered_backend_is_tested_here() -> None:
    own = {plugin.name for plugin in load_plugins().of_kind("backends") if plugin.distribution == "specdec"}
    assert own == set(MAKERS)


@pytest.fixture(scope="module", params=MAKERS)
def driven(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, Plain]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_module, "PREFILL_CHUNK", 8)  # so that short prompts come in several
        yield MAKERS[request.param]()


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_rows_of_any_lengths_trees_and_paths_stay_apart(
    driven: tuple[Backend, Plain], seed: int, lengths: list[int]
) -> None:
    backend, plain = driven
    rng = np.random.default_rng(seed)
    batch = [rng.integers(1, families.VOCAB, size=length).tolist() for length in lengths]
    try:
        for row, prompt in enumerate(batch):
            tree = random_tree(rng, families.VOCAB, int(rng.integers(0, 9)), prompt.pop())
            # the capacity is too small on purpose: buffers must grow
            output = backend.prefill([*prompt, tree.tokens[ROOT]], tree, capacity=8)
            for node in range(len(tree)):
                expected = plain([*prompt, tree.tokens[ROOT], *tree.path(node)])
                assert torch.allclose(output.row(0).logits(node), expected, atol=1e-5)
            path = path_to(tree, int(rng.integers(len(tree))))
            backend.keep([*([] for _ in range(row)), path])
            prompt += [tree.tokens[node] for node in path]
        for _ in range(2):
            trees = [random_tree(rng, families.VOCAB, int(rng.integers(0, 9))) for _ in batch]
            output = backend.forward(compiler.compile(trees, [len(prompt) for prompt in batch], backend.shapes))
            paths = []
            for row, (prompt, tree) in enumerate(zip(batch, trees, strict=True)):
                node = int(rng.integers(len(tree)))
                expected = plain([*prompt, tree.tokens[ROOT], *tree.path(node)])
                assert torch.allclose(output.row(row).logits(node), expected, atol=1e-5)
                paths.append(path_to(tree, node))
                prompt += [tree.tokens[node] for node in paths[-1]]
            backend.keep(paths)
            row = int(rng.integers(len(batch)))
            del batch[row][int(rng.integers(len(batch[row]) + 1)) :]
            backend.rollback(row, len(batch[row]))
            leaving = int(rng.integers(len(batch)))
            if len(batch) > 1:
                backend.release(leaving)
                batch[leaving] = batch[-1]
                batch.pop()
    finally:
        while backend.num_rows:
            backend.release(backend.num_rows - 1)
