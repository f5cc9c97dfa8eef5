"""Passes that rows of models with states share, and the passes of a step over drafts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_PENDING = 16  # tokens; not tuned: more are read again more often, fewer need more passes of their own
_PASS = 8  # not tuned: on a CPU, a pass over one token takes as long as this many further tokens in it, or longer


class Pass(NamedTuple):
    """A pass of some rows, each padded to ``num_tokens``."""

    num_rows: int
    num_tokens: int


def shared_passes(lengths: Sequence[int], is_shared: bool = True) -> Iterator[range]:
    """Yield for each pass the places of its rows, such that all passes together take the least time.

    Rows are padded to the longest of their pass, and a pass costs as much as ``_PASS`` tokens of a row.

    Args:
        lengths: the tokens that each row reads, descending.
        is_shared: False if each row has a pass of its own.
    """
    if not is_shared:
        yield from (range(place, place + 1) for place in range(len(lengths)))
        return
    costs, begins = [0], [0]  # of the first rows, by their number: the least cost, and where the last pass begins
    for end in range(1, len(lengths) + 1):
        cost, begin = min((costs[begin] + _PASS + (end - begin) * lengths[begin], begin) for begin in range(end))
        costs.append(cost)
        begins.append(begin)
    end = len(lengths)
    while end:
        yield range(begins[end], end)
        end = begins[end]


def passes_of_step(pending: Sequence[int], has_draft: Sequence[bool]) -> tuple[list[Pass], list[Pass]]:
    """Return the passes of a step of a model with recurrent states.

    Rows without a draft, whose checkpoints move, aren't padded. ``StatefulCache`` does the same, with two exceptions
    that aren't modelled: Mamba-2's rows on a CPU are padded without drafts too, and rows that can't share passes are
    read alone.

    Args:
        pending: each row's committed tokens that are read again.
        has_draft: whether the row has draft tokens.

    Returns:
        The passes without drafts; and those with drafts, in which ``num_tokens`` doesn't count the draft and its root.
    """
    rows = [*zip(pending, has_draft, strict=True)]
    alone = [number + 1 for number, is_drafted in rows if not is_drafted or number + 1 >= MOST_PENDING]
    # The checkpoint, once moved, is after the root.
    drafted = [-1 if number + 1 >= MOST_PENDING else number for number, is_drafted in rows if is_drafted]
    drafted.sort(reverse=True)
    joined = [Pass(len(places), drafted[places[0]]) for places in shared_passes(drafted)]
    return [Pass(num_rows, length) for length, num_rows in Counter(alone).items()], joined
