"""An open batch: requests join and leave between passes, each with its own strategy and rule, and texts stay theirs."""

import math
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specdec import Engine, Generator, RequestError, ToyModel
from specdec.backends.toy import ToyBackend
from specdec.costs import NOMINAL_COSTS, Costs
from specdec.decoding.request_state import RequestState as Handle
from specdec.decoding.turn import MAX_NODES
from specdec.plugins.registry import load_plugins
from specdec.record import StepRecord
from specdec.runtime.open_batch import OpenBatch
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.request import Request
from specdec.strategies.size import size_of
from specdec.tree import ROOT, Budget, DraftTree
from tests.support.scripted import Scripted

STRATEGIES = ["autoregressive", "prompt_lookup", "lookahead:N=3,W=3,G=3", "jacobi:n=4", "auto"]


def test_whoever_joins_and_leaves_texts_are_those_alone() -> None:
    registry, rng = load_plugins(), random.Random(2)
    proposers = [registry.make("proposers", name) for name in STRATEGIES]
    rules = [registry.make("verifiers", name) for name in ("match", "rejection")]
    busy = Generator(ToyModel.random(), proposer="autoregressive", max_batch_size=4)
    alone = {rule: Generator(ToyModel.random(), proposer="autoregressive", verifier=rule) for rule in rules}
    made: list[tuple[Handle, Any, Any, dict[str, Any]]] = []
    written: dict[Handle, list[int]] = {}
    with busy.open_batch() as batch:
        for _ in range(400):
            if len(made) < 40 and rng.random() < 0.5:
                proposer, rule = rng.choice(proposers[:-1]), rng.choice(rules)
                prompt = [rng.randrange(8) for _ in range(rng.randint(1, 30))]
                settings = {"temperature": rng.choice([0.0, 1.0]), "seed": rng.randrange(99), "max_new_tokens": 20}
                (handle,) = batch.add(prompt, proposer=proposer, verifier=rule, **settings)
                assert isinstance(handle, Handle)
                made.append((handle, proposer, rule, settings | {"prompt": prompt}))
            if made and rng.random() < 0.05:
                batch.cancel(rng.choice(made)[0])
            record = batch.advance()
            for outcome in record.outcomes if record else ():
                written.setdefault(outcome.request, []).extend(batch.chunk(outcome).token_ids)
    finished = [each for each in made if each[0].finish_reason == "length"]
    assert len(finished) > 20
    assert any(handle.finish_reason == "cancelled" for handle, *_ in made)
    for handle, proposer, rule, given in finished:
        expected = alone[rule].generate(proposer=proposer, **given).token_ids
        assert tuple(written[handle]) == tuple(handle.new_tokens) == expected
    assert not busy._binding.target.rows


def test_a_rule_that_reads_q_gets_true_distributions_beside_one_that_doesnt() -> None:
    """One proposer under two rules is bound twice: a draft model samples for one of them only."""
    registry = load_plugins()
    proposer = registry.make("proposers", "prompt_lookup")
    match, rejection = (registry.make("verifiers", name) for name in ("match", "rejection"))
    strategies = Generator(ToyModel.random(), proposer=proposer)._binding.strategies
    assert strategies.of(proposer) is strategies.of(proposer, match) is strategies.own
    assert strategies.of(proposer, rejection) is not strategies.own
    assert strategies.of(proposer, rejection) is strategies.of(proposer, rejection)


def test_strategies_in_use_stay_bound_and_the_oldest_others_go() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    with generator.open_batch() as batch:
        (first,) = batch.add([1], proposer="jacobi:n=2", max_new_tokens=60)
        for number in range(3, 15):
            (other,) = batch.add([1], proposer=f"jacobi:n={number}", max_new_tokens=1)
            while isinstance(other, Handle) and not other.is_finished:
                batch.advance()
        assert isinstance(first, Handle)
        assert not first.is_finished
        assert len(generator._binding.strategies._bound) <= 10
        while batch.advance() is not None:
            pass
        assert len(first.new_tokens) == 60


