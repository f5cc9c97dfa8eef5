"""Merges: what each strategy's part in a draft is, whatever the others do."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import (
    Budget,
    Drafter,
    DraftTree,
    Engine,
    Feedback,
    Generator,
    PluginError,
    PromptLookupProposer,
    Proposer,
    Request,
    Role,
    ToyModel,
)
from specdec.costs import Costs
from specdec.decoding.request_state import TokenView
from specdec.record import Outcome, StepRecord
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.acceptance_rates import AcceptanceRate
from specdec.strategies.auto.drafter import MergedDrafter
from specdec.strategies.auto.merged import MergedEngine, MergedProposer
from specdec.strategies.auto.source import Candidate, Source
from specdec.strategies.host import Host
from specdec.strategies.signals import Answers
from specdec.strategies.sources.grammar import GrammarProposer
from specdec.strategies.sources.recycling import RecyclingEngine, TokenRecyclingProposer
from specdec.strategies.sources.reference import ReferenceProposer
from specdec.strategies.sources.suffix import SuffixProposer
from specdec.testing import toy_host, trees
from tests.support.scripted import Scripted

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step

Script = Callable[[Request, Budget], DraftTree]


def chain(*tokens: int, role: Role = Role.CANDIDATE) -> Script:
    def script(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(0, tokens, role)
        return tree

    return script


def merged(*scripts: Script, cost: float = 0.0, takes_trees: bool = True, num_nodes: int = 32) -> Drafter:
    """A request's drafter whose parts follow scripts."""
    host = toy_host(6, reads_q=False)
    object.__setattr__(host, "costs", lambda: Costs((1, 101), (1.0, 1.0 + 100 * cost), 1.0))
    object.__setattr__(host, "takes_trees", takes_trees)
    proposer = MergedProposer([Scripted(script=script) for script in scripts], num_nodes=num_nodes)
    request = Request(TokenView([0]), 1, 6, frozenset(), 0.0, Randomness(0).stream("test"))
    return proposer.bind(host).start(request)


ROOMY = Budget(99, 99, 99)


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(tree.path(node)) for node in range(1, len(tree))}


def test_nodes_of_several_trees_share_their_paths() -> None:
    tree = merged(chain(1, 2), chain(1, 3), chain(4)).propose(ROOMY)
    assert paths(tree) == {(1,), (1, 2), (1, 3), (4,)}
    shared = tree.child(0, 1)
    assert shared is not None
    assert tree.proposed_by[shared] == ("scripted", "scripted 2")


def test_each_part_hears_about_its_own_tree_in_its_own_numbering() -> None:
    heard = list[Feedback]()

    class Listening(Scripted):
        def start(self, request: Request) -> Drafter:
            drafter = super().start(request)
            drafter.observe = heard.append  # type: ignore[method-assign]
            return drafter

    model = ToyModel(lambda _: [0.0, 0.0, 0.0, 1.0], 4)
    proposer = MergedProposer([Listening(script=chain(1, 2)), Listening(script=chain(3, 3, 1))])
    result = Generator(model, proposer=proposer).generate([0, 3], max_new_tokens=9)
    assert set(result.token_ids) == {3}
    first, second = heard[:2]
    assert (first.tree.tokens, first.path) == ([3, 1, 2], (0,))
    assert (second.tree.tokens, second.path[:2]) == ([3, 3, 3, 1], (0, 1))


def test_where_only_chains_can_be_fed_the_likeliest_one_is() -> None:
    tree = merged(chain(1, 2), chain(3, 4), takes_trees=False).propose(ROOMY)
    assert tree.is_chain
    assert len(tree) > 1


def test_a_root_is_fed_alone_where_no_draft_pays() -> None:
    assert [len(merged(chain(1), cost=cost).propose(ROOMY)) for cost in (0.0, 9.0)] == [2, 1]


