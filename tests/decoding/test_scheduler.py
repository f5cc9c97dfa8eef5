"""The scheduler: whatever joins, leaves, fails or is cancelled, every finished text is the request's own."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, DraftModelProposer, DraftTree, Generator, Request, RequestError, ToyModel
from specdec.backends import supported_passes
from specdec.backends.hf import HFBackend
from specdec.decoding.request_state import RequestState as Handle
from specdec.decoding.scheduler import Scheduler
from specdec.decoding.strategy import Strategy
from specdec.inputs.processor import ProcessorOutput
from specdec.plugins.registry import load_plugins
from specdec.record import StepRecord
from specdec.requests.generation_request import GenerationRequest as Question
from specdec.runtime import open_batch
from specdec.runtime.binding import Binding
from tests.support import encoder_decoders, families
from tests.support.examples import examples
from tests.support.scripted import Scripted

DRAFTERS = ("draft_model", "draft_tree")  # strategies with rows of their own
STRATEGIES = (
    "autoregressive",
    "prompt_lookup:max_ngram=2,num_tokens=3",
    "jacobi:n=3",
    "lookahead:N=3,W=3,G=2",
    "auto",
    *DRAFTERS,
)
RULES = ("match", "rejection", "traversal")


@dataclass(frozen=True)
class Asked:
    """One request of a schedule."""

    prompt: tuple[int, ...]
    strategy: str
    rule: str
    temperature: float
    max_new_tokens: int
    seed: int
    fails: bool

    @property
    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "max_new_tokens": self.max_new_tokens, "seed": self.seed}


@st.composite
def requests(draw: st.DrawFn, plans: Sequence[tuple[str, str]]) -> Asked:
    strategy, rule = draw(st.sampled_from(plans))
    return Asked(
        prompt=tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=14))),
        strategy=strategy,
        rule=rule,
        temperature=draw(st.sampled_from([0.0, 0.7, 1.3])),
        max_new_tokens=draw(st.integers(1, 20)),
        seed=draw(st.integers(0, 99)),
        fails=draw(st.integers(0, 7)) == 0,
    )


@st.composite
def schedules(draw: st.DrawFn, strategies: Sequence[str] = STRATEGIES) -> list[Asked | int | None]:
    """Between two passes a request joins, one is cancelled, or nothing happens; plans are few, so that some meet."""
    plan = st.tuples(st.sampled_from(strategies), st.sampled_from(RULES))
    joining = requests(draw(st.lists(plan, min_size=1, max_size=3)))
    return draw(st.lists(st.one_of(joining, joining, joining, st.none(), st.integers(0, 9)), min_size=4, max_size=30))


class Failing(Scripted):
    """A strategy that fails in its third step."""

    def start(self, request: Request) -> Any:
        num_calls = []

        def script(request: Request, budget: Budget) -> DraftTree:
            num_calls.append(1)
            if len(num_calls) == 3:
                raise RuntimeError("as it was told to")
            return DraftTree(request.root)

        return Scripted(script=script).start(request)


class Rig:
    """A model under schedulers that the test advances itself; requests of all rules and strategies share its passes.

    A strategy is bound to a rule, so there is a generator for each, of which one's target is decoded with.
    """

    def __init__(self, model: Any, rules: Sequence[str], drafters: Mapping[str, Any], **options: Any) -> None:
        registry = load_plugins()
        self.bounds, self.strategies = dict[str, Binding](), dict[tuple[str, str], Strategy]()
        self.generators = []  # each holds on to its model
        for rule in rules:
            generator = Generator(model, proposer="autoregressive", verifier=rule, **options)
            self.generators.append(generator)
            bound = self.bounds[rule] = generator._binding
            # Bound before anything decodes, as ``Generator`` does: ``auto`` measures costs.
            for name in (name for name in STRATEGIES if name in drafters or name not in DRAFTERS):
                proposer = registry.make("proposers", drafters.get(name, name))
                self.strategies[name, rule] = bound.strategies.of(proposer)
            self.strategies["failing", rule] = bound.strategies.of(Failing())
        self.bound = self.bounds["match"]
        engines = [strategy.engine for strategy in self.strategies.values()]
        self.targets = [self.bound.target, *(engine._target for engine in engines if hasattr(engine, "_target"))]
        self.texts: dict[Asked, list[int]] = {}

    def read_by(self, chunk: int, packs_rows: bool = False) -> None:
        """Have prompts read in chunks of this size, those of drafters included, alone or in the passes of others."""
        for target in self.targets:
            target.backend.shapes = replace(target.shapes, chunk=chunk, packs_rows=packs_rows)

    def scheduler(self, max_batch_size: int, max_cache_bytes: int | None = None) -> Scheduler:
        return Scheduler(
            self.bound.target,
            self.bound.fallback,
            max_batch_size=max_batch_size,
            max_cache_bytes=max_cache_bytes,
            flags_ties=self.bound.numerics.noise > 0.0,
        )

    def request(self, asked: Asked) -> Handle:
        strategy = self.strategies["failing" if asked.fails else asked.strategy, asked.rule]
        (made,) = self.bounds[asked.rule].builder.build(Question(list(asked.prompt), asked.settings), [strategy])
        assert isinstance(made, Handle)
        return made

    def alone(self, asked: Asked) -> list[int]:
        """The text of the same request alone; by plain decoding where the rule promises that one, or nothing drafts."""
        if asked not in self.texts:
            is_plain = asked.rule == "match" or asked.fails
            strategy = "autoregressive" if is_plain else asked.strategy
            scheduler, request = self.scheduler(1), self.request(replace(asked, fails=False, strategy=strategy))
            scheduler.enqueue(request)
            while advance(scheduler) is not None:
                pass
            self.texts[asked] = request.new_tokens
        return self.texts[asked]

    def run(self, scheduler: Scheduler, schedule: Sequence[Asked | int | None]) -> dict[Handle, Asked]:
        """Play a schedule to its end."""
        handles: dict[Handle, Asked] = {}
        for event in schedule:
            if isinstance(event, Asked):
                handles[scheduler.enqueue(self.request(event))] = event
            elif event is not None and handles:
                scheduler.cancel(list(handles)[event % len(handles)])
            advance(scheduler)
        while advance(scheduler) is not None:
            pass
        assert not any(target.rows or target.backend.num_rows for target in self.targets)
        return handles

    def check(self, handles: dict[Handle, Asked]) -> None:
        """Every text, or as much of it as was written, is that of the request alone."""
        for handle, asked in handles.items():
            text, told = self.alone(asked), handle.new_tokens
            if asked.fails and handle.finish_reason == "error":
                assert "as it was told to" in str(handle.error)
            else:
                assert handle.error is None
                assert handle.finish_reason in {"length", "stop", "cancelled"}
            is_whole = handle.finish_reason in {"length", "stop"}
            assert told == (text if is_whole else text[: len(told)])


def advance(scheduler: Scheduler) -> StepRecord | None:
    record = scheduler.advance()
    if record is not None:
        assert record.outcomes
        for outcome in record.outcomes:
            assert (outcome.finish_reason is not None) == outcome.request.is_finished
    return record


@pytest.fixture(scope="module")
def toy() -> Rig:
    small = ToyModel.random(vocab_size=7, order=1, seed=11, sharpness=2.0)
    chain, tree = DraftModelProposer(model=small, num_tokens=3), DraftModelProposer(model=small, num_tokens=3, width=2)
    model = ToyModel.random(vocab_size=7, order=3, seed=11, sharpness=2.0)
    return Rig(model, RULES, {"draft_model": chain, "draft_tree": tree})


@pytest.fixture(scope="module")
def real(built_in: tuple[Any, Any]) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(supported_passes, "PREFILL_CHUNK", 8)
        chain, tree = "draft_model:layers=1,num_tokens=3", "draft_model:layers=1,num_tokens=3,width=2"
        yield Rig(built_in[0], ["match"], {"draft_model": chain, "draft_tree": tree})


@pytest.mark.parametrize("strategies", [STRATEGIES, DRAFTERS], ids=["all", "drafters"])
@examples(40)
@given(data=st.data(), max_batch_size=st.integers(1, 4), chunk=st.integers(1, 6), packs_rows=st.booleans())
def test_random_schedules_change_no_text(
    toy: Rig, strategies: Sequence[str], data: st.DataObject, max_batch_size: int, chunk: int, packs_rows: bool
) -> None:
    schedule = data.draw(schedules(strategies))
    toy.read_by(chunk, packs_rows)
    toy.check(toy.run(toy.scheduler(max_batch_size), schedule))


@examples(8)
@given(schedule=schedules(), packs_rows=st.booleans())
def test_random_schedules_of_the_built_in_model_change_no_text(
    real: Rig, schedule: list[Asked | int | None], packs_rows: bool
) -> None:
    real.read_by(8, packs_rows)
    spread = [
        replace(event, prompt=tuple(40 + 31 * token for token in event.prompt), rule="match")
        if isinstance(event, Asked)
        else event
        for event in schedule
    ]
    real.check(real.run(real.scheduler(3), spread))


def long(num_tokens: int, count: int = 40, **changes: Any) -> Asked:
    asked = Asked(tuple(index % 7 for index in range(num_tokens)), "autoregressive", "match", 0.0, count, 0, False)
    return replace(asked, **changes)


def test_others_step_between_the_chunks_of_a_prompt(toy: Rig) -> None:
    toy.read_by(4)
    scheduler = toy.scheduler(4)
    streaming = [scheduler.enqueue(toy.request(long(3, seed=index))) for index in range(2)]
    kinds = []
    for _ in range(4):
        advance(scheduler)
    joining = scheduler.enqueue(toy.request(long(15)))
    while joining.is_prefilling:
        record = advance(scheduler)
        assert record is not None
        kinds.append(record.kind)
        if record.kind == "step":
            assert {outcome.request for outcome in record.outcomes} == set(streaming)
    assert kinds == ["chunk", "step", "chunk", "step", "chunk", "step", "prompt"]
    scheduler.close()


def test_where_rows_are_packed_prompts_share_the_passes_of_those_that_decode(toy: Rig) -> None:
    toy.read_by(8, packs_rows=True)
    scheduler = toy.scheduler(8)
    streaming = [scheduler.enqueue(toy.request(long(3, seed=index))) for index in range(2)]
    for _ in range(4):
        advance(scheduler)
    joining = [scheduler.enqueue(toy.request(long(length, strategy="jacobi:n=3"))) for length in (21, 2, 3, 30)]
    chunks, kinds, before = [], [], [len(request.new_tokens) for request in streaming]
    while any(request.is_prefilling for request in joining):
        record = advance(scheduler)
        assert record is not None
        kinds.append(record.kind)
        chunks.append([joining.index(each.request) for each in record.outcomes if each.is_chunk])
        assert {*streaming} <= {outcome.request for outcome in record.outcomes}
        assert all(outcome.tokens for outcome in record.outcomes if not outcome.is_chunk)
    # Two chunks; the first prompt's last 5 tokens with the whole second; the third; the last prompt's three chunks.
    assert chunks == [[0], [0], [], [], [3], [3], [3], []]
    assert kinds == ["prompt"] * 8
    assert [len(request.new_tokens) for request in streaming] == [count + 8 for count in before]
    while advance(scheduler) is not None:
        pass
    for request, asked in zip([*streaming, *joining], [long(3), long(3), *map(long, (21, 2, 3, 30))], strict=True):
        assert request.new_tokens == toy.alone(asked)


@pytest.mark.parametrize(("num_drafted", "most"), [(0, 4), (3, 3), (6, 2), (20, 1)])
def test_others_step_between_short_prompts_however_many_come(
    toy: Rig, num_drafted: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass costs something however short its prompt is, and its first draft is part of it."""
    monkeypatch.setattr("specdec.decoding.scheduler._CROWD", 100)
    backend = toy.bound.target.backend
    backend.shapes = replace(backend.shapes, chunk=16, packs_rows=False)

    def chain(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(0, [1] * min(num_drafted, budget.depth, budget.num_nodes))
        return tree

    drafting = toy.bound.strategies.of(Scripted(script=chain))
    scheduler = toy.scheduler(24)
    for seed in range(12):
        scheduler.enqueue(toy.request(long(3, 60, seed=seed)))
    while scheduler.num_waiting:
        advance(scheduler)
    for seed in range(12):
        made = toy.bound.builder.build(Question([1, 2], {"max_new_tokens": 60, "seed": seed}), [drafting])
        assert isinstance(made[0], Handle)
        scheduler.enqueue(made[0])
    kinds = ""
    while scheduler.num_waiting and (record := advance(scheduler)) is not None:
        kinds += record.kind[0]
    scheduler.close()
    assert max(map(len, kinds.split("s"))) == most


@pytest.mark.parametrize(("rule", "widths"), [("match", [4, 4, 4, 4, 1]), ("rejection", [4] * 5)])
def test_a_first_draft_is_left_out_where_several_wait_and_the_text_allows_it(
    toy: Rig, rule: str, widths: list[int]
) -> None:
    def chain(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(0, [1] * min(3, budget.depth))
        return tree

    toy.read_by(4)
    drafting = toy.bounds[rule].strategies.of(Scripted(script=chain))
    scheduler, found = toy.scheduler(8), []
    for seed in range(5):
        asked = Question([1], {"max_new_tokens": 60, "seed": seed, "temperature": 1.0})
        (made,) = toy.bounds[rule].builder.build(asked, [drafting])
        assert isinstance(made, Handle)
        scheduler.enqueue(made)
    while len(found) < 5 and (record := advance(scheduler)) is not None:
        found += [record.width] if record.kind == "prompt" else []
    scheduler.close()
    assert found == widths


@pytest.mark.parametrize(("num_decoding", "num_coming", "between"), [(1, 3, 3), (2, 6, 3), (4, 4, 1), (1, 12, 8)])
def test_where_more_read_than_decode_more_is_read_between_steps(
    toy: Rig, num_decoding: int, num_coming: int, between: int
) -> None:
    toy.read_by(4)
    scheduler = toy.scheduler(16)
    for seed in range(num_decoding):
        scheduler.enqueue(toy.request(long(3, 60, seed=seed)))
    while (record := advance(scheduler)) is not None and (record.kind, len(record.outcomes)) != ("step", num_decoding):
        pass
    for seed in range(num_coming):
        scheduler.enqueue(toy.request(long(40, seed=seed)))
    kinds = [record.kind for _ in range(between + 1) if (record := advance(scheduler)) is not None]
    assert kinds == ["chunk"] * between + ["step"]
    scheduler.close()


def test_requests_of_different_strategies_share_their_passes(toy: Rig) -> None:
    scheduler = toy.scheduler(len(STRATEGIES))
    handles = {scheduler.enqueue(request): asked for asked, request in
               ((asked, toy.request(asked)) for asked in (long(5, strategy=name) for name in STRATEGIES))}  # fmt: skip
    together = 0
    while (record := advance(scheduler)) is not None:
        together += record.kind == "step" and len({o.request.strategy.name for o in record.outcomes}) > 1
    assert together
    toy.check(handles)


def test_a_request_that_was_added_is_refused_ever_after(toy: Rig) -> None:
    scheduler, request = toy.scheduler(4), toy.request(long(3, 2))
    scheduler.enqueue(request)
    for is_over in (False, True):
        for other in (scheduler, toy.scheduler(4)):
            with pytest.raises(RequestError, match="this request was added to a scheduler before"):
                other.enqueue(request)
        while advance(scheduler) is not None:
            pass
        assert request.is_finished
        assert len(request.new_tokens) == 2, is_over
    assert not toy.bound.target.rows


def test_requests_wait_for_memory_as_for_a_place(toy: Rig) -> None:
    asked = [long(5, 20), long(5, 20, seed=1), long(30, 300, seed=2)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            type(toy.bound.target.backend), "cache_bytes", lambda _, capacities: max(capacities) * len(capacities)
        )
        scheduler = toy.scheduler(8, max_cache_bytes=60)
        handles = {scheduler.enqueue(toy.request(each)): each for each in asked}
        most = 0
        while advance(scheduler) is not None:
            most = max(most, scheduler.num_active)
            assert sum(row.capacity for row in toy.bound.target.rows) <= 60 or scheduler.num_active == 1
    assert most == 2
    toy.check(handles)


@pytest.mark.parametrize("backend", ["hf", "static"])
def test_the_cache_never_holds_more_than_was_allowed(backend: str) -> None:
    model = families.make("LlamaConfig", {**families.SMALL, "max_position_embeddings": 2048})
    rig = Rig(model, ["match"], {}, backend=backend, numerics="fast", weights="stock")
    held = rig.bound.target.backend
    assert isinstance(held, HFBackend)
    layers = held._cache.layers
    slot_bytes = sum(layer.slot_bytes for layer in layers)
    budget = 4 * (1024 + 256) * slot_bytes
    scheduler = rig.scheduler(8, max_cache_bytes=budget)
    asked = [long(700, 3), *(long(5, 30, seed=seed) for seed in range(8))]
    handles = {scheduler.enqueue(rig.request(each)): each for each in asked}
    most = 0
    while advance(scheduler) is not None:
        most = max(most, scheduler.num_active)
        in_buffers = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers if layer.is_initialized)
        assert in_buffers <= budget
    assert most >= 4
    rig.check(handles)


def test_an_encoders_states_count_in_what_a_request_takes() -> None:
    whisper = encoder_decoders.make("whisper")  # two layers of four heads of eight, 16 states of 32 numbers
    states = 4 * (16 * 32 + 2 * 2 * 4 * 16 * 8)
    outputs = [ProcessorOutput(encoder_decoders.encoder_inputs("whisper", whisper, seed)) for seed in range(4)]
    encoded = [prompt for output in outputs for prompt in output.prompts()]
    together: list[int] = []
    settings: dict[str, Any] = {"max_new_tokens": 8, "on_step": lambda record: together.append(len(record.outcomes))}
    options: dict[str, Any] = {"proposer": "autoregressive", "numerics": "fast"}
    with Generator(whisper, **options) as generator:
        [alone] = generator.generate(encoded[:1], **settings)
        backend = generator._binding.target.backend
        own = [backend.cache_bytes([9] * num_rows) for num_rows in range(5)]
    for num_rows, missing in ((2, 0), (2, 1), (4, 0), (4, 1)):
        together.clear()
        with Generator(whisper, **options, max_cache_bytes=own[num_rows] + num_rows * states - missing) as generator:
            assert not any(result.error for result in generator.generate(encoded, **settings))
        assert (max(together) == num_rows) == (not missing)
    assert alone.stats.peak_cache_bytes == own[1] + states


def test_what_a_static_cache_holds_between_calls_counts_as_free() -> None:
    generator = Generator(families.make(*families.TREES["llama"]), backend="static", numerics="fast", weights="stock")
    target = generator._binding.target
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in target.backend._cache.layers)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(open_batch, "free_bytes", lambda _: 0)
        assert 0 < (open_batch._share_of_free(target) or 0) <= held
        patched.setattr(open_batch, "free_bytes", lambda _: None)
        assert open_batch._share_of_free(target) is None


def test_requests_are_added_and_cancelled_from_other_threads(toy: Rig) -> None:
    scheduler, handles = toy.scheduler(3), dict[Handle, Asked]()

    def client(number: int) -> None:
        for turn in range(8):
            asked = long(3 + turn, 12, seed=10 * number + turn, strategy=STRATEGIES[turn % len(STRATEGIES)])
            handle = toy.request(asked)
            handles[handle] = asked
            scheduler.enqueue(handle)
            if turn % 3 == 2:
                scheduler.cancel(handle)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or scheduler.num_waiting or scheduler.num_active:
        advance(scheduler)
    assert len(handles) == 32
    assert all(handle.is_finished for handle in handles)
    toy.check(handles)
