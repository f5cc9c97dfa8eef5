"""A trace against plain decoding, and against what the drafter itself was told."""

import json
from dataclasses import replace
from typing import Any

import pytest

from specdec import (
    Drafter,
    DraftTree,
    Engine,
    Feedback,
    Generator,
    LookaheadProposer,
    PluginError,
    Proposer,
    RequestError,
    Role,
    ToyModel,
)
from specdec.apps.pictures.trace import Branch, Recorder, TraceStep
from tests.support.byte_tokenizer import byte_ids, trained
from tests.support.families import CHAINS, make
from tests.support.scripted import Scripted, root_alone

TOY = ToyModel.random(vocab_size=8, sharpness=4.0)
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
SETTINGS = {"max_new_tokens": 24, "temperature": 0.8, "seed": 5}


class _Bushy(Proposer):
    """Two tokens below the root and two below the first of them; writes down what it is told and what is closed."""

    notes: Any

    def bind(self, host: Any) -> Engine:
        return _Closing(self.start, self.notes)

    def start(self, request: Any) -> Drafter:
        return _BushyDrafter(request, self.notes)


class _Closing(Engine):
    def __init__(self, start: Any, notes: list[Any]) -> None:
        super().__init__(start)
        self._notes = notes

    def close(self) -> None:
        self._notes.append("closed")


class _BushyDrafter(Drafter):
    def __init__(self, request: Any, notes: list[Any]) -> None:
        super().__init__(request)
        self._notes = notes

    def propose(self, budget: Any) -> DraftTree:
        tree = DraftTree(self.request.root)
        tokens = [int(token) for token in self.request.rng.permutation(8)[:4]]
        tree.add(0, tokens[2])
        first = tree.add(0, tokens[0])
        for token in tokens[1:]:
            tree.add(first, token)
        return tree

    def observe(self, feedback: Feedback) -> None:
        self._notes.append((feedback.path, feedback.tokens))


@pytest.mark.parametrize("proposer", ["lookahead:N=4,W=4,G=3", "jacobi:n=3", "prompt_lookup", "autoregressive"])
def test_the_committed_tokens_are_plain_decodings(proposer: str) -> None:
    trace = Recorder(TOY, None, proposer).trace(PROMPT, **SETTINGS)
    plain = Generator(TOY, proposer="autoregressive").generate(PROMPT, **SETTINGS)
    assert tuple(token for step in trace.steps for token in step.tokens) == plain.token_ids == trace.result.token_ids


@pytest.mark.parametrize("proposer", ["lookahead:N=4,W=4,G=3", "jacobi:n=3"])
def test_recording_changes_no_step(proposer: str) -> None:
    trace = Recorder(TOY, None, proposer).trace(PROMPT, **SETTINGS)
    stats = Generator(TOY, proposer=proposer).generate(PROMPT, **SETTINGS).stats
    assert [len(step.tokens) for step in trace.steps] == stats.accepted_lengths
    assert sum(len(step.tree) for step in trace.steps) == stats.num_nodes


def test_paths_and_tokens_are_those_that_the_drafter_was_told() -> None:
    notes: list[Any] = []
    recorder = Recorder(TOY, None, _Bushy(notes=notes))
    trace = recorder.trace(PROMPT, **SETTINGS)
    assert [(step.path, step.tokens) for step in trace.steps[:-1]] == notes
    assert {step.num_accepted for step in trace.steps} >= {0, 1}
    lengths = [step.prefix_length for step in trace.steps]
    assert lengths == [len(PROMPT) - 1 + sum(len(step.tokens) for step in trace.steps[:k]) for k in range(len(lengths))]
    recorder.generator.close()
    assert notes[-1] == "closed"


