"""Looks up n-grams in an index, extended by one token at a time, and the tokens that followed them."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from specdec_datastore.index.file import Header, IndexFile
from specdec_datastore.index.page_faults import Pages

_MOST_SEEN = 32  # occurrences of a run whose followers are looked at


class Match(NamedTuple):
    """The suffixes of a path that occur in the index, longest first.

    Attributes:
        length: the length of the longest one that occurs exactly once, 0 if there is none.
        at: the position in the index's text after this occurrence.
        ranges: for those that occur more often: their length, and the start and end of their range of sorted suffixes.
    """

    length: int
    at: int
    ranges: tuple[tuple[int, int, int], ...]


class Followers(NamedTuple):
    """The tokens that followed an n-gram, most frequent first, with their counts among the occurrences read."""

    length: int
    num_occurrences: int
    num_seen: int
    ranked: list[tuple[int, int]]


class Index:
    """An open index; finds n-grams of up to ``depth`` tokens, and follows one that occurs once to the text's end."""

    start = Match(0, 0, ())

    def __init__(self, path: Path, depth: int) -> None:
        self._file = file = IndexFile(path)
        self._starts, self._tokens, self._suffixes, self._columns = (
            file.starts,
            file.tokens,
            file.suffixes,
            file.columns,
        )
        self._depth, self._num_ids = min(depth, file.header.depth), file.header.num_ids
        self._pages = Pages()

    @property
    def header(self) -> Header:
        return self._file.header

    @property
    def path(self) -> Path:
        return self._file.path

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of the path extended by a token."""
        if not 0 <= token < self._num_ids:
            return self.start
        self._pages.begin()
        found = self._followed(match, token)
        if self._pages.end():
            self._file.drop_pages()
        return found

    def _followed(self, match: Match, token: int) -> Match:
        tokens, depth = self._tokens, self._depth
        length, at = 0, 0
        if match.length and tokens[match.at] == token:
            length, at = match.length + 1, match.at + 1
        ranges = list[tuple[int, int, int]]()
        for run, low, high in match.ranges:
            if run == depth:
                continue
            low, high = self._narrowed(run, low, high, token)  # noqa: PLW2901 - the same range, narrowed
            if high - low > 1:
                ranges.append((run + 1, low, high))
            elif high > low and not length:  # shorter ones have the same occurrence
                length, at = run + 1, self._suffixes[low] + run + 1
        low, high = self._starts[token], self._starts[token + 1]
        if high - low > 1:
            ranges.append((1, low, high))
        elif high > low and not length:
            length, at = 1, self._suffixes[low] + 1
        return Match(length, at, tuple(ranges))

    def _narrowed(self, run: int, low: int, high: int, token: int) -> tuple[int, int]:
        """Return the part of a range of suffixes, which share ``run`` tokens, that continues with a token."""
        if run <= len(self._columns):
            column = self._columns[run - 1]
            first = bisect_left(column, token, low, high)
            if first == high or column[first] != token:
                return first, first
            return first, bisect_right(column, token, first, high)
        tokens, suffixes = self._tokens, self._suffixes

        def token_after(place: int) -> int:
            return tokens[place + run]

        first = bisect_left(suffixes, token, low, high, key=token_after)
        if first == high or token_after(suffixes[first]) != token:
            return first, first
        return first, bisect_right(suffixes, token, first, high, key=token_after)

    def followers(self, match: Match) -> Iterator[Followers]:
        """Yield the followers of a match's suffixes, longest first; one without further occurrences is left out."""
        known, separator = 0, self.header.separator
        if match.length:
            known, only = 1, self._tokens[match.at]
            yield Followers(match.length, 1, 1, [(only, 1)] if only != separator else [])
        for run, low, high in match.ranges:
            if high - low == known:
                continue
            known = high - low
            seen = self._seen(run, low, high)
            counts = Counter(seen)
            counts.pop(separator, None)
            yield Followers(run, known, len(seen), sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def _seen(self, run: int, low: int, high: int) -> list[int]:
        """Return the followers of a range; of a large one, a sample at equal distances, with about the same shares."""
        self._pages.begin()
        size = high - low
        column = self._columns[run - 1] if run <= len(self._columns) else self._suffixes
        if size <= _MOST_SEEN:
            seen = column[low:high].tolist()
        else:
            seen = [column[low + (2 * nth + 1) * size // (2 * _MOST_SEEN)] for nth in range(_MOST_SEEN)]
        if run > len(self._columns):
            seen = [self._tokens[place + run] for place in seen]
        if self._pages.end():
            self._file.drop_pages()
        return seen

    def close(self) -> None:
        """Unmap the file; no lookup may follow."""
        self._file.close()
