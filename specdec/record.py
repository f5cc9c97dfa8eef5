"""The record of a step, which statistics, traces, cost models, audits and servers read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from specdec.tree import ROOT, DraftTree, Role

FinishReason = Literal["stop", "length", "time", "cancelled", "error"]
PHASES = ("propose", "compile", "forward", "verify", "commit")  # of a step


class RequestHandle(Protocol):
    """A request as ``add`` returns it. It is live: it may have changed since the record was made.

    Attributes:
        finish_reason: None until the request ends.
    """

    finish_reason: FinishReason | None

    @property
    def index(self) -> int:
        """The request's place in the caller's list."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and the committed tokens."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""

    @property
    def new_tokens(self) -> Sequence[int]:
        """The tokens after the prompt."""

    @property
    def num_reused(self) -> int:
        """Tokens of the prompt that were cached before the request."""

    @property
    def strategy_name(self) -> str:
        """The name of the request's strategy."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive tokens of a prompt in the model's own distribution, before any setting applies.

    The tensors are on the CPU.

    Attributes:
        start: the first token's place in the prompt, 1 at least: nothing precedes the prompt's first token.
        logprobs: of the tokens, ``(tokens,)``, float64.
        top_ids, top_logprobs: the top tokens at each place, ``(tokens, k)``, most likely first.
    """

    start: int
    logprobs: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


@dataclass(slots=True, eq=False)
class Outcome:
    """The outcome of a step for one request; the step fills it in, and nothing changes it afterwards.

    Attributes:
        tree: the verified draft, whose root is the last committed token; None without a draft.
        path: the accepted nodes, root first.
        tokens: the committed tokens, cut at an end of text, a stop string or the maximum length.
        num_nodes: the nodes fed for the request, including those of a discarded draft.
        is_chunk: True if the pass read a chunk of the request's prompt: there is no draft and no token.
        has_fallen_back: True if ``match`` decided because the draft had no true q.
        finish_reason, error: set in the request's last outcome.
        scores: of each committed token, ``(vocab,)`` on the CPU, after processors and before temperature and
            truncation; empty unless the settings ask for scores.
        logits: the raw logits likewise.
        prompt_logprobs: of the part of the prompt that the step read; None unless the settings ask for them.
    """

    request: RequestHandle = field(repr=False)
    tree: DraftTree | None = None
    path: tuple[int, ...] = (ROOT,)
    tokens: tuple[int, ...] = ()
    num_nodes: int = 0
    is_chunk: bool = False
    has_fallen_back: bool = False
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    scores: tuple[torch.Tensor | None, ...] = ()
    logits: tuple[torch.Tensor, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def num_draft_tokens(self) -> int:
        """Candidates of the draft."""
        return 0 if self.tree is None else len(self.tree.nodes_with(Role.CANDIDATE))

    @property
    def num_accepted_tokens(self) -> int:
        """Committed candidates. The step's last token isn't counted: it is the bonus token unless it ends the text."""
        return len(self.path) - 1


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward pass and its outcomes.

    Attributes:
        kind: "chunk" for a pass over chunks of prompts alone, "prompt" for any other pass that reads a part of a
            prompt, "step" for a pass without prompts, "none" for requests that ended without a pass.
        seconds: by phase.
        width: tokens read for the widest row, without padding: its nodes and ``num_reread``; 0 without a pass.
        num_reread: committed tokens that the pass read again, of the row with most of them; models with recurrent
            states do so.
        num_passes: passes of the model; several if its rows have recurrent states and don't share one.
        num_positions: cache slots that the longest row sees.
        is_warm: False while the backend is still warming up for passes like this one.
        row_bytes: bytes of the keys and values of each row; 0 unless a request has ended.
    """

    kind: Literal["chunk", "prompt", "step", "none"]
    outcomes: tuple[Outcome, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    width: int = 0
    num_positions: int = 0
    is_warm: bool = True
    row_bytes: int = 0
    num_reread: int = 0
    num_passes: int = 1

    @property
    def num_rows(self) -> int:
        """Requests that took part."""
        return len(self.outcomes)

    @property
    def num_decoding(self) -> int:
        """Requests that read no chunk of their prompt, so that they are rows of the next step."""
        return sum(not outcome.is_chunk for outcome in self.outcomes)

    @property
    def total_seconds(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())
