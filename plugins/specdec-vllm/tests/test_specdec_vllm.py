"""The proposer in a stand-in for vLLM's engine, where rows change places, come, go and pause."""

import random
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from specdec_vllm import Proposer
from specdec_vllm.drafting import Drafting
from specdec_vllm.rows import Rows, Text
from specdec_vllm.sizer_by_rows import SizerByRows

from specdec import Budget, Drafter, DraftTree, Feedback, PluginError
from specdec.record import StepRecord
from specdec.strategies import Engine, MergedEngine

VOCAB, LONGEST, NUM_TOKENS = 32, 200, 6


def following(text: list[int]) -> int:
    """The model: a token that depends on the last three, and repeats itself."""
    return (7 * text[-1] + 3 * text[-2] + text[-3] + 1) % 11


class FakeEngine:
    """A batch as vLLM's worker keeps it: freed rows are filled from the end, prompts are read in parts.

    Each request is [tokens, new tokens wanted, tokens of the prompt still to be read, the draft].
    """

    def __init__(self, proposer: Any, seed: int, num_rows: int = 6) -> None:
        self.rng, self.proposer = random.Random(seed), proposer
        self.rows: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        self.num_rows, self.done = num_rows, list[dict[str, Any]]()
        self.num_accepted = self.num_steps = self.num_passes = 0
        self.put_back = list[dict[str, Any]]()

    def add(self, prompt: list[int], count: int) -> None:
        self.waiting.append({"prompt": prompt, "text": list(prompt), "left": count, "unread": len(prompt), "draft": []})

    def step(self) -> None:
        self.num_passes += 1
        while self.waiting and len(self.rows) < self.num_rows:
            self.rows.append(self.waiting.pop(0))
        self.waiting, self.put_back = self.put_back + self.waiting, []
        emitted = [self._forward(row) for row in self.rows]
        tokens = np.zeros((self.num_rows, LONGEST), np.int32)
        lengths = np.zeros(self.num_rows, np.int32)
        for number, row in enumerate(self.rows):
            tokens[number, : len(row["text"])] = row["text"]
            lengths[number] = len(row["text"])
        drafts = self.proposer.propose(emitted, lengths, tokens)
        assert len(drafts) == len(self.rows)
        for row, draft, new in zip(self.rows, drafts, emitted, strict=True):
            assert len(draft) <= NUM_TOKENS
            assert not draft or new
            assert all(0 <= token < VOCAB for token in draft)
            row["draft"] = draft
        self._leave()

    def _forward(self, row: dict[str, Any]) -> list[int]:
        if row["unread"] > 16:
            row["unread"] -= 16
            return []
        row["unread"], new = 0, []
        for drafted in [*row["draft"], None]:
            new.append(following(row["text"] + new))
            if drafted != new[-1]:
                break
        self.num_accepted += len(new) - 1
        self.num_steps += 1
        row["text"] += new
        row["left"] -= len(new)
        return new

    def _leave(self) -> None:
        """Finished and aborted requests go, one may be put back to the queue, and the last rows take their places."""
        for number in reversed(range(len(self.rows))):
            row, chance = self.rows[number], self.rng.random()
            if row["left"] <= 0 or chance < 0.01:
                self.done.append(row)
            elif chance < 0.03:  # its text is computed again, and its draft is dropped
                row["draft"], row["unread"] = [], len(row["text"])
                self.put_back.append(row)
            else:
                continue
            last = self.rows.pop()
            if number < len(self.rows):
                self.rows[number] = last


def config(**additional: Any) -> Any:
    model = SimpleNamespace(
        get_vocab_size=lambda: VOCAB, hf_config=SimpleNamespace(eos_token_id=None), skip_tokenizer_init=True,
        max_model_len=LONGEST,
    )  # fmt: skip
    speculative = SimpleNamespace(num_speculative_tokens=NUM_TOKENS)
    return SimpleNamespace(model_config=model, speculative_config=speculative, additional_config=additional)


def prompts(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(11) for _ in range(rng.randint(3, 60))] for _ in range(count)]


def run(engine: FakeEngine, seed: int, count: int = 24) -> None:
    for number, prompt in enumerate(prompts(seed, count)):
        engine.add(prompt, 10 + number)
    while engine.rows or engine.waiting or engine.put_back:
        engine.step()