def test_a_root_is_fed_alone_where_no_token_is_certain_in_a_step_that_skips_drafts() -> None:
    class Unsure(Source):
        is_certain = True

        def root(self) -> int:
            return 0

        def follow(self, state: int, token: int) -> int:
            return 0

        def candidates(self, state: int) -> Sequence[Candidate]:
            return ()

    request = Request(TokenView([0]), 1, 6, frozenset(), 0.0, Randomness(0).stream("test"))
    engine = MergedProposer([Scripted(engine=lambda _: Engine(Unsure))]).bind(toy_host(6, reads_q=False))
    drafter = engine.start(request)
    assert isinstance(drafter, MergedDrafter)
    tree = drafter.skip(ROOMY, is_plain=False)
    assert len(tree) == 1


@pytest.mark.parametrize("fault", ["raises", "breaks a law", "gives no tree", "can't start"])
def test_a_part_that_fails_is_named_and_the_draft_goes_on_without_it(fault: str) -> None:
    def script(request: Request, budget: Budget) -> Any:
        if fault == "raises":
            raise RuntimeError("out of order")
        return DraftTree(99) if fault == "breaks a law" else None

    class Part(Scripted):
        def start(self, request: Request) -> Drafter:
            if fault == "can't start":
                raise RuntimeError("no place")
            return super().start(request)

    model = ToyModel.random(6, sharpness=4.0)
    plain = Generator(model, proposer="autoregressive").generate([1, 2], max_new_tokens=30)
    generator = Generator(model, proposer=MergedProposer([SuffixProposer(), Part(script=script)]))
    results = generator.generate([[1, 2], [1, 2]], max_new_tokens=30)
    assert [result.token_ids for result in results] == [plain.token_ids] * 2
    assert all(any("drafting goes on without part" in note for note in result.notes) for result in results)
    assert results[0].stats.num_nodes > results[0].stats.steps


@pytest.mark.parametrize("others", [[], [SuffixProposer()]], ids=["alone", "with suffixes"])
@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_tokens_behind_merged_sampled_drafts_have_the_targets_law(rule: str, others: list[Proposer]) -> None:
    """What goes into the tree is chosen by what was drawn: such draws mustn't be taken for draws from q."""
    from specdec import DraftModelProposer

    p, q = [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]
    drafting = ToyModel(lambda _: q, 3)
    proposer = MergedProposer([DraftModelProposer(model=drafting, num_tokens=2), *others])
    model = ToyModel(lambda _: p, 3)
    generator = Generator(model, proposer=proposer, verifier=rule)
    counts, num_fallbacks = Counter[int](), 0
    for result in generator.generate([[0, 1]] * 600, max_new_tokens=3, temperature=1.0, seed=[*range(600)]):
        counts[result.token_ids[1]] += 1
        num_fallbacks += result.stats.num_fallbacks
    assert num_fallbacks
    statistic = sum((counts[token] - 600 * chance) ** 2 / (600 * chance) for token, chance in enumerate(p))
    assert statistic < 13.8  # one in a thousand by chance


@pytest.mark.parametrize("fault", ["learns", "gives too few trees", "names what is no token"])
def test_a_part_whose_engine_or_source_fails_ends_alone(fault: str) -> None:
    stopped = list[str]()

    class Failing(Engine):
        def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
            if fault == "learns":
                raise RuntimeError("can't")

        def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
            trees = super().propose_many(drafters, budgets)
            return trees[1:] if fault == "gives too few trees" else trees

    class Wrong(Source):
        def root(self) -> int:
            return 0

        def follow(self, state: int, token: int) -> int:
            return 0

        def candidates(self, state: int) -> Sequence[Candidate]:
            return [(99, AcceptanceRate(0.9, "wrong"))]

        def stop(self) -> None:
            stopped.append("wrong")

    class Part(Scripted):
        def start(self, request: Request) -> Drafter:
            started = Wrong(request) if fault == "names what is no token" else super().start(request)
            started.stop = lambda: stopped.append(fault)  # type: ignore[method-assign]
            return started

        def bind(self, host: Host) -> Engine:
            return Failing(self.start)

    model = ToyModel.random(6, sharpness=4.0)
    plain = Generator(model, proposer="autoregressive").generate([1, 2], max_new_tokens=30)
    generator = Generator(model, proposer=MergedProposer([SuffixProposer(), Part(script=chain(1))]))
    results = generator.generate([[1, 2], [1, 2]], max_new_tokens=30)
    assert [result.token_ids for result in results] == [plain.token_ids] * 2
    assert all(any("drafting goes on without part" in note for note in result.notes) for result in results)
    assert len(stopped) == 2  # what a part holds is given back though it has failed


