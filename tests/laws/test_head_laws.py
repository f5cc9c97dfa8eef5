"""Drafts drawn from a trained head and a rule that reads q: the target's own law, enumerated exactly."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec import Budget, Feedback
from specdec.heads import Eagle3Config, Eagle3Head, TorchRunner
from specdec.sampling import RandomSource, Warper
from specdec.settings import Settings
from specdec.strategies import HiddenAnswers, Nodes
from specdec.strategies.trained_heads.engine import HeadEngine, TreeOptions
from specdec.strategies.trained_heads.sampled_candidates import DrawingEngine
from specdec.testing import TableDistribution, outcomes, plain_distribution, target_of, total_variation
from specdec.testing.checks import EnumeratedRequest
from specdec.verifiers import Verifier
from tests.support.generators import REGISTRY

VOCAB, CONTEXT, NUM_TOKENS = 4, (1, 2, 0), 2
ROUNDING = 1e-6  # the head's distribution is float32
SHAPES = {
    "chain": TreeOptions(top_k=1, depth=2, num_nodes=8, min_probability=0.0),
    "one draw and one chosen sibling": TreeOptions(top_k=2, depth=1, num_nodes=2, min_probability=0.0),
    "tree": TreeOptions(top_k=2, depth=2, num_nodes=4, min_probability=0.0),
    "improbable paths end": TreeOptions(top_k=2, depth=2, num_nodes=4, min_probability=0.25),
}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 2},
    {"temperature": 1.0, "top_p": 0.7},
]


def head_of(seed: int) -> Eagle3Head:
    """A head that drafts three of the four tokens."""
    config = Eagle3Config(
        hidden_size=8,
        target_hidden_size=4,
        intermediate_size=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=VOCAB,
        draft_vocab_size=3,
    )
    draw = torch.Generator().manual_seed(seed)
    head = Eagle3Head(config, torch.randn(VOCAB, 8, generator=draw))
    for name, parameter in head.named_parameters():
        if "norm" not in name:
            parameter.data = torch.randn(parameter.shape, generator=draw) * 0.5
    head.set_vocabulary(torch.tensor([0, 1, 3]))
    return head


def budget_of(num_left: int) -> Budget:
    """A budget that drafts as deep as there are tokens left, so that a later step has fewer outcomes."""
    return Budget(num_nodes=16, depth=16, num_tokens=num_left + 1)


def states_of(tokens: list[int], start: int, stop: int) -> HiddenAnswers:
    """Hidden states, (nodes, 3, 4), that are functions of position and token."""
    rows = [torch.linspace(-1, 1, 12) * (1 + tokens[at]) + torch.arange(12) % (2 + at) for at in range(start, stop)]
    return HiddenAnswers(range(start, stop), lambda: torch.stack(rows).view(-1, 3, 4))


def emitted(
    engine: HeadEngine, rule: Verifier, p: TableDistribution, settings: Settings, chances: RandomSource
) -> list[int]:
    """The tokens of the first steps of the head and a rule."""
    tokens, warper = list(CONTEXT), Warper(settings, len(CONTEXT), (), torch.device("cpu"))
    warped = replace(
        EnumeratedRequest.of(tokens, VOCAB, chances),
        temperature=settings.temperature,
        warp=lambda path, logits: warper.draft_probs([*tokens, *path], logits),
    )
    object.__setattr__(warped, "source", chances)
    drafter = engine.start(warped)
    num_read = len(tokens) - 1
    drafter.read(num_read, budget_of(NUM_TOKENS), {(Nodes.PROMPT, engine.states): states_of(tokens, 0, num_read)})
    while len(tokens) < len(CONTEXT) + NUM_TOKENS:
        budget, root = budget_of(NUM_TOKENS + len(CONTEXT) - len(tokens)), len(tokens) - 1
        tree = drafter.propose(budget)
        tree.check(tokens[-1], VOCAB, budget, "eagle3")
        tree.check_draws(VOCAB, "eagle3")
        assert tree.has_sampled_draws
        verdict = rule.verify(tree, target_of(p, tree, tuple(tokens), settings, chances), chances)
        tokens += verdict.tokens
        states = states_of(tokens, root, len(tokens) - 1)
        drafter.receive(Feedback(tree, verdict.path, verdict.tokens, {(Nodes.PATH, engine.states): states}))
    return tokens[len(CONTEXT) :]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("changed", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["rejection", "traversal"])
@torch.no_grad()
def test_steps_of_the_head_and_a_rule_have_the_targets_law(name: str, changed: dict[str, Any], shape: str) -> None:
    rule, settings, p = REGISTRY.make("verifiers", name), Settings(**changed), TableDistribution(VOCAB, 1)
    engine = DrawingEngine(SHAPES[shape], TorchRunner(head_of(1), None), (1, 2, 3), learns=False, name="eagle3")

    def run(chances: RandomSource) -> tuple[int, ...]:
        return tuple(emitted(engine, rule, p, settings, chances)[:NUM_TOKENS])

    found = outcomes(run)
    assert total_variation(found, plain_distribution(p, CONTEXT, NUM_TOKENS, settings)) <= ROUNDING