def test_a_second_trace_starts_afresh() -> None:
    recorder = Recorder(TOY, None, LookaheadProposer(N=3, W=3, G=2))
    first, second = (recorder.trace(PROMPT, **SETTINGS) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert first.proposer == repr(LookaheadProposer(N=3, W=3, G=2))


def test_a_broken_strategy_is_named_by_its_own_name() -> None:
    with pytest.raises(PluginError, match="proposer Scripted returned an illegal tree"):
        Recorder(TOY, None, Scripted(script=lambda *_: DraftTree(7))).trace([1, 2], max_new_tokens=4)
    with pytest.raises(PluginError, match="unknown proposer 'lookahed'"):
        Recorder(TOY, None, "lookahed")


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        Recorder(TOY, None, "autoregressive").trace([])


def test_a_model_that_takes_chains_only_is_traced_with_the_chains_that_it_took() -> None:
    model = make(*CHAINS["bloom"])
    trace = Recorder(model, None, _Bushy(notes=[])).trace(PROMPT, max_new_tokens=4)
    assert all(step.tree.is_chain and len(step.tree) == 3 for step in trace.steps)


def test_json_has_every_node_with_its_roles() -> None:
    def script(request: Any, budget: Any) -> DraftTree:
        tree = DraftTree(request.root)
        spine = tree.add(0, 3, Role.SUPPORT)
        tree.add(spine, 4, Role.PROBE)
        tree.add_chain(0, [3, 5])
        return tree

    trace = Recorder(TOY, None, Scripted(script=script)).trace([1, 2], max_new_tokens=1, seed=0)
    (step,) = json.loads(json.dumps(trace.to_json()))["steps"]
    token = step["tokens"][0]
    assert step == {
        "root": 2,
        "prefix_length": 1,
        "nodes": [
            {"token_id": 2, "text": "2", "parent": -1, "depth": 0, "roles": ["root"], "named_by": []},
            {"token_id": 3, "text": "3", "parent": 0, "depth": 1, "roles": ["candidate", "support"], "named_by": []},
            {"token_id": 4, "text": "4", "parent": 1, "depth": 2, "roles": ["probe"], "named_by": []},
            {"token_id": 5, "text": "5", "parent": 1, "depth": 2, "roles": ["candidate"], "named_by": []},
        ],
        "path": [0, 1] if token == 3 else [0],
        "tokens": [token],
        "text": "",
    }


def step_of(tree: DraftTree) -> TraceStep:
    return TraceStep(tree, tuple(map(str, tree.tokens)), 1, (0,), (9,), ("9",), "9")


def test_branches_are_runs_without_a_split_and_leave_out_what_cannot_be_accepted() -> None:
    tree = DraftTree(0)
    tree.add_chain(0, [1, 2, 3])  # nodes 1 2 3
    tree.add_chain(2, [4, 5])  # nodes 4 5, beside node 3
    tree.add_chain(0, [6, 7], Role.SUPPORT)  # nodes 6 7
    tree.add(7, 8)  # node 8: a candidate that no path of candidates leads to
    step = step_of(tree)
    known = Branch((1, 2), (Branch((3,), ()), Branch((4, 5), ())))
    assert step.branches() == (known,)
    assert step.num_left_out == 3
    assert step.branches(Role.CANDIDATE | Role.SUPPORT) == (known, Branch((6, 7, 8), ()))


def test_labels_keep_leading_spaces_special_tokens_and_halves_of_characters() -> None:
    tokenizer = trained()
    model = ToyModel.random(vocab_size=len(tokenizer))
    text = tokenizer("the cat sat on")["input_ids"]
    half = byte_ids("é")[0]
    end = tokenizer.eos_token_id

    def script(request: Any, budget: Any) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(0, [*text[1:], half, end])
        return tree

    recorder = Recorder(model, tokenizer, Scripted(script=script))
    (step,) = recorder.trace(text[:1], max_new_tokens=1, seed=0, eos_token_id=()).steps
    assert "".join(step.labels[: len(text)]) == "the cat sat on"
    assert step.labels[-2:] == ("\N{REPLACEMENT CHARACTER}", tokenizer.eos_token)
    assert step.token_labels == (tokenizer.decode(step.tokens),)


class _Spaced:
    """Words of which the first of a text loses its leading space, as sentencepiece's do."""

    all_special_tokens: tuple[str, ...] = ()

    def __len__(self) -> int:
        return 8

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split()]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(f" w{token}" for token in ids).lstrip()


def test_a_space_that_shows_only_behind_another_token_is_kept() -> None:
    def script(request: Any, budget: Any) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(0, [4, 5])
        return tree

    (step,) = Recorder(TOY, _Spaced(), Scripted(script=script)).trace("w1 w2", max_new_tokens=1, seed=0).steps
    assert step.labels == (" w2", " w4", " w5")
    assert step.token_labels == (f" w{step.tokens[0]}",)


def test_text_grows_to_the_results() -> None:
    tokenizer = trained()
    recorder = Recorder(ToyModel.random(vocab_size=len(tokenizer)), tokenizer, Scripted(script=root_alone))
    trace = recorder.trace("the cat", max_new_tokens=12, temperature=1.0, seed=1)
    assert "".join(step.text for step in trace.steps) == trace.result.text
    assert trace.prompt == "the cat"


def test_each_node_of_a_merge_says_who_named_it() -> None:
    trace = Recorder(TOY, None, "suffix+token_recycling").trace(PROMPT, **{**SETTINGS, "max_new_tokens": 40})
    assert trace.letters == {name: name[0] for name in ("suffix", "token_recycling")}
    counts = dict.fromkeys(trace.letters, 0)
    for step, told in zip(trace.steps, trace.to_json()["steps"], strict=True):
        for node, entry in enumerate(told["nodes"]):
            assert entry["named_by"] == list(step.named_by(node))
            assert bool(entry["named_by"]) == (node > 0)  # the root is committed already
            for name in entry["named_by"]:
                counts[name] += 1
    named = {name: sum(own[0] for own in by_depth.values()) for name, by_depth in trace.result.stats.sources.items()}
    assert counts == named


def test_letters_of_sources_differ_and_a_draft_that_isnt_merged_has_none() -> None:
    assert Recorder(TOY, None, "suffix").trace(PROMPT, **SETTINGS).letters.keys() <= {"suffix", ""}
    step = Recorder(TOY, None, "jacobi").trace(PROMPT, **SETTINGS)
    assert step.letters == {}
    tree = DraftTree(7)
    tree.proposed_by = {tree.add(0, place): (name,) for place, name in enumerate(("suffix", "static", "s", "st"))}
    made = replace(step, steps=(replace(step.steps[0], tree=tree),))
    assert made.letters == {"suffix": "s", "static": "t", "s": "a", "st": "b"}
