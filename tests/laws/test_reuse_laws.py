"""Whatever is reused and dropped between requests that join and leave, each text is that of the request alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Generator, Proposer, ToyModel
from specdec.decoding import Context
from specdec.decoding.request_state import RequestState
from specdec.runtime import OpenBatch
from specdec.strategies import AutoregressiveProposer, PromptLookupProposer
from tests.support import families
from tests.support.examples import examples
from tests.support.plain import decode_law
from tests.support.watching import Counting, Watching

BLOCK, CHUNK, NUM_CONTEXTS = 4, 8, 2
Alone = Callable[[tuple[int, ...], int, int], Sequence[int]]  # prompt, new tokens, seed


@dataclass(frozen=True)
class Join:
    """A request of some beginning of an earlier text, its context's if it has one, and a few tokens of its own."""

    text: int
    share: float
    own: tuple[int, ...]
    strategy: int
    context: int | None
    num_new: int
    seed: int


@dataclass(frozen=True)
class Event:
    """What happens between two passes."""

    kind: str
    number: int


EVENTS = (
    "cancel a request", "close a context", "drop the oldest row", "shrink the blocks", "grow the blocks", "empty all",
)  # fmt: skip
JOINS = st.builds(
    Join,
    text=st.integers(0, 3),
    share=st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.5, 0.2]),
    own=st.lists(st.integers(0, 4), max_size=5).map(tuple),
    strategy=st.sampled_from([0, 0, 1, 2, 3]),
    context=st.sampled_from([None, *range(NUM_CONTEXTS)]),
    num_new=st.integers(1, 9),
    seed=st.integers(0, 3),
)
HAPPEN = st.builds(Event, kind=st.sampled_from(EVENTS), number=st.integers(0, 9))
PASSES = st.sampled_from([0, 2, 30, 30, 30])  # after 30 passes the requests have mostly ended, and their rows wait
SCHEDULES = st.lists(st.tuples(st.one_of(*[JOINS] * 5, HAPPEN), PASSES), min_size=10, max_size=30)


