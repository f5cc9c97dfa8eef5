"""Recorded passes: the same bits as the model's own forward, and no recording where Python depends on the input."""

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel

from specdec import DraftTree, Generator
from specdec.backends.cache import RaggedCache
from specdec.backends.recorded import replay as replay_module
from specdec.backends.recorded.backend import RecordedBackend
from specdec.backends.recorded.replay import Replay
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.models.notes import notes_of
from specdec.runtime.probes.costs import measure_costs
from specdec.target import CacheRow, Target
from specdec.tree import ROOT
from tests.support import families
from tests.support.examined import examined_target
from tests.support.plain import decode_model

PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]
UNRECORDED = {"gemma2", "gpt_oss", "deepseek_v3", "opt"}  # eager attention, keys that are made of cached ones, old code
RECORDED = sorted(families.TREES.keys() - UNRECORDED)


def replay_of(target: Target) -> Replay:
    backend = target.backend
    assert isinstance(backend, RecordedBackend)
    return backend._replay


def kinds(replay: Replay) -> list[Any]:
    return [kind for kind in replay._kinds.values() if kind.num_uses > 6]


def target_of(model: PreTrainedModel, compiler: Any) -> Target:
    return examined_target(RecordedBackend.load(model, compiler))


def tree(width: int) -> DraftTree:
    """A chain with a branch below its root."""
    grown = DraftTree(4)
    grown.add_chain(ROOT, list(range(5, 3 + width)))
    if width > 1:
        grown.add(ROOT, 3)
    return grown


def opened(target: Target) -> CacheRow:
    """A row that holds the prompt."""
    row = target.open(256)
    target.read_all(row, PROMPT)
    return row


def one_pass(target: Target, row: CacheRow, width: int) -> torch.Tensor:
    """The logits of a pass of so many nodes, of which the root is kept."""
    planned = target.compile({row: tree(width)})
    answers = target.forward(planned).rows[row]
    target.commit(planned, {row: [ROOT]})
    return torch.stack([answers.logits(node) for node in range(width)])


def passes(target: Target, widths: list[int]) -> list[torch.Tensor]:
    """The logits of passes of so many nodes, each behind one token more than the one before."""
    row = opened(target)
    logits = [one_pass(target, row, width) for width in widths]
    target.release(row)
    return logits


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_passes_have_the_bits_of_the_models_own(name: str) -> None:
    model = families.make(*families.TREES[name])
    target = target_of(model, DenseCompiler())
    widths = [1, 4, 1, 6, 1, 4, 1, 7, 1, 6, 1, 9, 1, 12, 1, 4, 7, 1, 4, 9, 1, 2, 2]
    with torch.inference_mode():
        recorded = passes(target, widths)
        replay = replay_of(target)
        assert [kind.fault for kind in kinds(replay)] == ["", ""]
        assert {kind.program.width for kind in kinds(replay)} == {1, None}, "one of any number of nodes, one of a node"
        replay.outputs = lambda forward, *_: forward()  # type: ignore[method-assign]  # the model's own forward alone
        own = passes(target, widths)
    assert all(map(torch.equal, recorded, own))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "qwen3_moe"])
def test_one_program_serves_batches_of_any_number_of_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "_USES_OF_SEVERAL", 3)
    monkeypatch.setattr(replay_module, "_USES_OF_DRAFTS", 3)
    model = families.make(*families.TREES[name])
    target = target_of(model, DenseCompiler())

    def logits_of_batches() -> list[torch.Tensor]:
        rows, logits = [opened(target) for _ in range(7)], []
        for count, width in [*product((2, 3, 5, 7, 4, 6, 3), (1, 4, 6)), *[(2, 1), (4, 5), (7, 1)] * 3]:
            planned = target.compile({row: tree(width) for row in rows[:count]})
            answers = target.forward(planned).rows
            target.commit(planned, {row: [ROOT] for row in rows[:count]})
            logits += [answers[row].logits(node) for row in rows[:count] for node in range(width)]
        for row in rows:
            target.release(row)
        return logits

    with torch.inference_mode():
        recorded = logits_of_batches()
        replay = replay_of(target)
        batches = {(kind.fault, kind.program.width) for kind in kinds(replay) if kind.program.rows is None}
        assert batches == {("", 1), ("", None)}
        replay.outputs = lambda forward, *_: forward()  # type: ignore[method-assign]  # the model's own forward alone
        own = logits_of_batches()
    assert all(map(torch.equal, recorded, own))


