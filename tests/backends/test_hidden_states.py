"""Hidden states are transformers', cost no other bits of logits, and come from recorded passes."""

import copy
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import PreTrainedModel

from specdec import DraftTree, Generator, ModelError
from specdec.backends.recorded import replay as replay_module
from specdec.backends.recorded.backend import RecordedBackend
from specdec.backends.static import StaticBackend
from specdec.machine import cuda_graphs
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.target import CacheRow, Target
from specdec.tree import ROOT
from tests.backends.test_static import PretendGraph
from tests.support import families
from tests.support.examined import examined_target

LAYERS = (0, 1, 2, -1, -2)
FAMILIES = [
    "llama",
    "qwen3",
    "gemma3",
    "phi3",
    "gpt2",
    "gptj",
    "gpt_neox",
    "opt",
    "mixtral",
    "gpt_oss",
    "deepseek_v3",
    "cohere2",
]
CHAINS = ["bloom"]


def target_of(model: PreTrainedModel, compiler: Any = None, backend: type[RecordedBackend] = RecordedBackend) -> Target:
    compiler = DenseCompiler() if compiler is None else compiler
    return examined_target(backend.load(model, compiler))


def states_of(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """transformers' own, (tokens, layers, size)."""
    with torch.no_grad():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.stack([states[layer][0] for layer in LAYERS], 1)


def drafted(root: int, has_branches: bool) -> DraftTree:
    """Two branches of three nodes each, or one."""
    tree = DraftTree(root)
    tree.add_chain(ROOT, [root + 1, root + 2, root + 3])
    if has_branches:
        tree.add_chain(ROOT, [root + 4, root + 5, root + 6])
    return tree


def opened(target: Target, prompts: Sequence[list[int]]) -> dict[CacheRow, list[int]]:
    """Rows that hold prompts, by row."""
    texts = {target.open(200): list(prompt) for prompt in prompts}
    for row, text in texts.items():
        target.read_all(row, text)
    return texts


@pytest.mark.parametrize("name", [*FAMILIES, *CHAINS])
def test_states_are_transformers_in_trees_and_ragged_batches_after_accepted_and_rejected_branches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uses in ("_USES_OF_SEVERAL", "_USES_OF_DRAFTS"):
        monkeypatch.setattr(replay_module, uses, 2)
    model = families.make(*{**families.TREES, **families.CHAINS}[name][:2])
    reference, target = copy.deepcopy(model), target_of(model)
    has_branches = target.shapes.takes_trees
    texts = opened(target, [[5, 9, 2], [7, 1, 8, 3, 30, 4, 11]])
    for step in range(8):
        trees = {row: drafted(40 + step, has_branches) for row in texts}
        planned = target.compile(trees, hidden=LAYERS)
        output = target.forward(planned)
        for row, text in texts.items():
            for leaf in (3, 6) if has_branches else (3,):
                path = trees[row].lineage(leaf)
                expected = states_of(reference, [*text, *(trees[row].tokens[node] for node in path)])[len(text) :]
                torch.testing.assert_close(output.rows[row].hidden(path, LAYERS), expected, atol=1e-4, rtol=0)
        kept = {row: [ROOT, 4, 5] if has_branches else [ROOT, 1] for row in texts}
        target.commit(planned, kept)
        for row, text in texts.items():
            text += [trees[row].tokens[node] for node in kept[row]]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_states_of_a_prompts_chunks_are_transformers(name: str) -> None:
    model = families.make(*families.TREES[name])
    reference, target = copy.deepcopy(model), target_of(model)
    row, text = target.open(64), [(5 * index + 3) % 90 for index in range(40)]
    for start, stop in ((0, 16), (16, 32)):
        chunk = DraftTree(text[start])
        nodes = [ROOT, *chunk.add_chain(ROOT, text[start + 1 : stop])]
        planned = target.compile({row: chunk}, hidden=LAYERS)
        found = target.forward(planned).rows[row].hidden(nodes, LAYERS)
        target.commit(planned, {row: nodes})
        torch.testing.assert_close(found, states_of(reference, text[:stop])[start:], atol=1e-4, rtol=0)
    planned = target.compile({row: DraftTree(text[-1])}, {row: text[32:-1]}, LAYERS)
    output = target.forward(planned).rows[row]
    expected = states_of(reference, text)[32:]
    torch.testing.assert_close(output.of_prefix().hidden(range(7), LAYERS), expected[:-1], atol=1e-4, rtol=0)
    torch.testing.assert_close(output.hidden([ROOT], LAYERS), expected[-1:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("compiler", [DenseCompiler(), ExactCompiler()], ids=["dense", "exact"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recorded_passes_with_states_have_the_bits_of_logits_without(
    name: str, dtype: torch.dtype, compiler: Any
) -> None:
    model = families.make(*families.TREES[name]).to(dtype)
    found = list[list[torch.Tensor]]()
    for layers in ((), LAYERS):
        target = target_of(model, compiler)
        (row,) = opened(target, [[5, 9, 2, 7]])
        logits = list[torch.Tensor]()
        for step in range(14):
            planned = target.compile({row: drafted(40, True) if step % 4 else DraftTree(40)}, hidden=layers)
            output = target.forward(planned).rows[row]
            target.commit(planned, {row: [ROOT]})
            logits.append(output.output.logits)
        assert isinstance(target.backend, RecordedBackend)
        kinds = [kind for kind in target.backend._replay._kinds.values() if kind.num_uses > 8]
        assert kinds
        assert all(kind.program is not None and not kind.fault for kind in kinds)
        found.append(logits)
    assert all(map(torch.equal, *found))


def test_passes_with_other_states_have_programs_of_their_own() -> None:
    target = target_of(families.make(*families.TREES["llama"]))
    (row,) = opened(target, [[5, 9, 2, 7]])
    for layers in (LAYERS, (), (1,)) * 7:
        planned = target.compile({row: drafted(40, True)}, hidden=layers)
        assert target.forward(planned).rows[row].output.layers == layers
        target.commit(planned, {row: [ROOT]})
    assert isinstance(target.backend, RecordedBackend)
    kinds = {key[0][2]: kind for key, kind in target.backend._replay._kinds.items() if kind.num_uses >= 7}  # type: ignore[index]
    assert kinds.keys() == {LAYERS, (), (1,)}
    assert all(kind.program is not None and not kind.fault for kind in kinds.values())


def test_a_call_for_all_hidden_states_doesnt_end_recording() -> None:
    """It leaves hooks of transformers' in the model, which do nothing in other calls."""
    model = families.make(*families.TREES["llama"])
    model(torch.tensor([[1, 2]]), output_hidden_states=True)
    target = target_of(model)
    opened(target, [[5, 9, 2, 7]])
    assert isinstance(target.backend, RecordedBackend)
    assert target.backend._replay._is_able
    model.model.layers[0].register_forward_hook(lambda *_: None)
    opened(target, [[5, 9, 2, 7]])
    assert not target.backend._replay._is_able


def test_a_model_without_a_single_list_of_layers_gives_its_own_states() -> None:
    model = families.make(*families.TREES["llama"])
    target = target_of(model)
    assert isinstance(target.backend, RecordedBackend)
    target.backend._hidden_states.is_able = False
    (row,) = opened(target, [[5, 9, 2]])
    found = target.forward(target.compile({row: DraftTree(4)}, hidden=LAYERS)).rows[row].hidden([ROOT], LAYERS)
    torch.testing.assert_close(found, states_of(model, [5, 9, 2, 4])[-1:], atol=1e-4, rtol=0)


def test_fixed_shapes_give_states_too_or_say_why_not() -> None:
    model = families.make(*families.TREES["llama"])
    reference, target = copy.deepcopy(model), target_of(model, backend=StaticBackend)
    ((row, text),) = opened(target, [[5, 9, 2]]).items()
    output = target.forward(target.compile({row: drafted(40, True)}, hidden=LAYERS)).rows[row]
    expected = states_of(reference, [*text, 40, 44, 45, 46])[-4:]
    torch.testing.assert_close(output.hidden([0, 4, 5, 6], LAYERS), expected, atol=1e-4, rtol=0)
    assert isinstance(target.backend, StaticBackend)
    target.backend._hidden_states.is_able = False
    with pytest.raises(ModelError, match="LlamaForCausalLM has no single list of layers, so the static backend"):
        target.backend.expect_hidden([1])


def test_replayed_graphs_give_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    model = families.make(*families.TREES["llama"])
    reference, target = copy.deepcopy(model), target_of(model, backend=StaticBackend)
    ((row, text),) = opened(target, [[5, 9, 2]]).items()
    assert isinstance(target.backend, StaticBackend)
    target.backend._graphs.captures = True
    for layers in (LAYERS, (), (1,), LAYERS, (1,), ()) * 2:
        rows = target.forward(target.compile({row: drafted(40, True)}, hidden=layers)).rows[row]
        assert rows.output.layers == layers
        if layers == LAYERS:
            expected = states_of(reference, [*text, 40, 44, 45, 46])[-4:]
            torch.testing.assert_close(rows.hidden([0, 4, 5, 6], LAYERS), expected, atol=1e-4, rtol=0)
    assert target.is_warm


def test_a_pass_has_states_only_while_a_request_in_it_wants_them() -> None:
    from specdec import ToyModel
    from specdec.layout import Layout
    from tests.laws.test_retention_laws import Watching

    generator = Generator(ToyModel.random(vocab_size=5), proposer="autoregressive")
    backend, wanted = generator._binding.target.backend, list[tuple[int, ...]]()
    forward = backend.forward

    def noting(layout: Layout) -> Any:
        wanted.append(layout.hidden)
        return forward(layout)

    backend.forward = noting  # type: ignore[method-assign]
    with generator.open_batch(max_batch_size=2) as batch:
        batch.add([1, 2, 3], max_new_tokens=12)
        batch.add([1, 2, 3], proposer=Watching(seen=[]), max_new_tokens=2)
        while batch.advance() is not None:
            pass
    assert wanted[0] == () == wanted[-1]
    assert (0,) in wanted