class Play:
    """A batch that plays a schedule, with the requests that it was given."""

    def __init__(self, generator: Generator, batch: OpenBatch, proposers: Sequence[Proposer], vocab: int) -> None:
        self.generator, self.batch, self.proposers = generator, batch, proposers
        self.contexts: list[Context] = [generator.context() for _ in range(NUM_CONTEXTS)]
        self.texts = [[(3 * index * index + start) % vocab for index in range(33)] for start in range(2)]
        self.made: list[tuple[RequestState, Join]] = []

    def run(self, schedule: Sequence[tuple[Join | Event, int]]) -> None:
        for event, num_passes in schedule:
            if isinstance(event, Join):
                self.join(event)
            else:
                self.happen(event.kind, event.number)
            for _ in range(num_passes):
                self.batch.advance()
        while self.batch.advance() is not None:
            pass

    def join(self, join: Join) -> None:
        own = [request.tokens for request, other in self.made if None is not join.context == other.context]
        texts = own or [*self.texts, *(request.tokens for request, _ in self.made)]
        text = texts[-1 - join.text % len(texts)]
        prompt = [*text[: max(1, round(join.share * len(text)))][-60:], *join.own]
        context = None if join.context is None else self.contexts[join.context]
        (request,) = self.batch.add(
            prompt, proposer=self.proposers[join.strategy % len(self.proposers)], context=context,
            max_new_tokens=join.num_new, seed=join.seed, temperature=1.0, eos_token_id=(),
        )  # fmt: skip
        assert isinstance(request, RequestState)
        self.made.append((request, join))

    def happen(self, kind: str, number: int) -> None:
        cache = self.batch.prefix_cache
        match kind:
            case "cancel a request" if self.made:
                self.batch.cancel(self.made[number % len(self.made)][0])
            case "close a context":
                place = number % NUM_CONTEXTS
                self.contexts[place].close()  # its row is released now or by its request
                cache.drop(self.contexts[place])
                self.contexts[place] = self.generator.context()
            case "drop the oldest row":
                cache.drop_oldest(None)
            case "shrink the blocks":
                cache.resize(cache.num_bytes // 2)
            case "grow the blocks":
                cache.resize(1 << 24)
            case "empty all":
                cache.resize(0)
                while cache.drop_oldest(None):
                    pass

    def check(self, alone: Alone) -> int:
        """Compare all texts with those alone; return how many tokens were reused."""
        for request, join in self.made:
            prompt, new = tuple(request.tokens[: request.prompt_length]), request.new_tokens
            expected = list(alone(prompt, join.num_new, join.seed))
            assert request.error is None
            assert request.finish_reason in ("length", "cancelled")
            assert new == (expected if request.finish_reason == "length" else expected[: len(new)])
        kept = [context for context in self.contexts if context.row is not None]
        assert len(self.batch._binding.target.rows) == len(kept), "all other rows are released"
        return sum(request.num_reused for request, _ in self.made)


def play_many(generator: Generator, alone: Alone, proposers: Sequence[Proposer], vocab: int, most: int) -> int:
    """Play random schedules; the tokens that were reused in all of them."""
    num_reused = 0

    @examples(most)
    @given(SCHEDULES, st.sampled_from([0, 2500, 1 << 24]), st.integers(1, 4), st.booleans())
    def law(schedule: list[tuple[Join | Event, int]], max_bytes: int, max_batch_size: int, packs_rows: bool) -> None:
        nonlocal num_reused
        backend = generator._binding.target.backend
        backend.shapes = replace(backend.shapes, chunk=CHUNK, packs_rows=packs_rows)
        with generator.open_batch(max_batch_size=max_batch_size, max_prefix_bytes=max_bytes) as batch:
            play = Play(generator, batch, proposers, vocab)
            play.run(schedule)
            num_reused += play.check(alone)
            for context in play.contexts:
                batch.prefix_cache.drop(context)

    law()
    return num_reused


def assert_shown_in_order(seen: Sequence[Any]) -> None:
    """Each position was shown once, up to the root, or to where the request was cancelled."""
    for shown, text, _ in seen:
        assert shown == list(enumerate(text))[: len(shown)]
    assert sum(len(shown) < len(text) - 1 for shown, text, _ in seen) < len(seen) / 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.decoding.prefix_cache.BLOCK", BLOCK)


@pytest.mark.parametrize("copies", [True, False], ids=["blocks and rows", "rows alone"])
def test_texts_are_those_alone_and_positions_are_shown_once(copies: bool) -> None:
    """The model's law depends on the whole text, so that a single wrong token in the cache changes what follows."""
    model, seen = ToyModel.random(vocab_size=5, order=99), list[Any]()
    generator = Generator(model, proposer="autoregressive")
    generator._binding.target.backend.holds_prefixes = copies
    proposers = [Watching(seen=seen), AutoregressiveProposer(), PromptLookupProposer(), Watching(seen=seen, tag=1)]

    def alone(prompt: tuple[int, ...], count: int, seed: int) -> Sequence[int]:
        return decode_law(model.probs, prompt, count, seed)

    assert play_many(generator, alone, proposers, 5, 60) > (1200 if copies else 400)
    assert_shown_in_order(seen)


def test_a_strategys_state_leaves_a_context_with_its_text() -> None:
    """Another strategy's request of the context has cut its text, and gone on with other tokens."""
    model, seen = ToyModel.random(vocab_size=5, order=99), list[Any]()
    generator, strategies = Generator(model), (Watching(seen=seen), AutoregressiveProposer())
    with generator.open_batch() as batch:
        context, texts = generator.context(), ((*range(5),) * 3, (0, 1, 2, 3, *(4,) * 12), (0, 1, 2, 3, *(4,) * 11, 2))
        for text, number in zip(texts, (0, 1, 0), strict=True):
            batch.add(text, proposer=strategies[number], context=context, max_new_tokens=1, eos_token_id=())
            while batch.advance() is not None:
                pass
        batch.prefix_cache.drop(context)
    assert len(seen) == 2
    assert_shown_in_order(seen)


@pytest.mark.parametrize(("name", "most", "least"), [("llama", 8, 100), ("qwen3_next", 4, 40)])
def test_texts_of_transformers_models_are_those_alone(name: str, most: int, least: int) -> None:
    model, seen, texts = families.make(*(families.TREES | families.STATES)[name]), list[Any](), dict[Any, Any]()
    plain, generator = (Generator(model, proposer="autoregressive", weights="stock") for _ in range(2))
    proposers = [Counting(seen=seen), AutoregressiveProposer(), PromptLookupProposer()]

    def alone(*asked: Any) -> Sequence[int]:
        if asked not in texts:
            prompt, count, seed = asked
            settings: dict[str, Any] = {"seed": seed, "temperature": 1.0, "eos_token_id": ()}
            texts[asked] = plain.generate(list(prompt), max_new_tokens=count, **settings).token_ids
        return texts[asked]

    assert play_many(generator, alone, proposers, families.VOCAB, most) > least
    assert_shown_in_order(seen)
