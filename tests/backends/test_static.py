"""Fixed shapes: the tokens of the hf backend, few distinct shapes, and refusals that say why."""

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specdec import Generator, ModelError
from specdec.backends import static
from specdec.backends.static import StaticBackend
from specdec.layout import Compiler
from specdec.machine import cuda_graphs
from specdec.machine.cuda_graphs import GraphInputs
from specdec.masks.dense import DenseCompiler
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.target import Target
from specdec.tree import DraftTree
from tests.support import families
from tests.support.examined import examined
from tests.support.generators import open_row
from tests.support.own_attention import OwnAttention

PROMPTS = [[3, 5, 7, 3, 5, 7, 3], [9], list(range(2, 60)), [4, 4]]


@pytest.mark.parametrize("family", ["llama", "mistral-window", "gemma3", "gpt2", "qwen3_moe"])
def test_its_tokens_are_those_of_hf(family: str) -> None:
    model = families.make(*families.TREES[family])
    settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.0, "seed": 5}

    def texts(proposer: str, backend: str) -> list[tuple[int, ...]]:
        generator = Generator(model, proposer=proposer, backend=backend, numerics="fast", max_batch_size=3)
        return [result.token_ids for result in generator.generate(PROMPTS, **settings)]

    expected = texts("autoregressive", "hf")
    for proposer in ("autoregressive", "lookahead:N=3,W=3,G=3", "prompt_lookup:num_matches=3"):
        assert texts(proposer, "static") == expected


def test_a_generation_has_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = set[tuple[int, ...]]()
    call = StaticBackend._call

    def noting(self: StaticBackend, inputs: GraphInputs, *others: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        mask = next(iter(inputs.tensors.values()))
        shapes.add((*inputs.numbers["input_ids"].shape, mask.shape[3], len(inputs.numbers["columns"])))
        return call(self, inputs, *others, **named)

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
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    target = Target(backend, DenseCompiler())
    row = open_row(target, PROMPTS[0])
    buffer = backend._cache.layers[0].keys
    target.release(row)
    open_row(target, PROMPTS[2])
    assert backend._cache.layers[0].keys is buffer


class PretendGraph:
    """Replays a pass as a CUDA graph does: with the inputs' own tensors, and all else as it was when captured."""

    num_replays = 0

    def __init__(self, run: Callable[[GraphInputs], torch.Tensor], inputs: GraphInputs, pool: Any) -> None:
        self._run, self._inputs = run, inputs
        self._place = run.func.__self__._placement  # type: ignore[attr-defined]  # a partial of the backend's method
        self._captured = self._place.first, self._place.visible

    def __call__(self, inputs: GraphInputs) -> tuple[torch.Tensor, ...]:
        type(self).num_replays += 1
        self._inputs.copy_(inputs)
        self._place.first, self._place.visible = self._captured
        return self._run(self._inputs)


@pytest.mark.parametrize("options", [{"numerics": "fast"}, {"mask": "slot_table"}])
def test_replayed_passes_give_the_tokens_of_hf(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(PretendGraph, "num_replays", 0)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    load = StaticBackend.__init__

    def loaded(self: StaticBackend, *args: Any) -> None:
        load(self, *args)
        self._graphs.captures = True

    monkeypatch.setattr(StaticBackend, "__init__", loaded)
    model = families.make(*families.TREES["llama"])
    texts = [
        [
            result.token_ids
            for result in Generator(
                model, proposer="prompt_lookup:num_matches=3", backend=backend, max_batch_size=3, **options
            ).generate([*PROMPTS, *reversed(PROMPTS)], max_new_tokens=12)
        ]
        for backend in ("static", "hf")
    ]
    assert PretendGraph.num_replays > 10
    assert all(texts[0])
    assert texts[0] == texts[1]


def test_a_pass_is_warm_once_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    backend._graphs.captures = True
    target, warm = Target(backend, DenseCompiler()), []
    row = open_row(target, PROMPTS[2])
    for _ in range(4):
        target.forward(target.compile({row: DraftTree(5)}))
        warm.append(target.is_warm)
    assert warm == [False, False, True, True]


def test_a_model_that_cannot_be_captured_is_driven_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "Graph", refused)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    plain = Target(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()), DenseCompiler())
    backend._graphs.captures = True
    tokens = []
    for target in (Target(backend, DenseCompiler()), plain):
        row = open_row(target, PROMPTS[2])
        tokens.append([target.forward(target.compile({row: DraftTree(5)})).rows[row].argmax(0) for _ in range(3)])
    assert tokens[0] == tokens[1]
    assert not backend._graphs.captures
    assert backend.is_warm


