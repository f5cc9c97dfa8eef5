"""The choice where nothing is said: a size for the device, and an account that bounds what drafts may lose."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, Drafter, DraftTree, Engine, Feedback, Generator, Request, Role, ToyModel
from specdec.costs import Costs
from specdec.decoding.record import FinishReason, Outcome, StepRecord
from specdec.decoding.sequence import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto import Account, AutoProposer, _AutoEngine, best_size
from specdec.strategies.prices import Prices
from specdec.testing import toy_host, trees


def costs_of(per_node: float) -> Costs:
    """A pass of one node takes 3 seconds, each further one so many times that."""
    return Costs((1, 101), (3.0, 3.0 * (1 + 100 * per_node)), 3.0)


@pytest.mark.parametrize(
    ("per_node", "size"), [(0.0, (5, 15, 15)), (0.003, (5, 7, 7)), (0.01, (3, 3, 3)), (0.3, (3, 0, 2))]
)
def test_the_dearer_a_node_the_smaller_the_choice(per_node: float, size: tuple[int, int, int]) -> None:
    assert best_size(costs_of(per_node)) == size


@dataclass
class Device:
    """A device whose passes take as long as costs say, and those of drafts as many times that as ``factor`` says."""

    costs: Costs
    factor: float = 1.0
    prices: Prices = field(init=False)

    def __post_init__(self) -> None:
        self.prices = Prices(self.costs)

    def step(self, num_rows: int, width: int) -> None:
        """A whole step of some kind."""
        self.prices.note(num_rows, width, self.seconds(num_rows, width))

    def seconds(self, num_rows: int, width: int) -> float:
        """The time that a pass takes."""
        return self.costs.at(num_rows * width) * (self.factor if width > 1 else 1.0)

    def account(self, loss: float, balance: float = 0.5) -> Account:
        """One that has seen what plain steps of one row take."""
        for _ in range(4):
            self.step(1, 1)
        return Account(self.prices, loss, balance)


class Scripted(Drafter):
    """Proposes the given trees, one after the other."""

    def __init__(self, request: Request, script: list[DraftTree]) -> None:
        super().__init__(request)
        self.script = iter(script)

    def propose(self, budget: Budget) -> DraftTree:
        return next(self.script)


def request() -> Request:
    return Request(TokenView([0]), 1, 6, frozenset(), 0.0, Randomness(0).stream("test"))


def recorded(
    turns: Sequence[tuple[DraftTree, Sequence[int]]],
    seconds: float,
    kind: Literal["chunk", "prompt", "step", "none"] = "step",
    finish_reason: FinishReason | None = None,
) -> StepRecord:
    """A step in which some trees were fed, each with the path that was accepted, and a bonus token behind it."""
    outcomes = [
        Outcome(
            Mock(),
            tree=tree,
            path=tuple(path),
            tokens=(1,) * len(path),
            num_nodes=len(tree),
            finish_reason=finish_reason,
        )
        for tree, path in turns
    ]
    return StepRecord(kind, tuple(outcomes), {"forward": seconds}, width=max(len(tree) for tree, _ in turns))


@given(data=st.data(), num_rows=st.integers(1, 3), per_node=st.floats(0, 1.5), loss=st.floats(0, 0.2))
def test_however_wrong_drafts_are_the_loss_is_bounded(
    data: st.DataObject, num_rows: int, per_node: float, loss: float
) -> None:
    """Adversarial trees and verdicts; time and tokens are counted here, in passes and rows."""
    script = [data.draw(st.lists(trees(), min_size=30, max_size=30)) for _ in range(num_rows)]
    costs, queue = costs_of(per_node), [*script]
    device = Device(costs)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, queue.pop(0))), Account(device.prices, loss))
    drafters = [engine.start(request()) for _ in range(num_rows)]
    plain = spent = 0.0
    for step in range(30):
        fed = engine.propose_many(drafters, [Budget(99, 99, 99)] * num_rows)
        width = max(len(tree) for tree in fed if isinstance(tree, DraftTree))
        spent += costs.at(num_rows * width)
        turns = []
        for drafter, tree in zip(drafters, fed, strict=True):
            assert isinstance(tree, DraftTree)
            node, path = 0, [0]
            while children := [draw.child for draw in tree.draws.get(node, [])]:
                if data.draw(st.booleans()):
                    break
                node = children[0]
                path.append(node)
            plain += costs.at(num_rows) * len(path) / num_rows
            drafter.observe(Feedback(tree, tuple(path), (1,) * len(path)))
            turns.append((tree, path))
        record = recorded(turns, device.seconds(num_rows, width), "step" if step else "prompt")
        engine.learn(record, record.outcomes)
    assert spent <= plain + (0.5 + 30 * loss) * costs.at(num_rows) + 1e-6


def chain(length: int) -> DraftTree:
    tree = DraftTree(0)
    tree.add_chain(0, range(1, length + 1))
    return tree


def feed(device: Device, account: Account, length: int, num_accepted: int) -> int:
    """One step of one request; how many nodes were fed."""
    account.deposit()
    width = account.choose([chain(length)]) if account.can_draft(1) else 1
    device.step(1, width)
    if width > 1:
        accepted = min(num_accepted, width - 1)
        account.earn(accepted)
        account.learn(chain(width - 1), range(accepted + 1))
    return width


def test_drafts_that_are_never_right_stop_and_are_tried_again() -> None:
    device = Device(costs_of(0.25))
    account = device.account(0.02)
    widths = [feed(device, account, 4, 0) for _ in range(400)]
    assert sum(width > 1 for width in widths[20:]) <= 0.02 * 380 / 0.25 + 1
    assert not any(width > 1 for width in widths[40:120])  # the account has to fill up first
    assert any(width > 1 for width in widths[150:])


def test_drafts_that_are_always_right_are_fed_whole_however_dear() -> None:
    device = Device(costs_of(0.3))
    account = device.account(0.02)
    assert [feed(device, account, 4, 4) for _ in range(50)][5:] == [5] * 45


def test_a_draft_is_cut_where_its_tokens_stop_being_right() -> None:
    device = Device(costs_of(0.2))
    account = device.account(0.02)
    widths = [feed(device, account, 6, 2) for _ in range(60)]
    assert set(widths[20:]) == {3}


def test_expected_tokens_follow_what_was_right_by_rank_and_by_depth() -> None:
    tree = DraftTree(0)
    tree.add_chain(0, [1, 2])
    tree.add_chain(0, [3, 4])
    account = Device(costs_of(0.0)).account(0.0)
    assert account.expected(tree) == [0, 0, 1, 2, 3, 4]  # before anything was seen
    account.learn(tree, [0, 3])  # the second branch was right, and its second token wasn't
    assert account.expected(tree) == pytest.approx([0, 0, 1 / 2, 3 / 4, 3 / 4 + 1, 3 / 4 + 1 + 1 / 2])
    account.learn(tree, [0])  # neither was, so nothing is learnt of second tokens
    first, second = 1 / (0.98 + 1 + 1), (0.98 + 1) / (0.98 + 1 + 1)
    assert account.expected(tree)[-1] == pytest.approx((first + second) * 3 / 2)


def test_a_second_guess_is_fed_where_it_is_often_right() -> None:
    tree = DraftTree(0)
    tree.add_chain(0, [1, 2])
    tree.add_chain(0, [3, 4])
    device = Device(costs_of(0.1))
    account = device.account(0.02)
    widths = []
    for _ in range(60):
        account.deposit()
        width = account.choose([tree]) if account.can_draft(1) else 1
        device.step(1, width)
        fed, path = tree.part(range(width)), [0, 3, 4] if width > 4 else [0]
        account.earn(len(path) - 1)
        account.learn(fed, path)
        widths.append(width)
    assert set(widths[30:]) == {5}


def test_what_the_last_step_brought_is_paid_in_though_the_drafter_is_not_told_of_it() -> None:
    account = Device(costs_of(0.1)).account(0.0)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, [chain(2)])), account)
    drafter = engine.start(request())
    tree = drafter.propose(Budget(9, 9, 9))
    assert len(tree) == 3
    drafter.stop()  # both tokens, and a bonus token; the request ends before it is recorded
    record = recorded([(tree, [0, 1, 2])], 1.0, finish_reason="length")
    engine.learn(record, record.outcomes)
    assert account.balance == pytest.approx(0.5 - 0.2 + 2)


def test_tokens_are_paid_in_for_each_row_and_only_those_of_drafts() -> None:
    account = Device(costs_of(0.1)).account(0.0, balance=0.5)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, [])), account)
    plain = DraftTree(0), [0]
    for turns, earned in (([plain], 0.0), ([plain, (chain(2), [0, 1, 2])], 1.0), ([(chain(2), [0, 1])], 1.0)):
        before = account.balance
        record = recorded(turns, 1.0)
        engine.learn(record, record.outcomes)
        assert account.balance == before + earned


def test_a_generator_tells_the_account_of_every_step_and_of_the_last() -> None:
    generator = Generator(ToyModel.random(6), proposer="auto")
    engine, heard = generator._attached.bound.strategies.own.engine, list[StepRecord]()
    assert isinstance(engine, _AutoEngine)
    learn, records = engine.learn, list[StepRecord]()

    def noting(record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        heard.append(record)
        learn(record, outcomes)

    engine.learn = noting  # type: ignore[method-assign]
    generator.generate([[1, 2, 3], [4]], max_new_tokens=12, on_step=records.append)
    assert heard == [record for record in records if record.kind in {"prompt", "step"}]
    assert {outcome.finish_reason for record in heard[-2:] for outcome in record.outcomes} >= {"length"}


def test_drafts_that_cost_more_than_was_measured_are_given_up() -> None:
    """c(T) says that a pass of two nodes is as good as free; here it takes twice a plain one's time."""
    widths = {}
    for factor in (1.0, 2.0):
        device = Device(costs_of(0.0), factor)
        account = device.account(0.01)
        taken = [feed(device, account, 1, step % 3 == 0) for step in range(300)]  # every third draft is right
        widths[factor] = sum(width > 1 for width in taken[100:])
    assert widths[1.0] > 150
    assert widths[2.0] < 10


