"""A context trie: where the last tokens of a path occurred before in a growing text, for every length of a suffix.

    text a b c d x b c e     path … b c     "c" occurs twice, "b c" twice; no longer suffix does

The trie goes from a path's last token backwards, so all suffixes of a path lie on one branch. It is built as far as it
is read: a new token is only added to the list of its own occurrences, and a list is sorted by the preceding token when
a lookup first passes it and finds more than a few. Few occurrences are compared with the path one by one. So a prompt
of thousands of tokens is read in a fraction of a millisecond, and a lookup takes some microseconds, also in text that
repeats itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

BREAK = -1  # between texts; no suffix contains it
_START = -2  # before a path; equal to no token
_NOWHERE: list[int] = []
_MOST_FOLLOWERS = 4  # ranked followers of a suffix


class Node:
    """A suffix that occurs often.

    Attributes:
        length: the suffix's, in tokens.
        ends: the position after each occurrence, ascending.
        before: by preceding token, the node or the ends of the longer suffix; None until the first lookup.
        counts: of each follower, the most recent last; None until the first call of ``ranked``.
        ranked: the top followers and their counts, most frequent first; of equals, the most recent first.
        memo: what a reader has derived from the counts; None again once they change.
    """

    __slots__ = ("before", "counts", "ends", "length", "memo", "ranked")

    def __init__(self, length: int, ends: list[int]) -> None:
        self.length, self.ends = length, ends
        self.before: dict[int, Node | list[int]] | None = None
        self.counts: dict[int, int] | None = None
        self.ranked: list[tuple[int, int]] = []
        self.memo: Any = None

    def count(self, token: int) -> None:
        """Count a follower of the last occurrence."""
        self.memo = None
        if self.counts is None:
            return
        count = self.counts[token] = self.counts.get(token, 0) + 1
        ranked = self.ranked
        if count > 1 and (token, count - 1) in ranked:
            ranked.remove((token, count - 1))
        place = len(ranked)
        while place and ranked[place - 1][1] <= count:
            place -= 1
        if place < _MOST_FOLLOWERS:
            ranked.insert(place, (token, count))
            del ranked[_MOST_FOLLOWERS:]


class Match:
    """The suffixes of a path that occur in the text.

    Attributes:
        path: the last tokens of the path; a mark that equals no token is before the first one.
        is_end: the path ends with the text itself, and this occurrence isn't among ``entries``.
        nodes: of suffixes that occur often, the shortest first.
        entries: the other occurrences, as pairs of the longest suffix that occurs there and the position after it; the
            longest first, of equals the first in the text.
        length: the longest suffix that occurs more than once, 0 if there is none. The end of the text counts.
        once: the length of the longest suffix that occurs exactly once, 0 if there is none.
        at: the position after this occurrence.
    """

    __slots__ = ("at", "entries", "is_end", "length", "nodes", "once", "path")

    def __init__(
        self, path: list[int], is_end: bool, nodes: list[Node], entries: list[tuple[int, int]], depth: int
    ) -> None:
        self.path, self.is_end, self.nodes, self.entries = path, is_end, nodes, entries
        self.once = self.at = 0
        if len(entries) > 1 or (entries and is_end):
            self.length = min(entries[0 if is_end else 1][0], depth)
        else:
            self.length = min(nodes[-1].length, depth) if nodes else 0

    def find_once(self, most: int) -> None:
        """Set ``once``, as a suffix of up to ``most`` tokens."""
        if self.entries:
            longest, at = self.entries[0]
            second = self.entries[1][0] if len(self.entries) > 1 else self.nodes[-1].length if self.nodes else 0
            if min(longest, most) > second:
                self.once, self.at = min(longest, most), at


class ContextTrie:
    """A growing text, and the matches of paths with it.

    Args:
        depth: the longest suffix.
        num_few: largest number of occurrences that are compared one by one, at least 1.
    """

    def __init__(self, depth: int, num_few: int = 16) -> None:
        self._depth, self._num_few = depth, num_few
        self._text: list[int] = []
        self._ends: defaultdict[int, list[int]] = defaultdict(list)  # the position after each occurrence, by token
        self._nodes: dict[int, Node] = {}  # of single tokens that were looked up
        self._active: list[Node] = []  # nodes of the text's own end

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        if self._nodes:
            for token in tokens:
                self._append(token)
            return
        ends = self._ends
        for end, token in enumerate(tokens, len(self._text) + 1):
            ends[token].append(end)
        self._text += tokens

    def add_break(self) -> None:
        """End the text; what is added next starts another one."""
        self._text.append(BREAK)
        self._active = []

    def _append(self, token: int) -> None:
        """Add a token, and an occurrence to each node of the new end."""
        for node in self._active:
            node.count(token)
        text, active = self._text, list[Node]()
        text.append(token)
        end = len(text)
        self._ends[token].append(end)
        longest = self._nodes.get(token)
        while longest is not None:
            active.append(longest)
            longest.memo = None
            if longest.before is None or end <= longest.length or text[end - longest.length - 1] == BREAK:
                break
            longer = longest.before.setdefault(text[end - longest.length - 1], [])
            longest = longer if isinstance(longer, Node) else None
            (longer.ends if isinstance(longer, Node) else longer).append(end)
        self._active = active

    def end(self) -> Match:
        """Return the match of the text's end with the text before it."""
        tail = self._text[-self._depth - 1 :]
        if BREAK in tail:
            del tail[: len(tail) - tail[::-1].index(BREAK)]
        return self._match([_START, *tail], is_end=True)

    def find(self, path: list[int]) -> Match:
        """Return the match of a path, as in ``Match.path``."""
        found = self._match(path, is_end=False)
        found.find_once(self._depth)
        return found

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of the path extended by a token."""
        found = self._match([*match.path, token], is_end=False)
        if match.once and match.at < len(self._text) and self._text[match.at] == token:
            found.once, found.at = min(match.once + 1, self._depth), match.at + 1
        else:
            found.find_once(match.length + 1)
        return found

    def _match(self, path: list[int], is_end: bool) -> Match:
        nodes, length = list[Node](), 1
        ends: Sequence[int] = self._ends.get(path[-1], ())
        node = self._nodes.get(path[-1])
        if node is None and len(ends) > self._num_few:
            node = self._nodes[path[-1]] = self._new(1, self._ends[path[-1]])
        while node is not None:
            nodes.append(node)
            if length > self._depth:
                return Match(path, is_end, nodes, [], self._depth)
            length += 1
            before = self._sorted(node) if node.before is None else node.before
            longer = before.get(path[-length], _NOWHERE)
            if isinstance(longer, Node):
                node = longer
            elif len(longer) > self._num_few:
                node = before[path[-length]] = self._new(length, longer)
            else:
                node, ends = None, longer
        return Match(path, is_end, nodes, self._compared(ends, length, path, is_end), self._depth)

    def _compared(self, ends: Sequence[int], length: int, path: list[int], is_end: bool) -> list[tuple[int, int]]:
        """Return for each occurrence of a suffix the length of the longest that occurs there, and the position."""
        text, most, entries = self._text, self._depth + 1, list[tuple[int, int]]()
        for end in ends:
            if is_end and end == len(text):
                break
            same = length
            while same < most and same < end and text[end - same - 1] == path[-same - 1]:
                same += 1
            entries.append((same, end))
        if len(entries) > 1:
            entries.sort(key=_first, reverse=True)
        return entries

    def _new(self, length: int, ends: list[int]) -> Node:
        node = Node(length, ends)
        if ends[-1] == len(self._text):
            self._active.append(node)
        return node

    def _sorted(self, node: Node) -> "dict[int, Node | list[int]]":
        """Sort a node's occurrences by the preceding token."""
        text, before, length = self._text, defaultdict[int, list[int]](list), node.length
        for end in node.ends:
            if end > length:
                before[text[end - length - 1]].append(end)
        before.pop(BREAK, None)
        node.before = {**before}
        return node.before

    def next_at(self, match: Match) -> int:
        """Return the token after the longest suffix that occurs once, or ``BREAK`` if there is none."""
        return self._text[match.at] if match.once and match.at < len(self._text) else BREAK

    def levels(self, match: Match) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the length and the occurrences of suffixes that occur more than once, the longest first.

        Suffixes with the occurrences of a longer one may be left out. An occurrence is the position after it; positions
        ascend, without the end of the text.
        """
        for length, number in self.few(match):
            yield length, sorted(end for _, end in match.entries[:number])
        for node in reversed(match.nodes):
            if node.length <= self._depth:
                yield node.length, node.ends[:-1] if match.is_end else node.ends

    def few(self, match: Match) -> Iterator[tuple[int, int]]:
        """Yield the levels of ``match.entries``: the suffix's length, and the number of entries that have it."""
        entries, longest = match.entries, match.nodes[-1].length if match.nodes else 0
        number = 0
        while number < len(entries):
            length = min(entries[number][0], self._depth)
            number += 1
            while number < len(entries) and entries[number][0] >= length:
                number += 1
            if length > longest and number + match.is_end > 1:
                yield length, number

    def ranked(self, node: Node) -> list[tuple[int, int]]:
        """Return a node's top followers with their counts; see ``Node.ranked``."""
        if node.counts is None:
            text, counts = self._text, dict[int, int]()
            for end in node.ends[:-1] if node.ends[-1] == len(text) else node.ends:
                token = text[end]
                counts[token] = counts.pop(token, 0) + 1
            node.counts = counts
            node.ranked = _top(counts)
        return node.ranked

    def ranked_few(self, match: Match, number: int) -> list[tuple[int, int]]:
        """Return the top followers of the first entries, as ``ranked`` does."""
        text, counts = self._text, dict[int, int]()
        for end in sorted([end for _, end in match.entries[:number]]):
            if end < len(text):
                token = text[end]
                counts[token] = counts.pop(token, 0) + 1
        return _top(counts)


def _first(entry: tuple[int, int]) -> int:
    return entry[0]


def _top(counts: dict[int, int]) -> list[tuple[int, int]]:
    """Return the most frequent of counted tokens, of equals the last counted first."""
    counts.pop(BREAK, None)
    if len(counts) <= 1:
        return list(counts.items())
    latest_first = [*reversed(counts.items())]
    latest_first.sort(key=_count, reverse=True)  # stable
    return latest_first[:_MOST_FOLLOWERS]


def _count(entry: tuple[int, int]) -> int:
    return entry[1]
