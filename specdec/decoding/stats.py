"""The statistics of a request, from the records of its steps."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.record import PHASES, Outcome, StepRecord
from specdec.tree import DraftTree

NUM_BINS = 10  # of predicted probabilities

Names = tuple[str, ...]


@dataclass(slots=True)
class SourceCounts:
    """Counts of a merge's nodes by the strategies that proposed them.

    Attributes:
        proposed: by strategies, depth and whether the node was accepted: the number of nodes.
        bins: by strategies and bin of predicted probability, for nodes with an accepted parent, whose outcome is known:
            the number of nodes, the sum of their probabilities, and the number of right nodes.
    """

    proposed: defaultdict[tuple[Names, int, bool], int] = field(default_factory=lambda: defaultdict(int))
    bins: defaultdict[tuple[Names, int], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0, 0]))

    def add(self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Add a draft with its accepted path, root first, and the committed tokens."""
        accepted, followed = frozenset(path), dict(zip(path, tokens, strict=False))
        parents, depths, probs, ids, proposed = tree.parents, tree.depths, tree.probs, tree.tokens, self.proposed
        for node, names in tree.proposed_by.items():
            proposed[names, depths[node], node in accepted] += 1
            token = followed.get(parents[node])
            if token is not None and node in probs:
                cell = self.bins[names, min(int(NUM_BINS * probs[node]), NUM_BINS - 1)]
                cell[0] += 1
                cell[1] += probs[node]
                cell[2] += token == ids[node]

    @property
    def by_depth(self) -> dict[str, dict[int, list[int]]]:
        """By strategy and depth: the numbers of proposed and accepted nodes."""
        found: dict[str, dict[int, list[int]]] = {}
        for (names, depth, is_accepted), count in sorted(self.proposed.items(), key=lambda item: item[0][1]):
            for name in names:
                counts = found.setdefault(name, {}).setdefault(depth, [0, 0])
                counts[0] += count
                counts[1] += count * is_accepted
        return found

    @property
    def calibration(self) -> dict[str, list[list[float]]]:
        """By strategy and bin of predicted probability: number of nodes, sum of probabilities, number of right nodes.

        A node's probability is conditional on its parent; only nodes with an accepted parent count.
        """
        found: dict[str, list[list[float]]] = {}
        for (names, place), cell in self.bins.items():
            for name in names:
                sums = found.setdefault(name, [[0, 0.0, 0] for _ in range(NUM_BINS)])
                sums[place] = [one + other for one, other in zip(sums[place], cell, strict=True)]
        return found


@dataclass(slots=True)
class Stats:
    """One request's figures.

    Attributes:
        accepted_lengths: the tokens of each step, the bonus token included; the first step's pass reads the prompt.
        num_nodes: fed nodes, roots included; the prompt counts as one.
        num_drafts: steps with a draft.
        num_draft_tokens: candidates of all drafts.
        num_accepted_tokens: candidates that were accepted; a step's last token isn't counted, even if a candidate was
            accepted that ends the text.
        num_fallbacks: steps that ``match`` decided because the draft had no true q for the request's rule.
        source_counts: proposed and accepted nodes by strategy of a merge.
        seconds: by phase. Each request of a shared pass reports the whole pass.
        seconds_to_first_token: since the request was made.
        peak_cache_bytes: of the request's row.
        num_reused: tokens of the prompt that were cached before the request.
    """

    accepted_lengths: list[int] = field(default_factory=list)
    num_nodes: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_fallbacks: int = 0
    source_counts: SourceCounts = field(default_factory=SourceCounts, repr=False)  # its dictionaries fill a screen
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    seconds_to_first_token: float = 0.0
    peak_cache_bytes: int = 0
    num_reused: int = 0

    @property
    def steps(self) -> int:
        """Forward passes; the whole prompt counts as one."""
        return len(self.accepted_lengths)

    @property
    def num_tokens(self) -> int:
        """New tokens."""
        return sum(self.accepted_lengths)

    @property
    def tokens_per_step(self) -> float:
        """New tokens per forward pass, bonus tokens included; 1 for plain decoding."""
        return self.num_tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens over draft tokens, as in vLLM; None if nothing was drafted.

        A tree has more candidates than can be accepted, so its rate is lower than that of a chain as good.
        """
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_drafts else None

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step with a draft, bonus token included, as in vLLM; 1 if nothing was drafted.

        ``tokens_per_step`` is the mean over all steps, with and without a draft.
        """
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def sources(self) -> dict[str, dict[int, list[int]]]:
        """By strategy of a merge and depth: the numbers of proposed and accepted nodes."""
        return self.source_counts.by_depth

    @property
    def calibration(self) -> dict[str, list[list[float]]]:
        """By strategy of a merge and tenth of predicted probability: number of nodes, sum, right nodes."""
        return self.source_counts.calibration

    @property
    def total_seconds(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of all phases."""
        return self.num_tokens / self.total_seconds if self.total_seconds else 0.0

    def note(self, record: StepRecord, outcome: Outcome) -> None:
        """Add a step of the request."""
        for phase, seconds in record.seconds.items():
            self.seconds[phase] += seconds
        self.peak_cache_bytes = max(self.peak_cache_bytes, record.row_bytes)
        self.num_nodes += outcome.num_nodes
        self.num_fallbacks += outcome.has_fallen_back
        if outcome.tree is not None and outcome.tree.proposed_by:
            self.source_counts.add(outcome.tree, outcome.path, outcome.tokens)
        if not outcome.tokens:
            return
        self.accepted_lengths.append(len(outcome.tokens))
        if outcome.tree is not None and len(outcome.tree) > 1:
            num_draft_tokens = outcome.num_draft_tokens
            self.num_drafts += num_draft_tokens > 0
            self.num_draft_tokens += num_draft_tokens
            self.num_accepted_tokens += outcome.num_accepted_tokens