def test_programs_are_what_passes_run() -> None:
    model = families.make(*families.TREES["llama"])
    target = target_of(model, ExactCompiler())
    calls = []
    forward = model.model.layers[0].mlp.__class__.forward
    row = opened(target)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            type(model.model.layers[0].mlp), "forward", lambda *args: calls.append(len(calls)) or forward(*args)
        )
        numbers = []
        for _ in range(12):
            one_pass(target, row, 5)
            numbers.append(len(calls))
    assert numbers[5] < numbers[6] == numbers[-1], "behind the first passes, modelling code is not called"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "qwen2-window", "qwen3_moe"])
def test_text_of_recorded_passes_in_a_ragged_batch(name: str) -> None:
    model = families.make(*families.TREES[name])
    prompts = [PROMPT, PROMPT[:4], PROMPT * 2]
    generator = Generator(model, proposer="lookahead:N=3,W=3,G=3")
    results = generator.generate(prompts, max_new_tokens=40, eos_token_id=())
    assert [list(result.token_ids) for result in results] == [
        decode_model(model, prompt, 40, None, eos=()) for prompt in prompts
    ]


class Changed(nn.Module):
    """An MLP behind some Python."""

    def __init__(self, mlp: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.mlp, self.change = mlp, change

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.mlp(self.change(hidden))
        return output


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> LlamaForCausalLM:
    model = families.make(*families.TREES["llama"])
    layer = model.model.layers[0]
    layer.mlp = Changed(layer.mlp, change)
    return model.eval()


ONE = torch.ones(())

UNRECORDABLE = {  # none of it changes what a right model gives
    "a branch": (lambda x: x if x.isfinite().all() else x * 2, "reads numbers"),
    "a number read": (lambda x: x * (1 if x.amax().item() < 1e9 else 2), "reads numbers"),
    "a loop over numbers": (lambda x: x + sum(0 for value in x.flatten().tolist() if value > 0), "reads numbers"),
    "a shape by numbers": (lambda x: x + 0 * x[x > 0].numel(), "shape depends on numbers"),
    "another shape by numbers": (lambda x: x + 0 * x.nonzero().shape[0], "shape depends on numbers"),
    "a tensor from elsewhere": (lambda x: x * ONE, "isn't one of its weights"),
}


@pytest.mark.parametrize(("change", "fault"), UNRECORDABLE.values(), ids=UNRECORDABLE)
def test_python_that_depends_on_the_input_is_not_recorded(change: Callable[..., Any], fault: str) -> None:
    model = changed(change)
    target = target_of(model, DenseCompiler())
    passes(target, [1] * 12)
    assert all(fault in kind.fault and kind.program is None for kind in kinds(replay_of(target)))
    text = Generator(model, proposer="autoregressive", numerics="fast").generate(
        PROMPT, max_new_tokens=24, eos_token_id=()
    )
    assert list(text.token_ids) == decode_model(model, PROMPT, 24, None, eos=())


def test_python_that_counts_its_calls_is_not_recorded() -> None:
    calls: list[int] = []
    model = changed(lambda x: torch.add(x, torch.zeros_like(x), alpha=calls.append(0) or len(calls)))
    target = target_of(model, DenseCompiler())
    calls.clear()
    passes(target, [1] * 12)
    (kind,) = kinds(replay_of(target))
    assert "an integer depends on the input" in kind.fault
    assert len(calls) == 13, "each pass, and the prompt's"


@pytest.mark.usefixtures("no_findings")
@pytest.mark.parametrize(
    "differs",
    [lambda count: count > 8, lambda count: count % 2 == 1, lambda count: count % 8 == 7],
    ids=["8", "%2", "%8"],
)
def test_a_branch_by_the_number_of_nodes_is_found_out_where_it_is_taken(differs: Callable[[int], bool]) -> None:
    model = changed(lambda x: x * (1 + 1e-6) if differs(x.shape[1]) else x)
    target = target_of(model, DenseCompiler())
    widths = [4, 6, 4, 6, 4, 6, 4, 14, 6, 12, 7, 15, 9, 4, 16, 6]
    recorded = passes(target, widths)
    assert any(kind.fault for kind in kinds(replay_of(target)))
    replay_of(target).outputs = lambda forward, *_: forward()  # type: ignore[method-assign]  # as above
    assert all(map(torch.equal, recorded, passes(target, widths)))


def test_numbers_of_nodes_are_tried_unless_they_lie_between_others_with_one_of_the_same_remainder() -> None:
    target = target_of(families.make(*families.TREES["llama"]), DenseCompiler())
    num_own = [0]
    own_forward = target.backend.model.model.embed_tokens.forward

    def counted(ids: torch.Tensor) -> torch.Tensor:
        num_own[0] += 1
        return own_forward(ids)

    row = opened(target)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(target.backend.model.model.embed_tokens), "forward", lambda _, ids: counted(ids))
        runs, unsettled = [], []
        for width in [2, 2, 2, 4, 6, 20, 2, 4, 12, 10, 18, 13, 22, 3]:
            before = num_own[0]
            one_pass(target, row, width)
            runs.append((width, num_own[0] > before))
            unsettled.append(not target.is_warm)
    assert runs[8:] == [(12, False), (10, False), (18, False), (13, True), (22, True), (3, True)]
    assert unsettled[8:] == [is_held_against_its_own for _, is_held_against_its_own in runs[8:]]


