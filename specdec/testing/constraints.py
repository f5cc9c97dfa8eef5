"""A constraint's laws as one function, over random walks, and a constraint that allows one text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specdec.constraints import Constraint, ConstraintState, Vocabulary

_NUM_WALKS, _MOST_TOKENS = 4, 24


class FixedTokens(Constraint):
    """A constraint that allows one text, given by its tokens."""

    tokens: tuple[int, ...]

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return _FixedState(self.tokens, vocabulary.size)


@dataclass(frozen=True)
class _FixedState(ConstraintState):
    rest: tuple[int, ...]
    vocab_size: int

    @property
    def is_accepting(self) -> bool:
        return not self.rest

    def mask(self) -> torch.Tensor:
        allowed = torch.zeros(self.vocab_size, dtype=torch.bool)
        allowed[list(self.rest[:1])] = True
        return allowed

    def advance(self, token: int) -> ConstraintState:
        return _FixedState(self.rest[1:], self.vocab_size)

    def forced(self) -> Sequence[int]:
        return self.rest


def check_constraint(constraint: Constraint, tokenizer: Any | None, vocab_size: int, seed: int = 0) -> None:
    """States are values, masks depend on the path alone, and every state lets the text go on or end.

    Args:
        tokenizer: the model's; None for a constraint on token ids.
        vocab_size: entries of the model's logits.
        seed: of the walks.
    """
    rng = np.random.default_rng(seed)
    for _ in range(_NUM_WALKS):
        first = constraint.start(Vocabulary(tokenizer, vocab_size))
        states, path = [first], list[int]()
        while len(path) < _MOST_TOKENS and (allowed := _allowed(states[-1], vocab_size)):
            others = rng.permutation(allowed)[:3].tolist()
            branches = [states[-1].advance(token) for token in others]
            for branch in branches:
                branch.mask(), branch.forced()  # of a branch, which mustn't move the others
            path.append(others[0])
            states.append(branches[0])
        _check_walk(constraint.start(Vocabulary(tokenizer, vocab_size)), states, path)


def _allowed(state: ConstraintState, vocab_size: int) -> list[int]:
    mask = state.mask()
    assert mask.dtype == torch.bool, f"a mask is torch.bool, not {mask.dtype}"
    assert mask.shape == (vocab_size,), f"a mask has shape ({vocab_size},), not {tuple(mask.shape)}"
    allowed: list[int] = mask.nonzero().flatten().tolist()
    assert allowed or state.is_accepting, "a state that isn't accepting allows at least one token"
    assert all(0 <= token < vocab_size for token in state.forced()), "forced tokens are in the vocabulary"
    return allowed


def _check_walk(first: ConstraintState, states: Sequence[ConstraintState], path: Sequence[int]) -> None:
    """Compare the states of a walk, read in the reverse order, with those of a walk without branches."""
    plain = [first]
    for token in path:
        plain.append(plain[-1].advance(token))
    expected = [(state.mask().tolist(), state.is_accepting) for state in plain]
    for place in reversed(range(len(states))):
        found = states[place].mask().tolist(), states[place].is_accepting
        assert found == expected[place], f"after {path[:place]} a state differs once other states were read"
