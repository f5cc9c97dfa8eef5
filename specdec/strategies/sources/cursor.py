"""A cursor that follows a text through a reference, and finds its place again after an edit.

While the text agrees with the reference, the cursor has one place: the next token of the reference. After a token that
differs, it has several, and each token of the text confirms or removes them:

    reference  the cat sat on the old mat .      text  the cat sat on a
    places     old (a replaces the), the (a was inserted)

After ``mat``, which is found further on, the place is the full stop. Places are found by the number of tokens that the
edit may have replaced, by the same token a little further on, and by the same two tokens anywhere. A place that a few
tokens in a row have confirmed is the only one.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LONGEST = 8  # longer runs share a bucket
_CERTAIN = 4  # tokens in a row after which a place is the only one
_MOST_REPLACED = 4  # tokens of an edit that may have replaced as many of the reference
_MOST_READ = 64  # occurrences of a prompt's last tokens
_WINDOW = 32  # tokens in which a single token is looked for

FOLLOWED, BEGUN, REPEATED, SKIPPED, REPLACED, INSERTED = range(6)  # how a place was found


class ReferencePlace(NamedTuple):
    """A place in the reference where the text may go on.

    Attributes:
        position: of the next token.
        run: tokens in a row that have confirmed it, up to ``LONGEST``.
        kind: how it was found, and how far from where the text left the reference.
    """

    position: int
    run: int
    kind: tuple[int, int]


class Cursor(NamedTuple):
    """The places after a text, most likely first; never changed.

    Attributes:
        anchor: the position after the last token that agreed before an edit; the place itself if there is one alone.
        gap: tokens of the text since then.
        last: the text's last token, -1 before the first.
    """

    places: tuple[ReferencePlace, ...]
    anchor: int
    gap: int
    last: int


class Reference:
    """The tokens of a reference, and where each pair of tokens occurs. About 150 bytes per token."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._after = defaultdict[tuple[int, int], list[int]](list)  # ascending
        for position, pair in enumerate(zip(self.tokens, self.tokens[1:], strict=False), 2):
            self._after[pair].append(position)

    def begin(self, prompt: Sequence[int]) -> Cursor:
        """Return the cursor after a prompt: at the reference's beginning, or where the prompt's last tokens occur."""
        ends = self._after.get((prompt[-2], prompt[-1]), ()) if len(prompt) > 1 else ()
        found = [place for end in ends[:_MOST_READ] if (place := self._place_after(prompt, end)).run >= _CERTAIN]
        if found:
            place = max(found, key=_run)
            return Cursor((place,), place.position, 0, prompt[-1])
        return Cursor((ReferencePlace(0, 0, (BEGUN, 0)),), 0, 0, -1)

    def _place_after(self, prompt: Sequence[int], end: int) -> ReferencePlace:
        run = 2
        while run < min(LONGEST, end, len(prompt)) and self.tokens[end - run - 1] == prompt[-run - 1]:
            run += 1
        return ReferencePlace(end, run, (FOLLOWED, 0))

    def follow(self, cursor: Cursor, token: int) -> Cursor:
        """Return the cursor after one more token of the text."""
        tokens, end = self.tokens, len(self.tokens)
        places, anchor, gap, last = cursor
        if gap == 0:
            position, run, _ = places[0]
            if position < end and tokens[position] == token:
                run = run + 1 if run < LONGEST else LONGEST
                return Cursor((ReferencePlace(position + 1, run, (FOLLOWED, 0)),), position + 1, 0, token)
            return Cursor((*self._found(token, last, anchor, 1),), anchor, 1, token)
        right = [
            ReferencePlace(position + 1, run + 1, kind)
            for position, run, kind in places
            if position < end and tokens[position] == token
        ]
        if not right:
            return Cursor((*self._found(token, last, anchor, gap + 1),), anchor, gap + 1, token)
        best = max(right, key=_run)
        if best.run >= _CERTAIN:
            return Cursor((ReferencePlace(best.position, best.run, (FOLLOWED, 0)),), best.position, 0, token)
        return Cursor((*right,), anchor, gap + 1, token)

    def _found(self, token: int, last: int, anchor: int, gap: int) -> Iterator[ReferencePlace]:
        """Yield the places after an edit of ``gap`` tokens, the most likely ones first."""
        if ends := self._after.get((last, token)):
            yield ReferencePlace(_nearest(ends, anchor), 2, (REPEATED, min(gap, 2)))
        window = self.tokens[anchor : anchor + _WINDOW]
        if token in window:
            num_skipped = window.index(token)
            yield ReferencePlace(anchor + num_skipped + 1, 1, (SKIPPED, num_skipped.bit_length()))
        if gap <= _MOST_REPLACED:
            yield ReferencePlace(anchor + gap, 0, (REPLACED, gap))
            yield ReferencePlace(anchor + gap - 1, 0, (INSERTED, gap))


def _run(place: ReferencePlace) -> int:
    return place.run


def _nearest(ends: Sequence[int], anchor: int) -> int:
    """Return the first of some ascending positions that is after ``anchor``, otherwise the last one."""
    return ends[min(bisect_left(ends, anchor + 1), len(ends) - 1)]
