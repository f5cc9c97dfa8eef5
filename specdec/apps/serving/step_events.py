"""A step's report for the playground: the draft tree as text, each node's strategies, and the accepted tokens."""

from dataclasses import dataclass

from specdec.apps.serving.token_texts import TokenTexts
from specdec.record import Outcome, StepRecord
from specdec.tree import ROOT, DraftTree, Role


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A candidate of a draft.

    Attributes:
        parent: the parent's index among the nodes; None for the root, the token before the draft.
        by: the strategies that proposed it.
    """

    text: str
    parent: int | None
    by: tuple[str, ...]
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step of one text.

    Attributes:
        tokens: the texts of the emitted tokens; the last is the bonus token.
        num_texts: the number of texts that shared the pass.
        nodes: the draft's candidates, the root first.
        num_others: nodes that can't be accepted, such as a lookahead window's.
    """

    tokens: tuple[str, ...]
    seconds: float
    num_texts: int
    nodes: tuple[NodeReport, ...]
    num_others: int


def report_of(record: StepRecord, outcome: Outcome, texts: TokenTexts) -> StepReport:
    """Return the report of a step for one of its texts."""
    tree = outcome.tree or DraftTree(outcome.request.tokens[-1])
    candidates = [ROOT, *(node for node in tree.nodes_with(Role.CANDIDATE) if node != ROOT)]
    place, accepted = {node: number for number, node in enumerate(candidates)}, {*outcome.path}
    strategy = outcome.request.strategy_name
    nodes = tuple(
        NodeReport(
            text=texts.of(tree.tokens[node]),
            parent=None if node == ROOT else place[tree.parents[node]],
            by=() if node == ROOT else tree.proposed_by.get(node, (strategy,)),
            is_accepted=node in accepted,
        )
        for node in candidates
    )
    return StepReport(
        tokens=tuple(map(texts.of, outcome.tokens)),
        seconds=record.total_seconds,
        num_texts=record.num_rows,
        nodes=nodes,
        num_others=len(tree) - len(candidates),
    )
