"""Drafts from a reference: how many tokens they save, and that an unrelated one is left alone."""

import random
from dataclasses import replace

import pytest

from specdec import Budget, DraftTree, Feedback, Generator, Proposer, RequestError, ToyModel
from specdec.backends.toy import TokenDistribution
from specdec.costs import NOMINAL_COSTS
from specdec.decoding import TokenView
from specdec.sampling import Randomness
from specdec.strategies import (
    AutoProposer,
    Drafter,
    Engine,
    MergedProposer,
    ReferenceProposer,
    Request,
    Source,
    SuffixProposer,
)
from specdec.testing import toy_host

VOCAB = 300
TEXT = random.Random(3).choices(range(VOCAB), k=400)
WRONG = random.Random(4).choices(range(VOCAB), k=400)
ROOMY = Budget(32, 512, 512)


def edited(text: list[int], share: float) -> list[int]:
    """A text with some tokens replaced, left out or preceded by another one."""
    rng, found = random.Random(5), list[int]()
    for token in text:
        other = rng.randrange(VOCAB)
        found += rng.choice([[other], [], [other, token]]) if rng.random() < share else [token]
    return found


def engine_of(num_nodes: int = 32) -> Engine:
    return ReferenceProposer(num_nodes=num_nodes).bind(toy_host(VOCAB, reads_q=False))


def started(engine: Engine, reference: list[int]) -> tuple[Drafter, list[int]]:
    """A request's drafter, and its tokens."""
    tokens, rng = [0], Randomness(0).stream("test")
    return engine.start(Request(TokenView(tokens), 1, VOCAB, frozenset(), 0.0, rng, reference=reference)), tokens


def decoded(engine: Engine, reference: list[int], text: list[int] = TEXT) -> list[DraftTree]:
    """The trees of a request whose text is given."""
    drafter, tokens = started(engine, reference)
    trees = list[DraftTree]()
    while len(tokens) <= len(text):
        tree = drafter.propose(ROOMY)
        tree.check(tokens[-1], VOCAB, ROOMY, "reference")
        trees.append(tree)
        path, emitted = [0], list[int]()
        for token in text[len(tokens) - 1 :]:
            emitted.append(token)
            if (child := tree.child(path[-1], token)) is None:
                break
            path.append(child)
        tokens += emitted
        drafter.observe(Feedback(tree, tuple(path), tuple(emitted)))
    return trees


def test_the_text_itself_takes_a_step_for_each_full_draft() -> None:
    engine = engine_of()
    decoded(engine, TEXT)  # learns how often it is right
    assert len(decoded(engine, TEXT)) <= -(-len(TEXT) // 33) + 1


def test_after_an_edit_drafts_go_on_in_the_same_step() -> None:
    changed, engine = edited(TEXT, 0.03), engine_of()
    assert changed != TEXT
    decoded(engine, changed)
    assert len(TEXT) / len(decoded(engine, changed)) > 10


def test_an_unrelated_reference_is_soon_left_alone_also_after_right_ones() -> None:
    engine = engine_of()
    for _ in range(3):
        decoded(engine, edited(TEXT, 0.03))
    trees = decoded(engine, WRONG)
    assert sum(len(tree) - 1 for tree in trees[:16]) <= 3 * 32
    assert sum(len(tree) - 1 for tree in trees[16:]) <= len(trees) * 0.1


def test_an_unrelated_reference_isnt_searched_until_two_tokens_of_it_come() -> None:
    source, tokens = started(engine_of(), WRONG)
    assert isinstance(source, Source)
    assert source.root() is not None
    tokens += TEXT[:50]
    assert source.root() is None
    tokens += WRONG[100:102]
    assert source.root() is not None


def test_a_reference_that_begins_later_is_found() -> None:
    engine = engine_of()
    trees = decoded(engine, TEXT, [*WRONG[:100], *TEXT])
    assert len(trees) < 100 + 40
    assert any(len(tree) > 20 for tree in trees[100:115])


def test_without_a_reference_nothing_is_drafted() -> None:
    assert all(len(tree) == 1 for tree in decoded(engine_of(), []))


def test_a_model_without_trees_gets_chains() -> None:
    engine = ReferenceProposer().bind(replace(toy_host(VOCAB, reads_q=False), takes_trees=False))
    assert all(tree.is_chain for tree in decoded(engine, edited(TEXT, 0.1)))


def scripted(text: list[int]) -> ToyModel:
    """A model that writes a text after a prompt of one token."""

    def probs(context: tuple[int, ...]) -> list[float]:
        law = [0.0] * VOCAB
        law[text[(len(context) - 1) % len(text)]] = 1.0
        return law

    law: TokenDistribution = probs
    return ToyModel(law, VOCAB)


MERGE = MergedProposer([SuffixProposer(), ReferenceProposer()], loss=0.9, clock=False)


@pytest.mark.parametrize("proposer", [ReferenceProposer(), MERGE, AutoProposer(loss=0.9, clock=False)])
def test_a_generator_drafts_from_each_requests_own_reference(
    proposer: Proposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.runtime.binding.costs_of", lambda *_: NOMINAL_COSTS)  # on a busy machine nothing pays
    generator, prompts = Generator(scripted(TEXT), proposer=proposer), [[0], [0], [0]]
    plain = generator.generate(prompts, max_new_tokens=120)
    generator.forget()
    results = generator.generate(prompts, max_new_tokens=120, reference=[edited(TEXT, 0.03), None, WRONG])
    assert [result.token_ids for result in results] == [result.token_ids for result in plain]
    right, none, wrong = (result.stats.tokens_per_step for result in results)
    assert right > 6
    if not isinstance(proposer, AutoProposer):  # which learns from the request beside
        assert max(none, wrong) < 1.3


def test_a_strategy_that_doesnt_read_references_is_refused_with_the_remedy() -> None:
    generator = Generator(ToyModel.counting(10), proposer="prompt_lookup")
    with pytest.raises(RequestError, match="PromptLookupProposer doesn't draft from a reference: use proposer='auto'"):
        generator.generate([1], reference=[2, 3])
    assert generator.generate([1], max_new_tokens=3, reference=[2, 3], proposer="prompt_lookup+reference").token_ids
    assert generator.generate([1], max_new_tokens=3, reference=None).token_ids
