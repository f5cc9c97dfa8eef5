"""A suffix trie: for every n-gram of a text, the tokens that followed it and their counts.

An n-gram that was seen once has no node, since its continuation can be read from the text. So the number of nodes is
about the number of repetitions, and the number of updates per token is the length of the match that it ends.
"""

from typing import NamedTuple

BREAK = -1  # between texts; no n-gram continues after it
_MOST_FOLLOWERS = 4  # ranked followers of an n-gram


class Node:
    """An n-gram that was seen more than once, and the tokens that followed it.

    Attributes:
        count: the number of occurrences.
        followers: by token, the n-gram extended by that token: its node or, if it occurred once, the position in the
            text after that occurrence.
        ranked: the top followers and their counts, most frequent first; of equals, the most recent first.
    """

    __slots__ = ("count", "followers", "ranked")

    def __init__(self) -> None:
        self.count = 1
        self.followers: dict[int, Node | int] = {}
        self.ranked: list[tuple[int, int]] = []

    def follow(self, token: int, at: int) -> None:
        """Add a new follower; ``at`` is the place after it."""
        self.followers[token] = at
        if token != BREAK:
            self.rank(token, 1)

    def rank(self, token: int, count: int) -> None:
        """Move a follower, now the most recent, to its place by the new count."""
        ranked = self.ranked
        if count > 1 and (token, count - 1) in ranked:
            ranked.remove((token, count - 1))
        place = len(ranked)
        while place and ranked[place - 1][1] <= count:
            place -= 1
        if place < _MOST_FOLLOWERS:
            ranked.insert(place, (token, count))
            del ranked[_MOST_FOLLOWERS:]


class Match(NamedTuple):
    """The suffixes of a path that occur in the text, longest first.

    Attributes:
        length: the length of the longest one that was seen exactly once, 0 if there is none.
        at: the position in the text after this occurrence.
        nodes: the nodes of those seen more often; the last one is the empty suffix.
    """

    length: int
    at: int
    nodes: tuple[Node, ...]


class SuffixTrie:
    """The n-grams of up to ``depth`` tokens of a growing text, and the match of its end with earlier text."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._text: list[int] = []
        self._top = Node()
        self._active: list[Node] = [self._top]

    def __len__(self) -> int:
        return len(self._text)

    def append(self, token: int) -> None:
        """Add a token to the text; ``BREAK`` starts another text."""
        text = self._text
        text.append(token)
        if token == BREAK:
            self._active = [self._top]
            return
        active = list[Node]()
        for node in self._active:
            known = node.followers.get(token)
            if known is None:
                node.follow(token, len(text))
                continue
            if isinstance(known, int):
                first = known
                known = node.followers[token] = Node()
                known.follow(text[first], first + 1)
            known.count += 1
            node.rank(token, known.count)
            active.append(known)
        active.append(self._top)
        self._active = active[-self._depth - 1 :]

    @property
    def end(self) -> Match:
        """The match of the text's end with earlier text."""
        return Match(0, 0, tuple(self._active))

    @property
    def start(self) -> Match:
        """The match of an empty path."""
        return Match(0, 0, (self._top,))

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of the path extended by a token."""
        length, at, nodes = 0, 0, list[Node]()
        if self.next_at(match) == token:
            length, at = min(match.length + 1, self._depth), match.at + 1
        for index, node in enumerate(match.nodes):
            known = node.followers.get(token)
            if isinstance(known, Node):
                nodes.append(known)
            elif known is not None and not length:
                length, at = len(match.nodes) - index, known
        nodes.append(self._top)
        return Match(length, at, tuple(nodes[-self._depth - 1 :]))

    def next_at(self, match: Match) -> int:
        """Return the token after the longest suffix that was seen once, or ``BREAK`` if there is none."""
        return self._text[match.at] if match.length and match.at < len(self._text) else BREAK
