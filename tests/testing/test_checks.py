"""The checks that a plug-in author's suite calls: who passes, who doesn't, and what the refusal says."""

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr

from specdec import (
    Budget,
    Drafter,
    DraftTree,
    Engine,
    Feedback,
    Generator,
    Host,
    ModelError,
    PluginError,
    Proposer,
    Request,
    ToyModel,
)
from specdec.apps.in_transformers.candidates import ProposerCandidates
from specdec.testing import (
    Shape,
    TableDistribution,
    check_drafting,
    check_proposer,
    check_verifier,
    first_drafts,
    toy_tokenizer,
)
from specdec.verifiers.match import MatchVerifier
from specdec.verifiers.traversal import TraversalVerifier

PROMPTS = [[0, 1], [3], [2, 2, 1, 2]]


def cycle(context: tuple[int, ...]) -> list[float]:
    """A law that counts 0, 1, 2, 3, 0, … with a little noise."""
    return [0.91 if token == (context[-1] + 1) % 4 else 0.03 for token in range(4)]


class FollowingDrafter(Drafter):
    """Proposes the successor that it was last told of, and tells its engine's table."""

    def __init__(self, request: Request, successor: dict[int, int]) -> None:
        super().__init__(request)
        self.successor = successor

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        if self.request.root in self.successor and min(budget.depth, budget.num_nodes) > 0:
            tree.add(0, self.successor[self.request.root])
        return tree

    def observe(self, feedback: Feedback) -> None:
        self.successor.update(pairwise([feedback.tree.tokens[0], *feedback.tokens]))


class Silent(Proposer):
    """Learns across requests, and doesn't say so."""

    def bind(self, host: Host) -> Engine:
        successor = dict[int, int]()
        return Engine(lambda request: FollowingDrafter(request, successor))


class Declared(Silent):
    """The same strategy, which says so."""

    learns_across_requests = True


class DicingDrafter(Drafter):
    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        if min(budget.depth, budget.num_nodes) > 0:
            tree.add(0, DICE.randrange(4))
        return tree


DICE = random.Random(3)


class Dicing(Proposer):
    """Draws from dice of its own."""

    def start(self, request: Request) -> Drafter:
        return DicingDrafter(request)


def test_a_strategy_that_learns_across_requests_passes_where_it_declares_so() -> None:
    check_proposer(Declared(), ToyModel(cycle, 4), PROMPTS)


@pytest.mark.parametrize("proposer", [Silent(), Dicing()])
def test_drafts_that_differ_the_second_time_are_refused_with_both_causes_and_both_remedies(proposer: Proposer) -> None:
    with pytest.raises(AssertionError) as caught:
        check_proposer(proposer, ToyModel(cycle, 4), PROMPTS)
    assert str(caught.value) == (
        f"{proposer!r} drafted differently the second time, by chance or because of an earlier request: draw "
        "from request.rng alone, or declare learns_across_requests = True"
    )


class SpellingDrafter(Drafter):
    """Drafts the text's next words by their spelling: "1" is followed by what follows it in the text before."""

    def __init__(self, request: Request, tokenizer: Any) -> None:
        super().__init__(request)
        self._tokenizer = tokenizer

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        words = self._tokenizer.decode(list(self.request.tokens)).split()
        after = dict(pairwise(words)).get(words[-1])
        if after is not None and min(budget.depth, budget.num_nodes) > 0:
            tree.add(0, self._tokenizer.encode(after)[0])
        return tree


class Spelling(Proposer):
    """Needs the tokenizer, and so has a ``bind`` and no ``start``."""

    def bind(self, host: Host) -> Engine:
        if host.tokenizer is None:
            raise ModelError("spelling needs a tokenizer")
        return Engine(lambda request: SpellingDrafter(request, host.tokenizer))


