"""Which rows of models with states share a pass."""

from collections.abc import Iterator, Sequence

_MOST_PADDING = 6  # tokens of a row; not tuned: about what a pass of its own costs on a CPU


def shared_passes(lengths: Sequence[int], most_rows: int | None = None) -> Iterator[range]:
    """Yield for each pass the places of its rows.

    Args:
        lengths: the tokens that each row reads, descending. In a pass rows are padded to the longest.
        most_rows: of a pass; None for any number.
    """
    begin = 0
    for place, length in enumerate(lengths):
        if lengths[begin] - length > _MOST_PADDING or place - begin == most_rows:
            yield range(begin, place)
            begin = place
    if lengths:
        yield range(begin, len(lengths))
