"""Every lossless verifier: a legal path, and the target's own law for any tree."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdec import ROOT, DraftTree, Role, ToyModel
from specdec.backends import Output, OutputRow
from specdec.sampling import NodeDistributions, Randomness, Warper
from specdec.settings import Settings
from specdec.testing import trees
from tests.support.examples import examples
from tests.support.generators import REGISTRY, VERIFIERS
from tests.support.plain import decode_law

PREFIX = [1, 2]


def target_of(model: ToyModel, tree: DraftTree, temperature: float, seed: int) -> NodeDistributions:
    """Answers from logits that are looked up path by path."""
    committed = [*PREFIX, tree.tokens[ROOT]]
    laws = [model.probs((*committed, *tree.path(node))) for node in range(len(tree))]
    output = Output(torch.tensor(np.array(laws)).log()[None], range(len(tree)))
    settings_ = Settings(temperature=temperature)
    warper = Warper(settings_, len(committed), (), torch.device("cpu"))
    return NodeDistributions(tree, OutputRow(output, 0), committed, warper, Randomness(seed))


@pytest.mark.parametrize("verifier", VERIFIERS)
@given(tree=trees(), seed=st.integers(0, 2**63 - 1), temperature=st.sampled_from([0.0, 1.0]))
def test_the_path_is_legal_and_the_tokens_are_its_own_and_one_more(
    verifier: str, tree: DraftTree, seed: int, temperature: float
) -> None:
    model = ToyModel.random(vocab_size=6, order=3, seed=seed % 100)
    rule = REGISTRY.make("verifiers", verifier)
    verdict = rule.verify(tree, target_of(model, tree, temperature, seed), Randomness(seed))
    assert verdict.path[0] == ROOT
    for parent, child in zip(verdict.path, verdict.path[1:], strict=False):
        assert tree.parents[child] == parent
        assert tree.roles[child] & Role.CANDIDATE
    assert list(verdict.tokens[:-1]) == [tree.tokens[node] for node in verdict.path[1:]]
    assert 0 <= verdict.tokens[-1] < 6


@pytest.mark.parametrize("verifier", VERIFIERS)
@given(tree=trees(), seed=st.integers(0, 2**63 - 1))
def test_match_emits_what_plain_keyed_decoding_emits(verifier: str, tree: DraftTree, seed: int) -> None:
    if verifier != "match":
        pytest.skip("a property of noise keyed by position")
    model = ToyModel.random(vocab_size=6, order=3, seed=seed % 100)
    for temperature, key in ((0.0, None), (1.0, seed)):
        rule = REGISTRY.make("verifiers", verifier)
        verdict = rule.verify(tree, target_of(model, tree, temperature, seed), Randomness(seed))
        plain = decode_law(model.probs, [*PREFIX, tree.tokens[ROOT]], len(verdict.tokens), key)
        assert list(verdict.tokens) == plain
        accepted = tree.child(verdict.path[-1], verdict.tokens[-1])
        assert accepted is None, "a further candidate matched and was not taken"


@pytest.mark.parametrize("verifier", VERIFIERS)
@examples(2)  # test_exact_laws enumerates the same law; this test draws with the production randomness
@given(tree=trees(vocab_size=3, max_nodes=8), law_seed=st.integers(0, 99))
def test_the_law_of_the_first_tokens_is_the_targets(verifier: str, tree: DraftTree, law_seed: int) -> None:
    model = ToyModel.random(vocab_size=3, order=2, seed=law_seed, sharpness=1.0)
    rule = REGISTRY.make("verifiers", verifier)
    counts = dict.fromkeys(product(range(3), repeat=2), 0)
    num_runs = 2000
    for seed in range(num_runs):
        tokens = list(rule.verify(tree, target_of(model, tree, 1.0, seed), Randomness(seed)).tokens)
        if len(tokens) == 1:  # go on by plain sampling with noise of its own
            law = model.probs((*PREFIX, tree.tokens[ROOT], *tokens))
            tokens.append(int(np.random.default_rng([seed, 1]).choice(3, p=law)))
        counts[tokens[0], tokens[1]] += 1
    root = (*PREFIX, tree.tokens[ROOT])
    expected = [model.probs(root)[a] * model.probs((*root, a))[b] * num_runs for a, b in counts]
    assert stats.chisquare(list(counts.values()), expected).pvalue > 1e-4
