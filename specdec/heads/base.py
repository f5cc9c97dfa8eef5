"""The contract of a head's passes.

A pass feeds a few pairs of a feature and a token for each of several requests, and returns the most probable tokens
after them. It is one call of the engine that runs the head, including the choice of the top-k. The results are the
same in every engine, up to rounding.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch


class Noise(NamedTuple):
    """Scale and noise of the logits from which candidates are chosen: ``logits * scale + noise``.

    Attributes:
        scale: (requests, 1, 1), in float32.
        noise: (requests, 1 or m, draft vocab), in float32; m wanted pairs, or heads, with noise of their own.
    """

    scale: torch.Tensor
    noise: torch.Tensor

    @classmethod
    def joined(cls, parts: "Iterable[Noise | None]") -> "Noise | None":
        """Return the noise of several positions, of one scale, from that of each; None if there is none."""
        known = [part for part in parts if part is not None]
        return cls(known[0].scale, torch.cat([part.noise for part in known], 1)) if known else None


class KeyValues(NamedTuple):
    """The keys and values of several requests, (requests, key-value heads, slots, head_dim); keys are rotated.

    Some layers cache other tensors of this form, such as latent vectors and the keys' rotated parts.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def followed_by(self, new: "KeyValues") -> "KeyValues":
        """Return these and those of the pairs after them."""
        return KeyValues(torch.cat((self.keys, new.keys), 2), torch.cat((self.values, new.values), 2))

    def next_pairs(self, count: int, window: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions of the ``count`` pairs after these, (1, count), and the slots that each attends to.

        The slots are (1, 1, count, slots), True up to the pair's own, of the last ``window`` if it is given.
        """
        slots = torch.arange(self.keys.shape[2] + count, device=self.keys.device)
        positions = slots[None, self.keys.shape[2] :]
        visible = slots <= positions[..., None]
        if window is not None:
            visible = visible & (slots > positions[..., None] - window)
        return positions, visible[:, None]


class DraftHead(Protocol):
    """The part of a head that drafting uses besides its passes."""

    @property
    def target_ids(self) -> torch.Tensor:
        """(draft vocab,) the target's id of each draft id."""

    def no_key_values(self) -> KeyValues:
        """Return the keys and values of no pairs, one request's: (1, key-value heads, 0, size) each."""

    def key_values(self, states: torch.Tensor, tokens: torch.Tensor, before: KeyValues) -> KeyValues:
        """Return one request's keys and values of pairs that nothing is drafted after.

        Args:
            states: (1, n, states size), the target's at positions i.
            tokens: (1, n), those at positions i + 1.
            before: of all earlier pairs.
        """


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a pass: n of each request, in consecutive slots.

    Attributes:
        tokens: (requests, n) target ids.
        positions: (requests, n), below the number of slots.
        starts: (requests,) the slot of each request's first pair. Slots after its last pair may be overwritten.
        features: (requests, n, hidden).
        fuses: the features are the target's states instead, (requests, n, states size), and the pass
            maps them to features.
        last: (requests,) the pair of each request whose continuation is wanted; None for all pairs.
        visible: (requests, n, slots), True for slots, the pass's own included, that a pair attends to. None if a pair
            attends to all slots up to its own. Not used with ``last``.
    """

    tokens: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    features: torch.Tensor
    fuses: bool = False
    last: np.ndarray | None = None
    visible: np.ndarray | None = None

    @property
    def wanted(self) -> np.ndarray:
        """(requests, m) the pairs whose continuation is wanted."""
        if self.last is not None:
            return self.last[:, None]
        return np.broadcast_to(np.arange(self.tokens.shape[1]), self.tokens.shape)


class Continuations(NamedTuple):
    """The most probable tokens after the m pairs of each request whose continuation is wanted.

    Attributes:
        tokens: (requests, m, k) target ids, the most probable first; in the order of the draft vocabulary if the
            runner returns all.
        log_probs: (requests, m, k), in float32.
        features: (requests, m, hidden), of the pairs that a token after these pairs begins; on the runner's device.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    features: torch.Tensor


class HeadRunner(ABC):
    """Runs a head's passes.

    Attributes:
        num_reads: the number of pairs of a pass that only caches; None if torch caches pairs faster without one.

    Args:
        head: its weights.
        num_tokens: k, the number of tokens that a pass returns after each pair; at most the draft vocabulary. None for
            the whole draft vocabulary, which isn't sorted then.
    """

    num_reads: int | None = None

    def __init__(self, head: DraftHead, num_tokens: int | None) -> None:
        self.head, self.returns_all = head, num_tokens is None
        self.num_tokens = min(num_tokens or len(head.target_ids), len(head.target_ids))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the passes so far, which are reported with each result."""
        return ()

    def num_slots(self, count: int) -> int:
        """Return the number of slots to reserve where ``count`` are needed."""
        return -(-count // 128) * 128

    @abstractmethod
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        """Run a pass, and write the pairs' keys and values to their slots.

        Args:
            pairs: the pairs to feed.
            cache: the keys and values of earlier pairs; finite in all slots.
            noise: None for the head's own probabilities.
        """


class HeadRunners(ABC):
    """An engine's own passes of trained heads: an extension of its backend (``Backend.extension``)."""

    @abstractmethod
    def runner(self, head: Any, num_tokens: int | None, may_quantize: bool) -> HeadRunner:
        """Return a runner of a head's passes.

        Args:
            head: a ``PairHead`` or a ``BlockHead``.
            num_tokens: number of tokens that a pass returns after each pair; None for the whole draft vocabulary.
            may_quantize: the runner may store the head's matrices in fewer bits than they have.
        """