def test_a_texts_first_pass_is_not_recorded() -> None:
    target = target_of(families.make(*families.TREES["llama"]), DenseCompiler())
    replay_of(target)._kinds.clear()  # of the self-test
    for _ in range(8):
        target.release(opened(target))
    assert not replay_of(target)._kinds


def test_costs_are_those_of_recorded_passes() -> None:
    target = target_of(families.make(*families.TREES["llama"]), DenseCompiler())
    replay = replay_of(target)
    replay._kinds.clear()  # of the self-test
    measure_costs(target, sizes=(1, 6, 33), context=16, repeats=1)
    recorded = [kind.trusted["nodes"] for kind in replay._kinds.values() if kind.program is not None]
    assert recorded in ([{1}, {6, 33}], [{6, 33}, {1}])


def test_hooks_are_called_in_every_pass() -> None:
    model = families.make(*families.TREES["llama"])
    target = target_of(model, DenseCompiler())
    passes(target, [1] * 10)
    seen: list[int] = []
    handle = model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    passes(target, [1] * 10)
    assert len(seen) == 11
    handle.remove()
    passes(target, [1] * 10)
    assert len(seen) == 11


def test_a_weight_that_is_replaced_is_read_from_the_next_prompt_on() -> None:
    model = families.make(*families.TREES["llama"])
    generator = Generator(model, proposer="autoregressive", weights="stock")
    generator.generate(PROMPT, max_new_tokens=24, eos_token_id=())
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))
    text = generator.generate(PROMPT, max_new_tokens=24, eos_token_id=())
    assert list(text.token_ids) == decode_model(model, PROMPT, 24, None, eos=())


@pytest.mark.usefixtures("no_findings")
def test_trust_ends_with_the_program_that_earned_it() -> None:
    model = changed(lambda x: x + torch.arange(0, 2 * x.shape[1])[-1] * 1e-6)
    target = target_of(model, DenseCompiler())
    widths = [5, 5, 5, 5, 5, 7, 5, 5, 9, 5]
    recorded = passes(target, widths)
    replay_of(target).outputs = lambda forward, *_: forward()  # type: ignore[method-assign]  # as above
    assert all(map(torch.equal, recorded, passes(target, widths)))


def test_a_program_that_fails_makes_way_for_the_model() -> None:
    def blocks(x: torch.Tensor) -> torch.Tensor:
        """A shape that some numbers of nodes have, and others not."""
        return x.unflatten(1, (-1, 4)).flatten(1, 2) if x.shape[1] % 4 == 0 else x

    model = changed(blocks)
    target = target_of(model, DenseCompiler())
    widths = [4, 4, 4, 4, 8, 8, 4, 6, 7, 4]
    recorded = passes(target, widths)
    replay_of(target).outputs = lambda forward, *_: forward()  # type: ignore[method-assign]  # as above
    assert all(map(torch.equal, recorded, passes(target, widths)))