def test_a_prompts_pass_is_not_taken_for_a_step() -> None:
    device = Device(costs_of(0.1))
    account = Account(device.prices, loss=0.5)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, [chain(2)] * 2)), account)
    for _ in range(12):  # requests of a prompt and one step each
        drafter = engine.start(request())
        for kind in ("prompt", "step"):
            tree = drafter.propose(Budget(9, 9, 9))
            path = list(range(len(tree)))
            record = recorded([(tree, path)], 100.0 if kind == "prompt" else device.costs.at(len(tree)), kind)
            engine.learn(record, record.outcomes)
            drafter.observe(Feedback(tree, tuple(path), (1,) * len(tree)))
        drafter.stop()
    assert len(tree) == 3
    assert device.prices.at(1, 3) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", ["chunk", "prompt", "none"])
def test_what_is_no_step_of_decoding_is_not_noted(kind: Any) -> None:
    account = Account(Prices(costs_of(0.1)), loss=0.5)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, [])), account)
    for told, needs_plain in ((kind, True), ("step", False)):
        for _ in range(5):
            record = recorded([(DraftTree(0), [0])], 50.0, told)
            engine.learn(record, record.outcomes)
        assert account.prices.needs_plain(1) == needs_plain


def test_beside_other_strategies_its_own_rows_and_nodes_are_what_is_noted() -> None:
    account = Account(Prices(costs_of(0.1)), loss=0.5)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, [])), account)
    others = [(DraftTree(0), [0]), (chain(8), [0])]
    for width, seconds in ((1, 4.0), (3, 6.0)):
        for _ in range(3):
            record = recorded([(chain(width - 1), [0]), *others], seconds)
            engine.learn(record, record.outcomes[:1])
    assert not account.prices.needs_plain(1)
    assert account.prices.needs_plain(3)
    assert account.prices.at(1, 3) == pytest.approx(6.0 / 4.0 - 1)


