"""Fixed shapes: the tokens of the hf backend, few distinct shapes, and refusals that say why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdec import Generator, ModelError
from specdec.backends import static
from specdec.backends.static import Inputs, StaticBackend
from specdec.masks.dense import DenseCompiler
from specdec.probes.examination import examine
from specdec.target import Target
from specdec.tree import DraftTree
from tests.support import families
from tests.support.generators import open_row

PROMPTS = [[3, 5, 7, 3, 5, 7, 3], [9], list(range(2, 60)), [4, 4]]


@pytest.mark.parametrize("family", ["llama", "mistral-window", "gemma3", "gpt2", "qwen3_moe"])
def test_its_tokens_are_those_of_hf(family: str) -> None:
    model = families.make(*families.TREES[family])
    settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.0, "seed": 5}
    for proposer in ("autoregressive", "lookahead:N=3,W=3,G=3", "prompt_lookup:num_matches=3"):
        texts = [
            [
                result.token_ids
                for result in Generator(
                    model, proposer=proposer, backend=backend, numerics="fast", max_batch_size=3
                ).generate(PROMPTS, **settings)
            ]
            for backend in ("static", "hf")
        ]
        assert texts[0] == texts[1]


def test_a_generation_has_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = set[tuple[int, ...]]()
    call = StaticBackend._call

    def noting(self: StaticBackend, inputs: Inputs, hidden: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        mask = next(iter(inputs.masks.values()))
        shapes.add((*inputs.input_ids.shape, mask.shape[3], len(inputs.columns)))
        return call(self, inputs, hidden)

    generator = Generator(
        families.make(*families.TREES["llama"]), proposer="prompt_lookup", backend="static", numerics="fast"
    )
    monkeypatch.setattr(StaticBackend, "_call", noting)
    stats = generator.generate(PROMPTS[0], max_new_tokens=120).stats
    assert stats.steps > 30
    assert {width for _, width, _, _ in shapes} <= set(StaticBackend.widths)
    assert {slots for _, _, slots, _ in shapes} == {256}
    assert len(shapes) <= 6


def test_buffers_stay_where_they_are_from_one_request_to_the_next() -> None:
    backend = examine(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    target = Target(backend, DenseCompiler())
    row = open_row(target, PROMPTS[0])
    buffer = backend._cache.layers[0].keys
    target.release(row)
    open_row(target, PROMPTS[2])
    assert backend._cache.layers[0].keys is buffer


class PretendGraph:
    """Replays a pass as a CUDA graph does: with the inputs' own tensors, and all else as it was when captured."""

    num_replays = 0

    def __init__(self, run: Callable[[Inputs], torch.Tensor], inputs: Inputs, pool: Any) -> None:
        self._run, self._inputs = run, inputs
        self._place = run.func.__self__._placement  # type: ignore[attr-defined]  # a partial of the backend's method
        self._captured = self._place.first, self._place.visible

    def __call__(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        type(self).num_replays += 1
        self._inputs.copy_(inputs)
        self._place.first, self._place.visible = self._captured
        return self._run(self._inputs)


def test_replayed_passes_give_the_tokens_of_hf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "Graph", PretendGraph)
    monkeypatch.setattr(PretendGraph, "num_replays", 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    load = StaticBackend.__init__

    def loaded(self: StaticBackend, *args: Any) -> None:
        load(self, *args)
        self._captures = True

    monkeypatch.setattr(StaticBackend, "__init__", loaded)
    model = families.make(*families.TREES["llama"])
    texts = [
        [
            result.token_ids
            for result in Generator(
                model, proposer="prompt_lookup:num_matches=3", backend=backend, numerics="fast", max_batch_size=3
            ).generate([*PROMPTS, *reversed(PROMPTS)], max_new_tokens=12)
        ]
        for backend in ("static", "hf")
    ]
    assert PretendGraph.num_replays > 10
    assert all(texts[0])
    assert texts[0] == texts[1]


def test_a_pass_is_warm_once_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "Graph", PretendGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    backend = examine(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    backend._captures = True
    target, warm = Target(backend, DenseCompiler()), []
    row = open_row(target, PROMPTS[2])
    for _ in range(4):
        target.forward(target.compile({row: DraftTree(5)}))
        warm.append(target.is_warm)
    assert warm == [False, False, True, True]


def test_a_model_that_cannot_be_captured_is_driven_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(static, "Graph", refused)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    backend = examine(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    plain = Target(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()), DenseCompiler())
    backend._captures = True
    tokens = []
    for target in (Target(backend, DenseCompiler()), plain):
        row = open_row(target, PROMPTS[2])
        tokens.append([target.forward(target.compile({row: DraftTree(5)})).rows[row].argmax(0) for _ in range(3)])
    assert tokens[0] == tokens[1]
    assert not backend._captures
    assert backend.is_warm


def test_inputs_made_in_a_callers_inference_mode_serve_outside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "Graph", PretendGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    backend = examine(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    backend._captures = True
    target = Target(backend, DenseCompiler())
    with torch.inference_mode():
        row = open_row(target, PROMPTS[2])
        expected = [target.forward(target.compile({row: DraftTree(5)})).rows[row].argmax(0) for _ in range(3)]
    assert target.forward(target.compile({row: DraftTree(5)})).rows[row].argmax(0) == expected[0]


def test_what_it_cannot_do_is_refused_with_the_reason() -> None:
    chains_only = families.make(*families.CHAINS["mpt"])
    with pytest.raises(ModelError, match=r"no chains of varying length: .*; use backend='hf'"):
        Generator(chains_only, backend="static", numerics="fast")
    llama = families.make(*families.TREES["llama"])
    with pytest.raises(ModelError, match=r"takes dense masks: leave out mask=, or use backend='hf'"):
        Generator(llama, backend="static", mask="split")
    with pytest.raises(ModelError, match="the static backend has dense masks only"):
        Generator(llama, backend="static", numerics="exact")
    automatic = Generator(llama, backend="static").numerics
    assert (automatic.mode, automatic.is_bit_exact) == ("fast", False)
    assert "the static backend has dense masks only" in automatic.inexact