def test_a_strategy_is_bound_while_a_request_decodes_though_costs_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyBackend, "costs", None)  # so they would be measured
    monkeypatch.setattr(ToyBackend, "context_length", 256, raising=False)
    generator = Generator(ToyModel.random(), proposer="jacobi")
    expected = generator.generate([1], proposer="autoregressive", max_new_tokens=30).token_ids
    with generator.open_batch() as batch:
        batch.add([2], max_new_tokens=60)
        batch.advance()
        made = [
            batch.add([1], proposer=each, max_new_tokens=30)[0]
            for each in ("auto", "suffix+prompt_lookup", "lookahead")
        ]
        while batch.advance() is not None:
            pass
    assert [tuple(each.new_tokens) for each in made if isinstance(each, Handle)] == [expected] * 3
    assert generator.costs() is not NOMINAL_COSTS


def test_guests_beside_others_draft_no_more_than_costs_half_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 33 nodes take twice as long as one, 17 take 1.5 times as long."""
    monkeypatch.setattr(ToyBackend, "costs", Costs(sizes=(1, 33), seconds=(1.0, 2.0), plain=1.0))
    monkeypatch.setattr(OpenBatch, "limit_host_time", lambda *_: None)  # a toy's passes take no time
    generator, widest = Generator(ToyModel.random(), proposer="jacobi:n=20"), Counter[tuple[int, bool]]()
    expected = generator.generate([3], max_new_tokens=150, proposer="autoregressive").token_ids
    proposers = ["jacobi:n=60", "lookahead", Scripted(script=wide)]
    with generator.open_batch(max_guest_size=8.0) as batch:
        batch.add([1], max_new_tokens=30)
        guests = [batch.add([3], proposer=each, max_new_tokens=50 * n)[0] for n, each in enumerate(proposers, 1)]
        while (record := batch.advance()) is not None:
            for outcome in record.outcomes:
                number = guests.index(outcome.request) if outcome.request in guests else -1
                key = number, batch.num_active > 1
                widest[key] = max(widest[key], len(outcome.tree or ()) - 1)
    assert widest[-1, True] == 20, "the batch's own strategies have no such bound"
    for number, guest in enumerate(guests):
        assert isinstance(guest, Handle)
        assert tuple(guest.new_tokens) == expected[: len(guest.new_tokens)]
        assert 0 < widest[number, True] <= 16, "c(1 + 16) is 1.5; with more rows fewer"
    assert widest[2, False] == 40, "alone, a guest delays nobody"


def limit_of(batch: OpenBatch, guest: Handle) -> int:
    """The most nodes of a guest's draft in a pass of its own."""
    turn: Any = SimpleNamespace(request=guest, max_nodes=MAX_NODES)
    batch.limit_drafts([turn])
    return int(turn.max_nodes)


def test_guests_draft_less_while_drafting_takes_longer_than_passes() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    slow, fast = (StepRecord("step", (), seconds={"propose": each, "forward": 1.0}) for each in (1.1, 0.9))
    with generator.open_batch(max_guest_size=8.0) as batch:
        (guest,) = batch.add([3], proposer="jacobi:n=60", max_new_tokens=60)
        assert isinstance(guest, Handle)
        most = limit_of(batch, guest)
        for _ in range(3):
            batch.limit_host_time(slow)
        assert limit_of(batch, guest) == most // 8
        for _ in range(9):
            batch.limit_host_time(slow)
        assert limit_of(batch, guest) == 0
        batch.advance()
        assert batch.advance() is not None
        assert len(guest.new_tokens) == 2, "it decodes all the same"
        for _ in range(40):
            batch.limit_host_time(fast)
        assert limit_of(batch, guest) == most


