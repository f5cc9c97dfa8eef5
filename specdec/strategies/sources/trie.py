"""A suffix trie: for every run of tokens in a text, what followed it and how often.

A run that was seen once needs no node of its own: the text itself says how it goes on. So there are about as many nodes
as there are repetitions, and a token costs as many updates as the match that it ends is long.
"""

from typing import NamedTuple

BREAK = -1  # between texts: no run goes on behind it
_MOST_FOLLOWERS = 4  # of a run, that are told


class Node:
    """A run of tokens that was seen more than once, and what followed it.

    Attributes:
        count: how often it was seen.
        followers: by token, the run with that token behind it: a node, or where the text goes on behind its only
            occurrence.
        ranked: the top followers and their counts: the most frequent first, of equals the most recent.
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
        """Move a follower, the most recent now, to the place of its new count."""
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
    """The runs that end a path, longest first.

    Attributes:
        length: tokens of the longest run that was seen once, 0 where there is none.
        at: the place after that one in the text.
        nodes: of the runs that were seen more often; the last is the empty run.
    """

    length: int
    at: int
    nodes: tuple[Node, ...]


class SuffixTrie:
    """The runs of up to ``depth`` tokens of a text that grows, and the match of its end with what came before."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._text: list[int] = []
        self._top = Node()
        self._active: list[Node] = [self._top]

    def __len__(self) -> int:
        return len(self._text)

    def append(self, token: int) -> None:
        """Add a token to the text; ``BREAK`` begins another one."""
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
        """The match of the text's end with what came before it."""
        return Match(0, 0, tuple(self._active))

    @property
    def start(self) -> Match:
        """The match of nothing."""
        return Match(0, 0, (self._top,))

    def follow(self, match: Match, token: int) -> Match:
        """The match one token further."""
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
        """Return the token after the longest run that was seen once, ``BREAK`` where the text has none."""
        return self._text[match.at] if match.length and match.at < len(self._text) else BREAK
