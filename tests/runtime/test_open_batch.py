"""An open batch: requests join and leave between passes, each with its own strategy and rule, and texts stay theirs."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from specdec import Engine, Generator, RequestError, ToyModel
from specdec.decoding.request_state import RequestState as Handle
from specdec.plugins.registry import load_plugins
from specdec.strategies.merging.merged import MergedProposer
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
