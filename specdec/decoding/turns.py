"""The requests of one pass, and each request's part in it.

A request takes part in a step with a turn: the next chunk of its prompt, or a draft tree. Turns of both kinds may
share a pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from specdec.decoding.contexts import Contexts
from specdec.decoding.request_state import RequestState
from specdec.record import PromptLogprobs
from specdec.sampling.distributions import NodeDistributions
from specdec.target import CacheRow, Target
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier

NOTHING = Verdict((ROOT,), ())


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one pass.

    Attributes:
        chunks: tokens of a prompt to read without a draft, by request.
        fallback: the verifier for drafts without a true q under a rule that reads q; it doesn't read q itself.
        flags_ties: retain the two best scores of each token, since a pass of another shape might swap them.
        drops_drafts: feed roots alone where the text allows it: requests outside the pass wait for it.
        max_nodes: of the drafts of some requests.
        seconds: by phase.
    """

    target: Target
    requests: Sequence[RequestState]
    chunks: Mapping[RequestState, Sequence[int]]
    fallback: Verifier
    contexts: Contexts
    flags_ties: bool = False
    drops_drafts: bool = False
    max_nodes: Mapping[RequestState, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RequestTurn:
    """One request's part of a step.

    Attributes:
        proposed: the drafter's tree, or the chunk.
        tree: the part of ``proposed`` that is fed and verified.
        distributions: the model's at the nodes of ``tree``, set by ``verify``; None for a chunk.
        verdict: the acceptance rule's; a token less than nodes if the last node has no distribution.
        kept: the verdict, cut at the end of the text; of a chunk all nodes.
        is_chunk: a chunk of the prompt is read, and nothing is verified.
        read: the chunk; of a first draft, the rest of the prompt, which is fed before it; otherwise None.
        start: the position of the first node of ``read``.
        num_discarded: nodes of earlier passes of this step.
    """

    request: RequestState
    proposed: DraftTree
    tree: DraftTree
    kept: Verdict = NOTHING
    is_chunk: bool = False
    read: DraftTree | None = None
    start: int = 0
    num_discarded: int = 0
    distributions: NodeDistributions | None = None
    verdict: Verdict = NOTHING
    has_fallen_back: bool = False
    scores: tuple[torch.Tensor | None, ...] = ()
    logits: tuple[torch.Tensor, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def row(self) -> CacheRow:
        """The request's row."""
        assert self.request.row is not None, "a request in a step has a row"
        return self.request.row