@pytest.mark.parametrize("strategy", ["suffix", "prompt_lookup", "suffix+prompt_lookup", "auto"])
def test_drafts_are_right_more_often_than_not_and_texts_are_the_models(strategy: str) -> None:
    proposer = Proposer(config(specdec=strategy))
    engine = FakeEngine(proposer, seed=1)
    proposer._drafting._clock = lambda: engine.num_passes  # all take the same
    run(engine, seed=2, count=48)  # passes enough for merges to learn what drafts cost
    assert not proposer._has_failed
    assert len(engine.done) == 48
    assert engine.num_accepted > engine.num_steps, "the model repeats itself every few tokens"


def recorded(drafting: Drafting) -> list[StepRecord]:
    """Return a list to which the record of each later step is added."""
    records: list[StepRecord] = []
    drafting._engine.learn = lambda record, _: records.append(record)  # type: ignore[method-assign]
    drafting._learns = True
    return records


def test_the_first_pass_of_a_size_makes_its_kernels_and_puts_no_price_on_drafts() -> None:
    drafting = Drafting("prompt_lookup", vocab_size=VOCAB, num_tokens=4, max_length=LONGEST, clock=count().__next__)
    records = recorded(drafting)
    text = Text([1, 2, 3, 1, 2], 5)
    for token in (3, 1, 2, 9, 9):
        assert not drafting.rests(1)
        drafting.learn({text: [token]}, is_plain_step=True)
        drafting.propose([text])
    widths = [record.width for record in records]
    assert len(set(widths)) < len(widths)
    assert [record.is_warm for record in records] == [width in widths[:nth] for nth, width in enumerate(widths)]
    assert {tuple(record.seconds.items()) for record in records} == {(("propose", 1), ("forward", 1))}