def test_it_drafts_beside_other_strategies() -> None:
    generator, records = Generator(ToyModel.random(6, sharpness=4.0)), list[StepRecord]()
    proposers = ["auto", "autoregressive", "lookahead:N=3,W=3,G=3"]
    generator.generate([[1, 2, 3]] * 3, proposer=proposers, max_new_tokens=200, on_step=records.append)
    trees = [outcome.tree for record in records for outcome in record.outcomes if outcome.request.index == 0]
    assert any(tree is not None and len(tree) > 1 for tree in trees)


def test_drafts_are_fed_where_passes_are_padded() -> None:
    """A plain step is one however many nodes it is padded to."""
    model = ToyModel.random(6, sharpness=4.0)
    for row_multiple in (1, 4):
        generator = Generator(model)
        backend = generator._attached.bound.target.backend
        backend.shapes = replace(backend.shapes, row_multiple=row_multiple)
        stats = generator.generate([1, 2, 3], max_new_tokens=60).stats
        assert stats.num_nodes > 2 * stats.steps, row_multiple


def test_where_only_chains_can_be_fed_there_is_no_window_and_the_longest_is_paid_for() -> None:
    assert best_size(costs_of(0.0), takes_trees=False) == (5, 0, 4)
    tree = chain(1)
    tree.add_chain(0, [7, 8, 9])
    account = Device(costs_of(0.01)).account(0.0)
    engine = _AutoEngine(Engine(lambda request: Scripted(request, [tree])), account, takes_trees=False)
    (fed,) = engine.propose_many([engine.start(request())], [Budget(9, 9, 9)])
    assert isinstance(fed, DraftTree)
    assert fed.tokens == [0, 7, 8, 9]
    assert account.balance == pytest.approx(0.5 - 0.03)