def test_every_engine_is_closed_whatever_the_others_do() -> None:
    closed = list[str]()

    class Closing(Engine):
        def __init__(self, start: Callable[[Request], Drafter], name: str) -> None:
            super().__init__(start)
            self._name = name

        def close(self) -> None:
            closed.append(self._name)
            if self._name == "first":
                raise RuntimeError("stuck")

    class Part(Scripted):
        name: str

        def bind(self, host: Host) -> Engine:
            if self.name == "unbound":
                raise RuntimeError("no place")
            return Closing(self.start, self.name)

    host = toy_host(6, reads_q=False)
    engine = MergedProposer([Part(script=chain(1), name=name) for name in ("first", "second")]).bind(host)
    with pytest.raises(RuntimeError, match="stuck"):
        engine.close()
    assert sorted(closed) == ["first", "second"]
    closed.clear()
    with pytest.raises(RuntimeError, match="no place"):
        MergedProposer([Part(script=chain(1), name=name) for name in ("second", "unbound")]).bind(host)
    assert closed == ["second"]


@given(data=st.data())
def test_any_trees_merge_into_a_legal_one_within_the_budget(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(trees(), min_size=1, max_size=3))
    for each in drawn:
        each.tokens[0] = 0
    budget = Budget(sum(map(len, drawn)), 99, 99)

    def script(tree: DraftTree) -> Script:
        return lambda *_: tree

    tree = merged(*map(script, drawn)).propose(budget)
    tree.check(0, 6, budget, "merge")
    assert paths(tree) <= set[tuple[int, ...]]().union(*map(paths, drawn))
    candidates = {tuple(tree.path(node)) for node in tree.nodes_with(Role.CANDIDATE)}
    assert candidates <= {tuple(each.path(node)) for each in drawn for node in each.nodes_with(Role.CANDIDATE)}


def test_a_merge_is_made_of_names_too() -> None:
    generator = Generator(ToyModel.random(6), proposer="suffix:depth=4 + token_recycling + prompt_lookup:num_tokens=4")
    assert generator.proposer == MergedProposer(
        [SuffixProposer(depth=4), TokenRecyclingProposer(), PromptLookupProposer(num_tokens=4)]
    )
    generator = Generator(ToyModel.random(6), proposer="auto+prompt_lookup")
    of_auto = SuffixProposer(), TokenRecyclingProposer(), GrammarProposer(), ReferenceProposer()
    assert generator.proposer == MergedProposer([*of_auto, PromptLookupProposer()])
    with pytest.raises(PluginError, match="unknown proposer 'sufix': did you mean suffix"):
        Generator(ToyModel.random(6), proposer="sufix+prompt_lookup")


def test_recycled_predictions_are_draws_where_the_noise_is_known() -> None:
    model = ToyModel.random(8, order=1, sharpness=1.0, seed=3)
    taus = {}
    for temperature in (0.0, 1.0):
        generator = Generator(model, proposer="token_recycling:min_probability=0.2")
        result = generator.generate([1, 2], max_new_tokens=300, temperature=temperature, seed=2)
        taus[temperature] = result.stats.tokens_per_step
    assert taus[1.0] > 2.5  # the law of a token is known once it was seen, and so is what is drawn from it


def test_each_strategy_is_credited_with_what_it_named_by_depth() -> None:
    model = ToyModel(lambda _: [0.0, 0.0, 0.0, 1.0], 4)
    proposer = MergedProposer([Scripted(script=chain(3, 3)), Scripted(script=chain(3, 1)), SuffixProposer()])
    result = Generator(model, proposer=proposer).generate([0, 1], max_new_tokens=3)
    assert result.stats.accepted_lengths == [3]
    assert result.stats.sources == {"scripted": {1: [1, 1], 2: [1, 1]}, "scripted 2": {1: [1, 1], 2: [1, 0]}}


