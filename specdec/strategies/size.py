"""The size of a strategy: what its options make of it, in strategies with default options."""

from typing import Any

from specdec.strategies.base import Proposer

_UNIT = 128  # of an option without a default above 0
_LARGEST = 10**12  # that is counted


def size_of(proposer: Proposer) -> float:
    """Return the time and memory that a strategy may take, over those of one with default options; a merge's parts add.

    Both are taken to grow by the product of all whole numbers among the options: nodes times candidates of each, or
    columns of a window times its levels. Small options make a strategy no smaller.

    >>> from specdec import LookaheadProposer
    >>> size_of(LookaheadProposer(N=10, W=30, G=1))
    4.0
    """
    size = 1.0
    for option, field in type(proposer).model_fields.items():
        value: Any = getattr(proposer, option)
        if isinstance(value, tuple) and any(isinstance(each, Proposer) for each in value):
            size *= sum(size_of(each) for each in value)
        elif isinstance(value, int) and not isinstance(value, bool):
            default = field.default
            unit = default if isinstance(default, int) and default > 0 else _UNIT
            size *= max(1.0, min(value, _LARGEST) / unit)
    return size