def test_a_strategy_that_needs_a_tokenizer_is_given_one() -> None:
    tokenizer, model = toy_tokenizer(4), ToyModel(cycle, 4)
    check_proposer(Spelling(), model, PROMPTS, tokenizer=tokenizer)
    assert Generator(model, tokenizer, proposer=Spelling()).generate("0 1 2 3 0", max_new_tokens=8).stats.steps < 8
    check_drafting(Spelling(), MatchVerifier(), cycle, [0, 1], 4, tokenizer=tokenizer)
    assert [tree.tokens for tree in first_drafts(Spelling(), [2, 3, 2], vocab_size=4, tokenizer=tokenizer)] == [[2, 3]]
    candidates = ProposerCandidates(Spelling(), vocab_size=4, tokenizer=tokenizer)
    assert candidates.get_candidates(torch.tensor([[2, 3, 2]]))[0].tolist() == [[2, 3, 2, 3]]
    with pytest.raises(ModelError, match="spelling needs a tokenizer"):
        check_proposer(Spelling(), model, PROMPTS)


def test_the_toy_tokenizer_spells_every_id_and_reads_it_again() -> None:
    tokenizer = toy_tokenizer(12)
    ids = [11, 0, 3, 10]
    assert tokenizer.decode(ids) == "11 0 3 10"
    assert tokenizer("11 0 3 10", add_special_tokens=False)["input_ids"] == tokenizer.encode("11 0 3 10") == ids


def test_the_toy_tokenizer_has_the_given_texts_line_breaks_among_them() -> None:
    tokenizer = toy_tokenizer(8, {6: ".", 7: "\n"})
    assert tokenizer.decode([1, 7, 2, 6]) == "1 \n 2 ."
    assert tokenizer.encode("1 \n 2 .") == [1, 7, 2, 6]
    assert tokenizer.decode([7]) == "\n"


class Overreaching(TraversalVerifier):
    """Reads the target on rejected paths, and says that it doesn't."""

    stays_on_the_text = True


def test_a_rule_that_reads_rejected_nodes_is_refused_if_it_declares_that_it_doesnt() -> None:
    chain = Shape((("sampled", Shape()),))
    given = TableDistribution(3, seed=1), TableDistribution(3, seed=2), chain, [0]
    check_verifier(TraversalVerifier(), *given)
    with pytest.raises(AssertionError, match=r"Overreaching declares stays_on_the_text = True, but .* \(0, 1\)"):
        check_verifier(Overreaching(), *given)


class Neither(Proposer):
    """Defines neither ``start`` nor ``bind``."""


def test_a_strategy_without_start_and_bind_is_refused_when_a_generator_is_made() -> None:
    with pytest.raises(PluginError, match=r"Neither defines neither start\(request\) nor bind\(host\)"):
        Generator(ToyModel(cycle, 4), proposer=Neither())


class Saboteur(Declared):
    """Changes the model's distribution when the given number of requests have been started."""

    at: int
    _num_started: int = PrivateAttr(0)

    def bind(self, host: Host) -> Engine:
        engine = super().bind(host)

        def start(request: Request) -> Drafter:
            self._num_started += 1
            return engine.start(request)

        return Engine(start)

    def probs(self, context: tuple[int, ...]) -> list[float]:
        return cycle(context) if self._num_started < self.at else cycle(context)[::-1]


@pytest.mark.parametrize(
    ("at", "fault"),
    [
        (1, "changed the text of a batch"),
        (4, "changed the text of a prompt alone"),
        (5, "changed the text of a prompt the second time"),
        (6, "changed the text of a batch in another order"),
    ],
)
def test_a_strategy_that_learns_is_held_to_the_text_in_every_run(at: int, fault: str) -> None:
    saboteur = Saboteur(at=at)
    with pytest.raises(AssertionError) as caught:
        check_proposer(saboteur, ToyModel(saboteur.probs, 4), PROMPTS)
    assert str(caught.value) == f"Saboteur(at={at}) {fault}"
