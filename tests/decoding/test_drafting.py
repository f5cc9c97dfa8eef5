"""Drafts without the candidates that a constraint refuses."""

import pytest
import torch

from specdec import DraftTree, Generator, ToyModel
from specdec.constraints.base import Vocabulary
from specdec.constraints.path_state import PathState
from specdec.decoding.drafting import allowed_part
from specdec.record import StepRecord
from specdec.testing import FixedTokens, TableConstraint
from specdec.tree import ROOT, Role

VOCAB, END = 8, 0
STATE = PathState(FixedTokens(tokens=(7, 5)).start(Vocabulary(None, VOCAB)), frozenset({END}), VOCAB)


def test_refused_candidates_are_left_out_with_what_is_below_them() -> None:
    tree = DraftTree(3)
    tree.add_chain(ROOT, [7, 5, END, 2])  # nothing follows an end of text
    tree.add_chain(ROOT, [7, 6, 5])
    tree.add_chain(ROOT, [END])  # the constraint isn't met yet
    part = allowed_part(tree, STATE)
    assert [part.path(node) for node in range(len(part))] == [[], [7], [7, 5], [7, 5, END]]
    assert part.place_of(tree) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_nodes_of_other_roles_stay_with_all_above_them() -> None:
    tree = DraftTree(3)
    refused = tree.add(ROOT, 1)
    tree.add(refused, 2, Role.SUPPORT)
    tree.add(refused, 7)
    tree.add(ROOT, 4, Role.CANDIDATE | Role.PROBE)
    part = allowed_part(tree, STATE)
    assert [part.path(node) for node in range(len(part))] == [[], [1], [1, 2], [4]]


def test_trees_that_lose_nothing_and_sampled_ones_are_as_they_were() -> None:
    allowed, sampled = DraftTree(3), DraftTree(3)
    allowed.add_chain(ROOT, [7, 5])
    sampled.add(ROOT, 1, q=torch.full((VOCAB,), 1 / VOCAB))
    assert allowed_part(allowed, STATE) is allowed
    assert allowed_part(sampled, STATE) is sampled


@pytest.mark.parametrize("proposer", ["prompt_lookup:num_matches=4", "lookahead:N=3,W=3,G=3"])
def test_no_pass_of_a_strategy_has_a_candidate_that_is_refused(proposer: str) -> None:
    """Each text against its masks by a walk from the start."""
    records, num_candidates = list[StepRecord](), 0
    constraint = TableConstraint(seed=2, prob_of_refusal=0.5, prob_of_end=0.0)
    generator = Generator(ToyModel.random(4, seed=1, sharpness=3.0), proposer=proposer)
    generator.generate([1, 2, 3, 1, 2, 3, 0, 1], constraint=constraint, max_new_tokens=40, on_step=records.append)
    state = constraint.start(Vocabulary(None, 4))
    for outcome in (record.outcomes[0] for record in records):
        tree = outcome.tree or DraftTree(0)
        support = {parent for node, parent in enumerate(tree.parents) if tree.roles[node] != Role.CANDIDATE}
        for node in tree.nodes_with(Role.CANDIDATE):
            if tree.roles[node] == Role.CANDIDATE and node not in support:
                after = state
                for token in tree.path(node):
                    assert after.mask()[token]
                    after = after.advance(token)
                num_candidates += 1
        for token in outcome.tokens:
            state = state.advance(token)
    assert num_candidates > 5
