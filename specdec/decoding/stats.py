"""The statistics of a request, from the records of its steps."""

from dataclasses import dataclass, field

from specdec.decoding.source_counts import SourceCounts
from specdec.record import PHASES, Outcome, StepRecord


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