def captured(
    monkeypatch: pytest.MonkeyPatch,
    model: Any = None,
    compiler: Compiler = DenseCompiler(),  # noqa: B008 - frozen
) -> StaticBackend:
    """A backend that replays pretended graphs."""
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    model = families.make(*families.TREES["llama"]) if model is None else model
    backend = examined(StaticBackend.load(model, compiler))
    backend._graphs.captures = True
    return backend


def passed(target: Target, num_passes: int = 4) -> int:
    """Run equal passes in a row of its own; return the number of replays."""
    row, before = open_row(target, PROMPTS[2]), PretendGraph.num_replays
    for _ in range(num_passes):
        target.forward(target.compile({row: DraftTree(5)}))
    target.release(row)
    return PretendGraph.num_replays - before


def hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda *_: None)


def replaced_data(model: Any) -> None:
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = 2 * weight.data


def assigned(model: Any) -> None:
    model.load_state_dict({name: 2 * each for name, each in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize(("change", "num_replays"), [(hook, 0), (replaced_data, 3), (assigned, 3)])
def test_graphs_of_a_model_that_was_changed_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], num_replays: int
) -> None:
    """A changed model's passes are captured anew, from their second on, and those of a model with hooks never."""
    model = families.make(*families.TREES["llama"])
    backend = captured(monkeypatch, model)
    target = Target(backend, DenseCompiler())
    passed(target)
    assert passed(target) == 4
    change(model)
    assert passed(target) == num_replays


@pytest.mark.parametrize(("compiler", "num_graphs"), [(SlotTableCompiler(), 1), (DenseCompiler(), 2)])
def test_masks_of_fixed_shape_need_one_graph_for_texts_of_all_lengths(
    monkeypatch: pytest.MonkeyPatch, compiler: Compiler, num_graphs: int
) -> None:
    backend = captured(monkeypatch, compiler=compiler)
    target, plain = Target(backend, compiler), Target(StaticBackend.load(backend.model, compiler), compiler)
    rows = [each.open(1000) for each in (target, plain)]
    keys = list[Any]()
    for _ in range(3):
        found = []
        for each, row in zip((target, plain), rows, strict=True):
            each.read(row, list(range(1, 90)) * 3)
            found.append([each.forward(each.compile({row: DraftTree(5)})).rows[row].argmax(0) for _ in range(3)])
        assert found[0] == found[1]
        keys += [key for key in backend._graphs._graphs if key[2][0][2][1] <= 8]
    assert len(set(keys)) == num_graphs  # of a pass over one token, padded