def test_a_window_is_fed_whole_or_not_at_all() -> None:
    tree = DraftTree(0)
    tree.add_chain(0, [1, 2, 3], Role.CANDIDATE | Role.PROBE)
    tree.add_chain(0, [4, 5])  # guesses come behind it
    device = Device(costs_of(0.5))
    assert [device.account(0.0, balance).choose([tree]) for balance in (1.4, 1.5, 2.5)] == [1, 4, 6]


@given(tree=trees(), width=st.integers(1, 12))
def test_a_trees_first_nodes_are_a_tree(tree: DraftTree, width: int) -> None:
    cut = tree.part(range(min(width, len(tree))))
    size = min(width, len(tree))
    assert (cut.tokens, cut.parents, cut.roles) == (tree.tokens[:size], tree.parents[:size], tree.roles[:size])


def test_where_the_text_depends_on_drafts_no_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> Any:
        raise AssertionError("costs were asked for")

    host = toy_host(6, reads_q=True)
    object.__setattr__(host, "costs", measured)
    drafter = AutoProposer().bind(host).start(request())
    assert len(drafter.propose(Budget(9, 9, 9))) == 1


def test_a_generator_with_nothing_said_drafts_and_keeps_the_text() -> None:
    model = ToyModel.random(6, sharpness=4.0)
    prompts = [[1, 2, 3], [4], [2, 2]]
    results = Generator(model).generate(prompts, max_new_tokens=40, temperature=0.7, seed=3)
    plain = Generator(model, proposer="autoregressive").generate(prompts, max_new_tokens=40, temperature=0.7, seed=3)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]
    assert sum(one.stats.num_nodes - one.stats.steps for one in results) > 0