def wide(request: Request, budget: Budget) -> DraftTree:
    """Draft 40 nodes, whatever the budget is."""
    tree = DraftTree(request.root)
    for token in range(request.vocab_size):
        tree.add_chain(ROOT, [token] * max(0, min(5, budget.depth)))
    return tree


def test_the_guests_that_stay_bound_are_as_large_as_one_may_be_and_the_batchs_own_stay() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    own = [load_plugins().make("proposers", f"jacobi:n={number}") for number in range(1, 7)]
    strategies = generator._binding.strategies
    bound = [strategies.of(each) for each in own]
    with generator.open_batch(max_guest_size=8.0) as batch:
        for name in [*(f"lookahead:N={number}" for number in range(11, 21)), *(f"jacobi:n={n}" for n in range(2, 30))]:
            batch.add([1], proposer=name, max_new_tokens=1)
            while batch.advance() is not None:
                pass
            guests = [proposer for proposer, *_ in strategies._bound if proposer not in own][1:]
            assert sum(map(size_of, guests)) <= 8.0
        assert set(bound) <= strategies.bound
        assert len(guests) == 2  # jacobi:n=28 and jacobi:n=29, 3.5 and 3.625 times as large as jacobi
    assert strategies.bound == {*bound, strategies.own}


def test_a_strategy_that_is_used_again_stays_bound_longer() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    often, strategies = load_plugins().make("proposers", "jacobi:n=9"), generator._binding.strategies
    first = strategies.of(often)
    with generator.open_batch() as batch:
        for number in range(20, 40):
            batch.add([1], proposer=f"jacobi:n={number}", max_new_tokens=1)
            batch.add([1], proposer=often, max_new_tokens=1)
            while batch.advance() is not None:
                pass
    assert strategies.of(often) is first


class Preparing(Engine):
    """Has two parts of work, one for each call with a limit in time."""

    num_done = 0

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        while self.num_done < 2:
            on_progress(self.num_done, 2)
            self.num_done += 1
            if math.isfinite(seconds):
                break
        return self.num_done == 2


@pytest.mark.parametrize("is_merged", [False, True])
def test_engines_prepare_when_called_and_in_idle_time(is_merged: bool) -> None:
    alone, progress = Scripted(engine=Preparing), list[tuple[int, int]]()
    proposer = MergedProposer([alone]) if is_merged else alone
    Generator(ToyModel.random(), proposer=proposer).prepare(lambda *parts: progress.append(parts))
    assert progress == [(0, 2), (1, 2)]
    with Generator(ToyModel.random(), proposer=proposer).open_batch() as batch:
        assert [batch.use_idle_time(), batch.use_idle_time()] == [False, True]
        batch.add([1], max_new_tokens=1)
        assert batch.use_idle_time()


class Failing(Engine):
    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        raise ValueError("no")


def test_an_engine_that_fails_to_prepare_is_named_and_decoding_goes_on() -> None:
    generator = Generator(ToyModel.random(), proposer=Scripted(engine=Failing))
    with pytest.raises(ValueError, match="no"):
        generator.prepare()
    with generator.open_batch() as batch, pytest.warns(UserWarning, match="preparing drafts failed with ValueError"):
        assert batch.use_idle_time()
    assert len(generator.generate([1], max_new_tokens=3).token_ids) == 3


def test_a_prompt_that_cant_be_served_is_returned_as_its_error() -> None:
    with Generator(ToyModel.random(), proposer="autoregressive").open_batch() as batch:
        refused, served = batch.add([[9], [1]], max_new_tokens=2)
        assert isinstance(refused, RequestError)
        assert isinstance(served, Handle)
        with pytest.raises(RequestError, match="settings refused"):
            batch.add([1], top_p=3.0)


def test_a_generator_serves_nothing_beside_its_open_batch() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    with generator.open_batch(), pytest.raises(RequestError, match="already decoding"):
        generator.generate([1])
    assert len(generator.generate([1], max_new_tokens=3).token_ids) == 3