def test_a_deep_models_first_layers_are_tried_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.deep("llama", 8, has_spikes=True).to(torch.bfloat16)
    depths, call = set[int](), StaticBackend._call
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())

    def noting(self: StaticBackend, inputs: GraphInputs, *others: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        depths.add(len(model.model.layers))
        return call(self, inputs, *others, **named)

    monkeypatch.setattr(StaticBackend, "_call", noting)
    backend = StaticBackend.load(model, DenseCompiler())
    backend._graphs.captures = True
    before = PretendGraph.num_replays
    assert examined(backend).shapes.takes_trees, backend.examination.reason
    assert depths == {2, 8}
    assert PretendGraph.num_replays > before


def test_a_request_that_was_too_large_leaves_room_for_the_next() -> None:
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    target = Target(backend, DenseCompiler())
    rows = [open_row(target, PROMPTS[2])]
    held = backend.cache_bytes(())
    for _ in range(2):
        rows.append(target.open(10**12))  # there never was memory for it
        for row in rows:
            target.release(row)
        assert passed(target) == 0
        assert backend.cache_bytes(()) <= held
        rows.clear()


def test_many_short_rows_are_dropped_before_a_long_one_comes() -> None:
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    target = Target(backend, DenseCompiler())
    rows = [open_row(target, PROMPTS[0]) for _ in range(8)]
    for row in rows:
        target.release(row)
    told = backend.cache_bytes([3000])
    row = target.open(3000)
    target.read_all(row, PROMPTS[2])
    assert len(backend._cache.layers[0].keys) == 1
    assert backend.cache_bytes(()) <= told


def test_a_long_texts_memory_is_given_back_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = captured(monkeypatch)
    target = Target(backend, DenseCompiler())
    long, short = target.open(3000), open_row(target, PROMPTS[2])
    target.read_all(long, PROMPTS[2])
    needed = backend.cache_bytes([300, 300])
    expected = target.forward(target.compile({short: DraftTree(5)})).rows[short].logits(0)
    target.release(long)
    assert backend.trim()
    assert backend.cache_bytes([300, 300]) < needed / 2
    found = [target.forward(target.compile({short: DraftTree(5)})).rows[short].logits(0) for _ in range(3)]
    assert all(torch.equal(each, expected) for each in found)
    assert not backend.trim(), "what passes need is kept"


def test_nothing_is_left_of_a_closed_row() -> None:
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    passed(Target(backend, DenseCompiler()))
    assert not any(layer.keys.any() or layer.values.any() for layer in backend._cache.layers)


def test_inputs_made_in_a_callers_inference_mode_serve_outside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    backend = examined(StaticBackend.load(families.make(*families.TREES["llama"]), DenseCompiler()))
    backend._graphs.captures = True
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
    with pytest.raises(ModelError, match=r"takes dense masks and masks of fixed shape"):
        Generator(llama, backend="static", mask=OwnAttention())
    with pytest.raises(ModelError, match="exact numerics on GPUs with Triton only"):
        Generator(llama, backend="static", numerics="exact")
    automatic = Generator(llama, backend="static").numerics
    assert (automatic.mode, automatic.is_bit_exact) == ("fast", False)
    assert "exact numerics on GPUs with Triton only" in automatic.inexact


def test_batches_of_other_sizes_share_shapes_and_leave_closed_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, call = set[int](), StaticBackend._call

    def noting(self: StaticBackend, inputs: GraphInputs, *others: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        shapes.add(len(inputs.numbers["input_ids"]))
        return call(self, inputs, *others, **named)

    monkeypatch.setattr(StaticBackend, "_call", noting)
    model = families.make(*families.TREES["gemma3"])
    prompts, lengths = [[1, 2, 3], [4, 5], [6], [7, 8, 9], [10]], (3, 12, 6, 15, 9)
    with Generator(model, backend="hf", numerics="fast", proposer="prompt_lookup") as plain:
        texts = [
            plain.generate(prompt, max_new_tokens=length).token_ids
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
    with Generator(model, backend="static", numerics="fast", proposer="prompt_lookup") as generator:
        with generator.open_batch() as batch:
            for prompt, length in zip(prompts, lengths, strict=True):
                batch.add(prompt, max_new_tokens=length)
            found = dict[int, list[int]]()
            while record := batch.advance():
                for outcome in record.outcomes:
                    found.setdefault(outcome.request, []).extend(outcome.tokens)
        assert [*map(tuple, found.values())] == texts
    assert shapes <= {1, 2, 4, 8}


@pytest.mark.parametrize("works", [True, False])
def test_tokens_are_drawn_in_the_pass_where_that_works(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    draw = Mock(side_effect=None if works else RuntimeError("Failed to find C compiler"))
    monkeypatch.setattr(static, "has_kernels", lambda _: True)
    monkeypatch.setitem(sys.modules, "specdec.sampling.keyed_draws", Mock(draw=draw))
    assert StaticBackend._drawing(torch.device("cpu")) is (draw if works else None)
    assert draw.call_count == 1
