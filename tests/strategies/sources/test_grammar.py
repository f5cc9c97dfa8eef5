"""Drafts of what a constraint forces, and drafts pruned by what it refuses."""

from collections.abc import Sequence
from unittest.mock import Mock

import torch

from specdec import Budget, DraftTree, Feedback, Generator, Request, ToyModel
from specdec.constraints import Constraint, ConstraintState, Vocabulary
from specdec.constraints.path_state import PathState
from specdec.decoding.request_state import TokenView
from specdec.record import Outcome, StepRecord
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.merged import MergedEngine, MergedProposer
from specdec.strategies.sources.grammar import GrammarEngine, GrammarProposer
from specdec.strategies.sources.suffix import SuffixProposer
from specdec.testing import toy_host

VOCAB = 8
BUDGET = Budget(20, 20, 20)


class Spelled(Constraint):
    """The ids 1 to 5, in order; 3 may also be spelled 6."""

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return At(1)


class At(ConstraintState):
    def __init__(self, token: int) -> None:
        self._token = token

    @property
    def is_accepting(self) -> bool:
        return self._token > 5

    def mask(self) -> torch.Tensor:
        allowed = torch.zeros(VOCAB, dtype=torch.bool)
        allowed[[self._token, *[6] * (self._token == 3)] if self._token < 6 else []] = True
        return allowed

    def advance(self, token: int) -> ConstraintState:
        return At(self._token + 1)

    def forced(self) -> Sequence[int]:
        return range(self._token, 6)


def request(state: PathState | None) -> Request:
    rng = Randomness(0).stream("test")
    return Request(TokenView([0, 7]), 2, VOCAB, frozenset(), 0.0, rng, constraint=lambda: state)


def first_state() -> PathState:
    return PathState(Spelled().start(Vocabulary(None, VOCAB)), frozenset(), VOCAB)


def test_the_forced_tokens_are_drafted_as_a_chain_to_their_end() -> None:
    tree = GrammarProposer().start(request(first_state())).propose(BUDGET)
    assert tree.tokens == [7, 1, 2, 3, 4, 5]
    assert tree.is_chain
    assert len(GrammarProposer(num_nodes=2).start(request(first_state())).propose(BUDGET)) == 3


def test_nothing_is_drafted_without_a_constraint() -> None:
    assert len(GrammarProposer().start(request(None)).propose(BUDGET)) == 1


def test_rates_of_single_tokens_and_of_spellings_are_learnt_apart() -> None:
    engine = GrammarEngine(GrammarProposer())
    drafter = engine.start(request(first_state()))
    for _ in range(30):
        tree = drafter.propose(BUDGET)
        drafter.observe(Feedback(tree, (0, 1, 2), (1, 2, 6)))
    assert engine.rates["only"].value > 0.99
    assert engine.rates["spelled"].value < 0.3


class Named:
    """A source that names every token at each node."""

    def __init__(self) -> None:
        self.rates = AcceptanceRates("named", lambda _: 0.5)

    def root(self) -> int:
        return 0

    def follow(self, state: int, token: int) -> int:
        return state + 1

    def candidates(self, state: int) -> list[tuple[int, object]]:
        return [(token, self.rates[token]) for token in range(VOCAB)]


def test_refused_candidates_are_pruned_before_they_are_priced() -> None:
    growth = Growth({0: Named()}, request(first_state()), BUDGET)  # type: ignore[list-item]  # a fake
    while growth.next_probability:
        growth.take()
    tree = growth.tree(len(growth))
    paths = {tuple(tree.path(node)) for node in range(len(tree))}
    assert {path for path in paths if len(path) == 5} == {(1, 2, 3, 4, 5), (1, 2, 6, 4, 5)}
    assert len(tree) == 9
    before = {token: rate.value for token, rate in growth.candidates[0].items()}
    growth.learn([1])
    changed = [token for token, rate in growth.candidates[0].items() if rate.value != before[token]]
    assert changed == [1]  # what is refused is no wrong guess


def test_what_is_forced_is_drafted_also_where_drafts_have_cost_too_much() -> None:
    host = toy_host(VOCAB, reads_q=False)
    engine = MergedProposer([SuffixProposer(), GrammarProposer()]).bind(host)
    budget = engine._sizer.budget  # type: ignore[attr-defined]
    budget.balance = -1.0  # what a stretch of rejected drafts leaves
    drafters = [engine.start(request(state)) for state in (first_state(), None)]
    forced, free = engine.propose_many(drafters, [BUDGET, BUDGET])
    assert isinstance(forced, DraftTree)
    assert isinstance(free, DraftTree)
    assert (forced.tokens, free.tokens) == ([7, 1, 2, 3, 4, 5], [7])
    before = budget.balance
    drafters[0].observe(Feedback(forced, (0, 1, 2), (1, 2, 3)))
    outcomes = [Outcome(Mock(), tree=tree, tokens=tokens) for tree, tokens in ((forced, (1, 2, 3)), (free, (4,)))]
    engine.learn(StepRecord("step", tuple(outcomes), {"forward": 1.0}, width=6), outcomes)
    assert budget.balance > before  # other drafts begin again the sooner


def test_a_generator_drafts_what_is_forced_and_the_model_decides_about_spellings() -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [0.1 / 7] * 6 + [0.9, 0.1 / 7]  # 6, wherever it may

    result = Generator(ToyModel(law, VOCAB)).generate([0], constraint=Spelled(), max_new_tokens=9)
    assert list(result.token_ids) == [1, 2, 6, 4, 5]
    assert result.finish_reason == "stop"
    assert result.stats.steps <= 2


def test_forced_text_leaves_room_for_the_plain_steps_that_costs_are_compared_with() -> None:
    """Every step has forced text: few of them are plain, and the others search for drafts as well."""
    engine = MergedProposer([SuffixProposer(), GrammarProposer()]).bind(toy_host(VOCAB, reads_q=False))
    drafter = engine.start(request(first_state()))
    sizes, num_searched = list[int](), 0
    for _ in range(200):
        (tree,) = engine.propose_many([drafter], [BUDGET])
        assert isinstance(tree, DraftTree)
        sizes.append(len(tree))
        num_searched += isinstance(engine, MergedEngine) and not engine._sizer._is_skipped
        path = tuple(range(len(tree)))
        drafter.observe(Feedback(tree, path, (*tree.tokens[1:], 1)))
        outcome = Outcome(Mock(), tree=tree, path=path, tokens=(1,) * len(tree))
        seconds = {"forward": 1.0 if len(tree) == 1 else 1.2}
        engine.learn(StepRecord("step", (outcome,), seconds, width=len(tree)), [outcome])
    assert 2 <= sizes.count(1) <= 10
    assert num_searched >= 190
