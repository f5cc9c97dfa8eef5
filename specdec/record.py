"""The record of a step: the one thing that statistics, traces, prices, audits and servers read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from specdec.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from specdec.decoding.request_state import Sequence

FinishReason = Literal["stop", "length", "time", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step for one request, failures included.

    Attributes:
        request: the handle that the scheduler was given, by which a server finds its client. It lives on: what it says
            later is no part of the record.
        tree: the draft that was verified, below the last committed token; None where none was.
        path: the accepted nodes that were kept, root first.
        tokens: the committed tokens, cut at an end of text, a stop string or the length.
        num_nodes: nodes that were fed for it, those of a draft that spoiled its pass included.
        has_fallen_back: True if ``match`` decided, as the draft carried no true distributions.
        finish_reason, error: set in a request's last outcome.
        scores: of each committed token, the scores behind processors and before temperature and truncation,
            ``(vocab,)`` on the CPU; empty unless its settings keep them.
        logits: the raw ones likewise.
    """

    request: "Sequence" = field(repr=False)
    tree: DraftTree | None = None
    path: tuple[int, ...] = (ROOT,)
    tokens: tuple[int, ...] = ()
    num_nodes: int = 0
    has_fallen_back: bool = False
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    scores: tuple[torch.Tensor | None, ...] = ()
    logits: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward pass and what became of it.

    Attributes:
        kind: "chunk" for part of a prompt, "prompt" for a prompt's last pass, with its first draft, "step" for any
            other, "none" where requests ended without a pass.
        outcomes: of the requests that took part.
        seconds: by phase.
        width: nodes of the widest row, padding left out; 0 without a pass.
        num_positions: slots that the longest row could see.
        is_settled: False for a pass such that others like it will be faster later.
        row_bytes: held for the keys and values of each row.
    """

    kind: Literal["chunk", "prompt", "step", "none"]
    outcomes: tuple[Outcome, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    width: int = 0
    num_positions: int = 0
    is_settled: bool = True
    row_bytes: int = 0

    @property
    def num_rows(self) -> int:
        """Requests that took part."""
        return len(self.outcomes)

    @property
    def total_seconds(self) -> float:
        """All phases together."""
        return sum(self.seconds.values())
