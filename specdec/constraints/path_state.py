"""A constraint's states along the paths of a draft tree, as the decoding loop and drafters read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.constraints.base import ConstraintError, ConstraintState
from specdec.errors import PluginError, blaming


@dataclass(slots=True, eq=False)
class PathState:
    """A state with its mask and the states after it, each computed when first read.

    The states after a path are shared by the drafter, the verifier and the commit, so a step computes each mask once.

    Attributes:
        eos_token_ids: the request's ends of text, within the vocabulary.
        vocab_size: entries of the model's logits.
    """

    state: ConstraintState
    eos_token_ids: frozenset[int]
    vocab_size: int
    _allowed: torch.Tensor | None = None
    _is_accepting: bool | None = None
    _num_others: int = 0  # allowed tokens that don't end the text
    _forced: tuple[int, ...] | None = None
    _after: dict[int, "PathState"] = field(default_factory=dict)

    @property
    def allowed(self) -> torch.Tensor:
        """The tokens that may come next, ends of text included, ``(vocab,)``, bool, on the CPU; read-only."""
        if self._allowed is None:
            with blaming(self._author):
                self._allowed = self._mask_with_ends()
        return self._allowed

    @property
    def is_accepting(self) -> bool:
        """True if the text may end here."""
        if self._is_accepting is None:
            with blaming(self._author):
                self._is_accepting = bool(self.state.is_accepting)
        return self._is_accepting

    @property
    def is_complete(self) -> bool:
        """True if the text must end here."""
        return self.allowed is not None and self._num_others == 0 and self.is_accepting

    @property
    def is_forced(self) -> bool:
        """True if a single token is allowed."""
        return self.allowed is not None and self._num_others + len(self.eos_token_ids) * self.is_accepting == 1

    @property
    def forced(self) -> Sequence[int]:
        """The text that must come next, by its most usual tokens."""
        if self._forced is None:
            with blaming(self._author):
                self._forced = tuple(self.state.forced())
        return self._forced

    def check_start(self) -> None:
        """Raise ConstraintError if this is the start of no text, or of the empty text alone."""
        if self.is_complete:
            raise ConstraintError("the constraint allows the empty text alone: give one that allows more")
        if not self.is_accepting and not self.allowed.any():
            raise ConstraintError("the model's tokens can't write any text that the constraint allows")

    def allows(self, token: int) -> bool:
        """Return True if a token may come next."""
        return bool(self.allowed.numpy()[token])

    def follow(self, token: int) -> "PathState | None":
        """The state after one more token; None if the token is refused or ends the text."""
        after = self._after.get(token)
        if after is None and self.allows(token) and token not in self.eos_token_ids:
            with blaming(self._author):
                state = self.state.advance(token)
            after = self._after[token] = PathState(state, self.eos_token_ids, self.vocab_size)
        return after

    def after(self, path: Iterable[int]) -> "PathState | None":
        """The state after some more tokens; None if one of them is refused or ends the text."""
        state: PathState | None = self
        for token in path:
            state = None if state is None else state.follow(token)
        return state

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        """A copy of the scores, ``(vocab,)``, with minus infinity for tokens that are refused."""
        return scores.masked_fill(~self.allowed.to(scores.device), -torch.inf)

    def _mask_with_ends(self) -> torch.Tensor:
        mask, size = self.state.mask(), self.vocab_size
        if mask.dtype != torch.bool or mask.shape != (size,):
            name, given = type(self.state).__name__, f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise PluginError(f"{name}.mask() returned {given}; it must be torch.bool of shape ({size},)")
        allowed, ends = mask.numpy().copy(), list(self.eos_token_ids)
        allowed[ends] = False
        self._num_others = int(np.count_nonzero(allowed))
        allowed[ends] = self.is_accepting
        return torch.from_numpy(allowed)

    @property
    def _author(self) -> str:
        return f"constraint state {type(self.state).__name__}"
