"""The exact distribution that a rule emits: the production code over known distributions, every outcome enumerated."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specdec.backends.output import Output, OutputRow
from specdec.backends.toy import Law
from specdec.sampling.distributions import NodeDistributions
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import RandomSource
from specdec.settings import Settings
from specdec.testing.enumeration import outcomes
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier

TreeDrawing = Callable[[RandomSource], DraftTree]
CPU = torch.device("cpu")


def target_of(
    p: Law, tree: DraftTree, context: Sequence[int], settings: Settings, chances: RandomSource
) -> NodeDistributions:
    """The production target over a known distribution: logits are its logarithm, in float64."""
    laws = np.array([p((*context, *tree.path(node))) for node in range(len(tree))])
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(laws))[None]
    warper = Warper(settings, len(context), (), CPU)
    return NodeDistributions(tree, OutputRow(Output(logits, range(len(tree))), 0), context, warper, chances)


def verdict_of(
    verifier: Verifier, p: Law, tree: DraftTree, context: Sequence[int], settings: Settings, chances: RandomSource
) -> Verdict:
    """A rule's verdict on a tree below the last token of ``context``, checked for legality as the core checks it."""
    verdict = verifier.verify(tree, target_of(p, tree, context, settings, chances), chances)
    verdict.check(tree)
    return verdict


def plain_law(
    p: Law, context: Sequence[int], num_tokens: int, settings: Settings | None = None
) -> dict[tuple[int, ...], float]:
    """The distribution of the next tokens in plain decoding."""
    settings = settings or Settings(temperature=1.0)

    def run(chances: RandomSource) -> tuple[int, ...]:
        return _go_on(p, context, (), num_tokens, settings, chances)

    return outcomes(run)


def emitted_law(
    verifier: Verifier,
    p: Law,
    draw: TreeDrawing,
    context: Sequence[int],
    num_tokens: int,
    settings: Settings | None = None,
) -> dict[tuple[int, ...], float]:
    """The distribution of the first tokens when a random tree is drawn and verified, and plain decoding goes on."""
    settings = settings or Settings(temperature=1.0)

    def run(chances: RandomSource) -> tuple[int, ...]:
        verdict = verdict_of(verifier, p, draw(chances), context, settings, chances)
        return _go_on(p, context, verdict.tokens, num_tokens, settings, chances)

    return outcomes(run)


def expected_length(
    verifier: Verifier, p: Law, draw: TreeDrawing, context: Sequence[int], settings: Settings | None = None
) -> float:
    """tau: the expected number of tokens that one step emits, the bonus token included."""
    settings = settings or Settings(temperature=1.0)

    def run(chances: RandomSource) -> int:
        return len(verdict_of(verifier, p, draw(chances), context, settings, chances).tokens)

    return sum(length * chance for length, chance in outcomes(run).items())


def _go_on(
    p: Law, context: Sequence[int], emitted: Sequence[int], num_tokens: int, settings: Settings, chances: RandomSource
) -> tuple[int, ...]:
    tokens = list(emitted[:num_tokens])
    while len(tokens) < num_tokens:
        known = [*context, *tokens]
        law = target_of(p, DraftTree(known[-1]), known, settings, chances).probs(ROOT)
        assert law is not None, "laws under test are possible"
        tokens.append(chances.categorical(law, len(known)))
    return tuple(tokens)