def test_parts_learn_from_steps_prepare_and_forget_under_rules_that_read_q_as_well() -> None:
    told = list[str]()

    class Counting(Engine):
        def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
            told.append("learn")

        def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
            told.append("prepare")
            return True

        def forget(self) -> None:
            told.append("forget")

    class Counted(Scripted):
        def bind(self, host: Host) -> Engine:
            return Counting(self.start)

    generator = Generator(ToyModel.random(4), proposer=MergedProposer([Counted(script=chain(1))]), verifier="rejection")
    result = generator.generate([1], max_new_tokens=5, temperature=1.0)
    generator.prepare()
    generator.forget()
    assert told == ["learn"] * result.stats.steps + ["prepare", "forget"]


def test_where_the_text_depends_on_drafts_a_request_drafts_alike_alone_and_beside_others() -> None:
    def drafted(with_others: bool) -> list[DraftTree]:
        """The trees of a text that repeats itself, with a part whose acceptance rates the other text spoils."""
        host = toy_host(6, reads_q=True)
        engine = MergedProposer([SuffixProposer(), Scripted(script=chain(1, 2))]).bind(host)
        texts = [[0, 1, 2, 3] * 4, [5, 4, 5, 5]][: 1 + with_others]
        drafters = [
            engine.start(Request(TokenView(text), len(text), 6, frozenset(), 0.0, Randomness(0).stream("test")))
            for text in texts
        ]
        trees = list[DraftTree]()
        for _ in range(20):
            proposed = engine.propose_many(drafters, [ROOMY] * len(texts))
            for text, drafter, tree in zip(texts, drafters, proposed, strict=True):
                assert isinstance(tree, DraftTree)
                text.append((text[-1] + 1) % 4 if text is texts[0] else 5)
                drafter.observe(Feedback(tree, (0,), (text[-1],)))
            others = [Outcome(ANY_REQUEST)] * 3 if with_others else []  # of another strategy
            outcomes = [
                Outcome(ANY_REQUEST, tree=tree, tokens=(1,)) for tree in proposed if isinstance(tree, DraftTree)
            ]
            engine.learn(StepRecord("step", (*outcomes, *others), {"forward": 1.0}, width=9), outcomes)
            assert isinstance(proposed[0], DraftTree)
            trees.append(proposed[0])
        return trees

    alone, together = drafted(False), drafted(True)
    assert [(tree.tokens, tree.parents) for tree in alone] == [(tree.tokens, tree.parents) for tree in together]
    assert max(map(len, alone)) > 3


def test_a_merge_that_rests_drafts_nothing_and_still_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, heard = list[int](), list[Feedback]()

    class Listening(Scripted):
        def start(self, request: Request) -> Drafter:
            drafter = super().start(request)
            drafter.observe = heard.append  # type: ignore[method-assign]
            return drafter

    def script(request: Request, budget: Budget) -> DraftTree:
        asked.append(len(request.tokens))
        return chain(1)(request, budget)

    recycling = TokenRecyclingProposer()
    engine = MergedProposer([Listening(script=script), recycling]).bind(toy_host(6, reads_q=False))
    assert isinstance(engine, MergedEngine)
    monkeypatch.setattr(engine._sizer, "skips", lambda *_: True)
    request = Request(TokenView([3, 0, 4]), 1, 6, frozenset(), 0.0, Randomness(0).stream("test"))
    drafter = engine.start(request)
    tree = drafter.propose(ROOMY)
    (signal,) = recycling.wants()
    feedback = Feedback(tree, (0,), (4,), {signal: Answers(lambda: {0: ((4,), (1.0,))})})
    drafter.receive(feedback)
    drafter.observe(feedback)
    assert (len(tree), asked, heard) == (1, [], [])
    monkeypatch.undo()
    assert drafter.propose(ROOMY).child(0, 1) is not None
    assert asked == [3]
    memory = engine.parts[1].engine
    assert isinstance(memory, RecyclingEngine)
    assert memory.of_token == {4: ((4,), (1.0,))}  # the root was asked about
