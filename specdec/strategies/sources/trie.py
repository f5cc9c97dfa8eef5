"""A suffix trie: for every run of tokens in a text, what followed it and how often.

A run that was seen once needs no node of its own: the text itself says how it goes on. So there are about as many nodes
as there are repetitions, and a token costs as many updates as the match that it ends is long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BREAK = -1  # between texts: no run goes on behind it
_MOST_FOLLOWERS = 8  # of a run, that are told


class Node:
    """A run of tokens that was seen; unfolded into what followed when it is seen again.

    Attributes:
        count: how often it was seen.
        at: where the text goes on behind its first occurrence.
        followers: by token, the least recently seen first; None before the second occurrence.
    """

    __slots__ = ("_ranked", "at", "count", "followers")

    def __init__(self, at: int) -> None:
        self.count, self.at = 1, at
        self.followers: dict[int, Node] | None = None
        self._ranked: Sequence[tuple[int, int]] | None = None

    def add(self, token: int, at: int) -> "Node | None":
        """Count a token behind this run, ``at`` being the place behind it; return its node if it was there before."""
        assert self.followers is not None, "a run that is followed a second time was unfolded"
        self._ranked = None
        known = self.followers.pop(token, None)
        if known is None:
            self.followers[token] = Node(at)
            return None
        known.count += 1
        self.followers[token] = known
        return known

    @property
    def ranked(self) -> Sequence[tuple[int, int]]:
        """The likeliest followers and their counts: the most frequent first, of equals the most recent."""
        if self._ranked is None:
            assert self.followers is not None, "only unfolded runs have followers"
            recent_first = [(token, node.count) for token, node in reversed(self.followers.items()) if token != BREAK]
            recent_first.sort(key=lambda follower: -follower[1])
            self._ranked = recent_first[:_MOST_FOLLOWERS]
        return self._ranked


@dataclass(frozen=True, slots=True)
class Match:
    """The runs that end a path, longest first.

    Attributes:
        length: tokens of the longest run that was seen once, 0 where there is none.
        at: where the text goes on behind that one.
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
        self._top = Node(0)
        self._top.followers = {}
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
        at, active = len(text), list[Node]()
        for node in self._active:
            known = node.add(token, at)
            if known is not None:
                if known.followers is None:
                    known.followers = {text[known.at]: Node(known.at + 1)}
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
        length, at, nodes = 0, 0, []
        if match.length and match.at < len(self._text) and self._text[match.at] == token:
            length, at = min(match.length + 1, self._depth), match.at + 1
        for index, node in enumerate(match.nodes):
            assert node.followers is not None, "a match's nodes were unfolded"
            known = node.followers.get(token)
            if known is None:
                continue
            if known.followers is not None:
                nodes.append(known)
            elif not length:
                length, at = len(match.nodes) - index, known.at
        nodes.append(self._top)
        return Match(length, at, tuple(nodes[-self._depth - 1 :]))

    def next_at(self, match: Match) -> int:
        """The token behind the longest run that was seen once, ``BREAK`` where the text has none."""
        return self._text[match.at] if match.length and match.at < len(self._text) else BREAK
