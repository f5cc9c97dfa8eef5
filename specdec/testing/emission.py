"""The exact distribution of the tokens that a rule emits, by enumerating every outcome of the production code."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec.backends import Output, OutputRow, TokenDistribution
from specdec.constraints import PathState, Vocabulary
from specdec.sampling import NodeDistributions, RandomSource, Warper
from specdec.settings import Settings
from specdec.testing.enumeration import outcomes
from specdec.tree import ROOT, DraftTree
from specdec.verifiers import Verdict, Verifier

TreeDrawing = Callable[[RandomSource], DraftTree]
CPU = torch.device("cpu")


class WatchedDistributions(NodeDistributions):
    """The target's distributions, with a record of the nodes that a rule reads.

    Attributes:
        nodes_read: in the order of their first reads.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.nodes_read: list[int] = []

    def draw(self, node: int) -> int:
        self._note(node)
        return super().draw(node)

    def probs(self, node: int) -> torch.Tensor | None:
        self._note(node)
        return super().probs(node)

    def _note(self, node: int) -> None:
        if node not in self.nodes_read:
            self.nodes_read.append(node)


def target_of(
    p: TokenDistribution,
    tree: DraftTree,
    context: Sequence[int],
    settings: Settings,
    source: RandomSource,
    prompt_length: int | None = None,
) -> WatchedDistributions:
    """Return the target's distributions at a tree's nodes for a known p; logits are log p, in float64.

    Args:
        prompt_length: tokens of ``context`` before the text, which a constraint is about; all of them by default.
    """
    laws = [list(p((*context, *tree.path(node)))) for node in range(len(tree))]
    logits = torch.tensor(laws, dtype=torch.float64).log()[None]
    warper = Warper(settings, len(context), (), CPU)
    constraint = None
    if settings.constraint is not None:
        first = settings.constraint.start(Vocabulary(None, len(laws[0])))
        new_tokens = () if prompt_length is None else context[prompt_length:]
        constraint = PathState(first, frozenset(), len(laws[0])).after(new_tokens)
    row = OutputRow(Output(logits, range(len(tree))), 0)
    return WatchedDistributions(tree, row, context, warper, source, constraint)


def verdict_of(
    verifier: Verifier,
    p: TokenDistribution,
    tree: DraftTree,
    context: Sequence[int],
    settings: Settings,
    source: RandomSource,
) -> Verdict:
    """Return a rule's verdict on a tree below the last token of ``context``, checked as the core checks it.

    Raises:
        AssertionError: if a rule that declares ``stays_on_the_text`` reads the target at other nodes.
    """
    target = target_of(p, tree, context, settings, source)
    verdict = verifier.verify(tree, target, source)
    verdict.check(tree)
    read = tuple(target.nodes_read)
    assert not verifier.stays_on_the_text or read == verdict.path[: len(read)], (
        f"{type(verifier).__name__} declares stays_on_the_text = True, but reads the target at the nodes {read} of "
        f"{tree} and accepts {verdict.path}: read accepted nodes only, in order, or declare False"
    )
    return verdict


def plain_distribution(
    p: TokenDistribution, context: Sequence[int], num_tokens: int, settings: Settings | None = None
) -> dict[tuple[int, ...], float]:
    """Return the distribution of the next tokens in plain decoding."""
    return _texts_from(p, context, (), num_tokens, settings or Settings(temperature=1.0))


def emitted_distribution(
    verifier: Verifier,
    p: TokenDistribution,
    draw: TreeDrawing,
    context: Sequence[int],
    num_tokens: int,
    settings: Settings | None = None,
) -> dict[tuple[int, ...], float]:
    """Return the distribution of the first tokens if a random tree is verified, followed by plain decoding."""
    settings = settings or Settings(temperature=1.0)

    def run(source: RandomSource) -> tuple[int, ...]:
        return verdict_of(verifier, p, draw(source), context, settings, source).tokens[:num_tokens]

    emitted: dict[tuple[int, ...], float] = {}
    for tokens, prob in outcomes(run).items():  # what follows depends on the tokens alone, not on how they were drawn
        for text, prob_after in _texts_from(p, context, tokens, num_tokens, settings).items():
            emitted[text] = emitted.get(text, 0.0) + prob * prob_after
    return emitted


def expected_length(
    verifier: Verifier,
    p: TokenDistribution,
    draw: TreeDrawing,
    context: Sequence[int],
    settings: Settings | None = None,
) -> float:
    """Return tau, the expected number of tokens that one step emits, including the bonus token."""
    settings = settings or Settings(temperature=1.0)

    def run(source: RandomSource) -> int:
        return len(verdict_of(verifier, p, draw(source), context, settings, source).tokens)

    return sum(length * chance for length, chance in outcomes(run).items())


def _texts_from(
    p: TokenDistribution,
    context: Sequence[int],
    emitted: Sequence[int],
    num_tokens: int,
    settings: Settings,
) -> dict[tuple[int, ...], float]:
    """Return the distribution of the first tokens if plain decoding continues after those already emitted."""

    def run(source: RandomSource) -> tuple[int, ...]:
        tokens = list(emitted)
        while len(tokens) < num_tokens:
            known = [*context, *tokens]
            probs = target_of(p, DraftTree(known[-1]), known, settings, source, len(context)).probs(ROOT)
            assert probs is not None, "a distribution under test has a possible token"
            tokens.append(source.categorical(probs, len(known)))
        return tuple(tokens)

    return outcomes(run)