class Recording(Engine):
    """Proposes the model's own next tokens, now and then wrong, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[list[int], Feedback]] = []

    def start(self, request: Any) -> Drafter:
        outer = self

        class Knowing(Drafter):
            def propose(self, budget: Budget) -> DraftTree:
                text, tree, node = list(self.request.tokens), DraftTree(self.request.root), 0
                assert text == outer.texts[tuple(text)], "the text is one that a row holds"
                for depth in range(min(4, budget.depth)):
                    text.append(following(text) if (len(text) + depth) % 3 else 31)
                    node = tree.add(node, text[-1])
                return tree

            def observe(self, feedback: Feedback) -> None:
                outer.told.append((list(self.request.tokens), feedback))

        return Knowing(request)


@pytest.mark.parametrize("seed", range(5))
def test_texts_and_acceptance_are_derived_whoever_comes_goes_and_changes_places(seed: int) -> None:
    proposer, recording = Proposer(config()), Recording()
    proposer._drafting._engine = recording
    engine = FakeEngine(proposer, seed)
    propose = proposer.propose
    accepted = []

    def watched(emitted: list[list[int]], lengths: np.ndarray, tokens: np.ndarray) -> list[list[int]]:
        texts = [tokens[row, : lengths[row]].tolist() for row in range(len(emitted))]
        recording.texts = {tuple(text): text for text in texts}
        accepted.extend(len(new) - 1 for row, new in zip(engine.rows, emitted, strict=True) if new and row["draft"])
        return propose(emitted, lengths, tokens)

    engine.proposer = SimpleNamespace(propose=watched)
    run(engine, seed)
    assert not proposer._has_failed
    known = [len(feedback.path) - 1 for _, feedback in recording.told]
    assert sum(known) == sum(accepted)
    assert len(known) == len(accepted)
    for text, feedback in recording.told:
        assert text[-len(feedback.tokens) :] == list(feedback.tokens)


def test_texts_that_are_alike_are_told_apart_by_what_follows() -> None:
    rows = Rows()
    start = [np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4])]
    first, _ = rows.find([[4], [4]], start)
    assert first[0] is not first[1]
    for text in first.values():
        text.tokens.append(4)
    second, _ = rows.find([[5, 6], [7]], [np.array([1, 2, 3, 4, 5, 6]), np.array([1, 2, 3, 4, 7])])
    second[0].tokens += [5, 6]
    second[1].tokens += [7]
    third, _ = rows.find([[8], [9]], [np.array([1, 2, 3, 4, 7, 8]), np.array([1, 2, 3, 4, 5, 6, 9])])
    assert (third[0], third[1]) == (second[1], second[0]), "they have changed places"


def test_texts_of_one_length_that_change_places_are_told_apart_by_their_last_tokens() -> None:
    rows = Rows()
    first, _ = rows.find([[3], [4]], [np.array([1, 2, 3]), np.array([1, 2, 4])])
    first[0].tokens.append(3)
    first[1].tokens.append(4)
    second, _ = rows.find([[5], [5]], [np.array([1, 2, 4, 5]), np.array([1, 2, 3, 5])])
    assert (second[0], second[1]) == (first[1], first[0])


@pytest.mark.parametrize("swapped_after", [1, 3])
def test_texts_of_one_length_and_ending_that_change_places_arent_confused_for_long(swapped_after: int) -> None:
    """The two differ in their first token alone, and change places once they have emitted ``swapped_after`` tokens."""
    rows, ending = Rows(), [7] * 40
    firsts = [1, 2]
    for num_emitted in range(swapped_after + 70):
        if num_emitted == swapped_after:
            firsts.reverse()
        texts = [[first, *ending, *[5] * num_emitted] for first in firsts]
        found, _ = rows.find([[5], [5]], [np.array([*text, 5]) for text in texts])
        if swapped_after == 1 or num_emitted < swapped_after or num_emitted > 64:
            assert [found[row].tokens for row in range(2)] == texts
        for text in found.values():
            text.tokens.append(5)


def test_texts_that_dont_come_again_are_let_go() -> None:
    rows, gone = Rows(), list[Text]()
    (text,) = rows.find([[2]], [np.array([1, 2])])[0].values()
    text.tokens.append(2)
    for step in range(80):
        other, let_go = rows.find([[5]], [np.array([9] * (step + 3))])
        for each in other.values():
            each.tokens.append(9)
        gone += let_go
    assert gone == [text]


def test_a_step_in_which_all_prompts_are_still_read_is_no_fault() -> None:
    proposer = Proposer(config())
    text = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]], np.int32)
    for emitted, length in (([[]], 8), ([[10]], 10), ([[]], 10)):
        (draft,) = proposer.propose(emitted, np.array([length]), text)
        assert isinstance(draft, list)
    assert not proposer._has_failed


def test_tokens_that_came_without_a_call_are_the_requests() -> None:
    """Near its longest text vLLM goes on without asking for drafts, for all rows."""
    proposer = Proposer(config())
    text = np.array([[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]], np.int32)
    proposer.propose([[3]], np.array([6]), text)
    (before,) = proposer._rows._at.values()
    records = recorded(proposer._drafting)
    proposer.propose([[3]], np.array([12]), text)
    assert [record.outcomes[0].tokens for record in records] == [(3,)], "they are no gain of drafts"
    (after,) = proposer._rows._at.values()
    assert after is before
    assert (after.tokens, after.prompt_length) == (text[0, :12].tolist(), 5)
    assert not proposer._has_failed


def test_what_needs_more_than_tokens_is_refused_with_the_reason() -> None:
    for strategy in ("lookahead", "auto+prompt_lookup", "suffix+token_recycling", "jacobi"):
        with pytest.raises(PluginError, match="vLLM tells its drafters tokens alone: use auto, or suffix"):
            Drafting(strategy, vocab_size=VOCAB, num_tokens=4, max_length=100)
    with pytest.raises(PluginError, match="unknown proposer 'sufix': did you mean suffix"):
        Proposer(config(specdec="sufix"))


def test_auto_is_the_default_and_shares_a_passs_tokens_among_its_rows() -> None:
    """One row's text is sure to go on as before, the other's is new."""
    drafting = Proposer(config())._drafting
    assert isinstance(drafting._engine, MergedEngine)
    assert isinstance(drafting._engine._sizer, SizerByRows)
    assert [part.name for part in drafting._engine.parts] == ["suffix"]
    rng, now = random.Random(0), 0.0
    drafting._clock = lambda: now
    sure, new, drafted = Text([1, 2, 3, 4, 5, 6] * 5, 30), Text(rng.choices(range(8), k=30), 30), [0, 0]
    chains: list[list[int]] = [[], []]
    for _ in range(60):
        following = [(len(sure.tokens) + place) % 6 + 1 for place in range(len(chains[0]) + 1)]
        drafting.rests(2)
        drafting.learn({sure: following, new: [rng.randrange(8)]}, is_plain_step=True)
        chains = drafting.propose([sure, new])
        drafted = [count + len(chain) for count, chain in zip(drafted, chains, strict=True)]
        now += 1.0 + 0.5 * (2 + sum(map(len, chains)))
    assert drafted[0] > 5 * drafted[1] > 0


def test_a_request_that_was_put_back_has_no_draft_when_it_comes_again() -> None:
    proposer = Proposer(config(specdec="prompt_lookup"))
    texts = np.array([[1, 2, 3, 1, 2, 3, 1], [4, 5, 6, 4, 5, 6, 4]], np.int32)
    proposer.propose([[3], [6]], np.array([6, 6]), texts)
    first, second = proposer._rows._at.values()
    assert len(first.draft or ()) > 1
    texts[0, 6] = 4
    proposer.propose([[4]], np.array([7]), np.array([[4, 5, 6, 4, 5, 6, 4]], np.int32))
    records = recorded(proposer._drafting)
    proposer.propose([[5], [1]], np.array([8, 7]), np.array([[4, 5, 6, 4, 5, 6, 4, 5], [1, 2, 3, 1, 2, 3, 1, 0]]))
    assert set(proposer._rows._at.values()) == {first, second}
    assert [(record.kind, len(record.outcomes)) for record in records] == [("prompt", 2)]


def test_a_strategy_that_fails_ends_drafting_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Proposer(config())
    engine = FakeEngine(proposer, seed=3)
    proposer._drafting._engine.propose_many = lambda *_: 1 / 0  # type: ignore[method-assign]
    run(engine, seed=4, count=6)
    assert len(engine.done) == 6
    assert [record.message for record in caplog.records] == ["specdec stops drafting"]


def test_nothing_is_drafted_beyond_the_longest_text() -> None:
    proposer = Proposer(config(specdec="prompt_lookup"))
    text = np.array([[1, 2, 3] * 66 + [0, 0]], np.int32)
    for length in (196, 197, 198):
        (draft,) = proposer.propose([[3]], np.array([length]), text)
        assert length + len(draft) < LONGEST


def test_auto_lets_calls_go_by_while_nothing_pays() -> None:
    """A search takes as long as three steps, so nearly all calls return before a text is read."""
    now, num_found = 0.0, 0
    proposer = Proposer(config(specdec="auto"), clock=lambda: now)
    find = proposer._rows.find

    def finding(*arguments: Any) -> Any:
        nonlocal now, num_found
        now, num_found = now + 3.0, num_found + 1
        return find(*arguments)

    proposer._rows.find = finding  # type: ignore[method-assign]
    rng, num_calls = random.Random(0), 180
    text = np.zeros((1, LONGEST), np.int32)
    text[0] = [rng.randrange(8) for _ in range(LONGEST)]
    for length in range(10, 10 + num_calls):
        now += 1.0
        draft = proposer.propose([[int(text[0, length - 1])]], np.array([length]), text)
        assert not draft[0] or num_found < 20
    assert not proposer._has_failed
    assert num_found < num_calls // 4


def test_texts_are_read_once_in_97_calls_however_long_nothing_pays() -> None:
    """Rests that follow one another would let a text grow beyond what is recognised as its own."""
    proposer = Proposer(config(specdec="auto"))
    assert proposer._drafting._sizer is not None
    proposer._drafting._sizer.rests = lambda _: True  # type: ignore[method-assign]
    num_found, prompts, find = 0, 0, proposer._rows.find

    def finding(*arguments: Any) -> Any:
        nonlocal num_found
        num_found += 1
        return find(*arguments)

    proposer._rows.find = finding  # type: ignore[method-assign]
    text = np.array([random.Random(0).choices(range(8), k=2000)], np.int32)
    read = list[int]()
    for length in range(10, 2000):
        num_before = num_found
        proposer.propose([[int(text[0, length - 1])]], np.array([length]), text)
        if num_found > num_before:
            read.append(length)
        if length % 50 == 0:
            prompts += proposer.propose([[]], np.array([length]), text) == [[]]  # a step of prompts alone
    assert prompts == 39
    assert np.diff(read).tolist() == [97] * (len(read) - 1)
    assert len(read) == 20
    (known,) = proposer._rows._at.values()
    assert known.prompt_length == read[0] - 1, "it has been the same text since the first call"
    assert not proposer._has_failed


def test_texts_arent_read_where_nothing_pays_for_that_number_of_rows() -> None:
    """With 16 rows drafts have lost all that they may, alone they pay."""
    proposer = Proposer(config(specdec="auto"))
    engine, num_found, find = proposer._drafting._engine, 0, proposer._rows.find
    assert isinstance(engine, MergedEngine)
    assert isinstance(engine._sizer, SizerByRows)
    busy = engine._sizer._sizer_for(16)
    busy.budget.balance = -1.0
    assert busy.skips(16)

    def finding(*arguments: Any) -> Any:
        nonlocal num_found
        num_found += 1
        return find(*arguments)

    proposer._rows.find = finding  # type: ignore[method-assign]
    text = np.array([[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]] * 20, np.int32)
    for num_rows, is_read in ((1, True), (20, False), (20, False), (1, True), (20, False)):
        num_found = 0
        drafts = proposer.propose([[3]] * num_rows, np.full(num_rows, 9), text)
        assert (len(drafts), num_found) == (num_rows, is_read)
    assert not proposer._has_failed