class Switch(nn.Module):
    """An adapter that can be switched off, and may count its calls."""

    def __init__(self, mlp: nn.Module, counts: bool = False) -> None:
        super().__init__()
        self.mlp, self.counts, self.scales, self.num_calls = mlp, counts, {"default": 1.0}, 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_calls += self.counts
        output: torch.Tensor = self.mlp(hidden) * self.scales["default"]
        return output


def switchable(counts: bool = False) -> tuple[LlamaForCausalLM, Switch]:
    model = families.make(*families.TREES["llama"])
    switch = Switch(model.model.layers[0].mlp, counts)
    model.model.layers[0].mlp = switch
    return model.eval(), switch


def test_an_adapter_that_is_switched_is_followed() -> None:
    model, switch = switchable()
    generator = Generator(model, proposer="autoregressive")
    texts = []
    for scale in (1.0, 4.0, 1.0):
        switch.scales["default"] = scale
        texts.append(list(generator.generate(PROMPT, max_new_tokens=24, eos_token_id=()).token_ids))
        assert texts[-1] == decode_model(model, PROMPT, 24, None, eos=())
    assert texts[0] != texts[1]


def test_a_function_that_is_replaced_is_followed() -> None:
    model, switch = switchable()
    switch.scales = {"default": 1.0, "all": [{"scales": None}]}
    switch.scales["all"][0]["scales"] = switch.scales  # a container that holds itself
    generator = Generator(model, proposer="autoregressive")
    for factor in (1.0, 4.0, 2.0, 8.0):
        switch.mlp.act_fn = Scaled(factor)
        text = generator.generate(PROMPT, max_new_tokens=24, eos_token_id=()).token_ids
        assert list(text) == decode_model(model, PROMPT, 24, None, eos=())


class Scaled(nn.Module):
    """An activation whose factor is in a function."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.function = lambda hidden: torch.nn.functional.silu(hidden) * factor

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.function(hidden)


def test_an_open_stream_goes_on_while_another_generator_is_made() -> None:
    model = families.make("LlamaConfig", {**families.SMALL, "num_hidden_layers": 6}).bfloat16()
    generator = Generator(model, proposer="autoregressive", numerics="fast")
    stream = generator.stream(PROMPT, max_new_tokens=60, eos_token_id=())
    tokens = [*next(stream).token_ids, *next(stream).token_ids]
    notes_of(model)._facts.clear()  # so that its first layers are tried again
    Generator(model, proposer="jacobi", numerics="fast")
    for chunk in stream:
        tokens += chunk.token_ids
    again = generator.generate(PROMPT, max_new_tokens=60, eos_token_id=())
    assert tokens == list(again.token_ids)


def test_keys_whose_size_is_asked_for_are_not_recorded() -> None:
    model = families.make(*families.TREES["llama"])
    with pytest.MonkeyPatch.context() as patched:
        update = RaggedCache.update

        def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
            states = update(self, *args, **kwargs)
            return states if states[0].shape[2] < 1000 else states[::-1]

        patched.setattr(RaggedCache, "update", asked)
        target = target_of(model, DenseCompiler())
        passes(target, [1] * 12)
    assert ["reads numbers" in kind.fault for kind in kinds(replay_of(target))] == [True]


def test_a_module_that_keeps_state_is_not_recorded() -> None:
    model, switch = switchable(counts=True)
    target = target_of(model, DenseCompiler())
    before = switch.num_calls
    passes(target, [1] * 12)
    (kind,) = kinds(replay_of(target))
    assert kind.fault == "its code keeps state"
    assert switch.num_calls == before + 13


def test_a_copy_of_a_model_has_recordings_of_its_own() -> None:
    model = families.make(*families.TREES["llama"])
    passes(target_of(model, DenseCompiler()), [1] * 10)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    text = Generator(other, proposer="autoregressive").generate(PROMPT, max_new_tokens=24, eos_token_id=())
    assert list(text.token_ids) == decode_model(other, PROMPT, 24, None, eos=())
