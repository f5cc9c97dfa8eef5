"""A suffix trie: for every n-gram of a text, the tokens that followed it and their counts.

An n-gram that was seen once has no node, since its continuation can be read from the text. So the number of nodes is
about the number of repetitions, and the number of updates per token is the length of the match that it ends.

A node is a number, and its data is in containers of integers, which Python's garbage collector doesn't visit. It would
visit all objects of all requests again and again, which took most of the time of indexing a batch's prompts.
"""

from typing import NamedTuple

BREAK = -1  # between texts; no n-gram continues after it
_TOP = 0  # the node of the empty n-gram
_MOST_FOLLOWERS = 4  # ranked followers of an n-gram
_TOKEN_BITS = 32

Ranked = tuple[tuple[int, int], ...]  # tokens with counts


class Match(NamedTuple):
    """The suffixes of a path that occur in the text, longest first.

    Attributes:
        length: the length of the longest one that was seen exactly once, 0 if there is none.
        at: the position in the text after this occurrence.
        nodes: the nodes of those seen more often; the last one is the empty suffix.
    """

    length: int
    at: int
    nodes: tuple[int, ...]


class SuffixTrie:
    """The n-grams of up to ``depth`` tokens of a growing text, and the match of its end with earlier text.

    Attributes:
        counts: by node, the number of occurrences of the n-gram; not counted for the empty one.
        ranked: by node, the top followers and their counts, most frequent first; of equals, the most recent first.
            Those of the empty n-gram aren't ranked.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._text: list[int] = []
        self.counts, self.ranked = [0], list[Ranked]([()])
        # By node and token, the n-gram extended by the token: -1 - node or, if it occurred once, the position after it.
        self._followers: dict[int, int] = {}
        self._active = [_TOP]

    def __len__(self) -> int:
        return len(self._text)

    def append(self, token: int) -> None:
        """Add a token to the text; ``BREAK`` starts another text."""
        text, followers, counts = self._text, self._followers, self.counts
        text.append(token)
        if token == BREAK:
            self._active = [_TOP]
            return
        active, end = list[int](), len(text)
        for node in self._active:
            place = node << _TOKEN_BITS | token
            known = followers.get(place, 0)
            if not known:
                followers[place] = end
                if node:
                    self._rank(node, token, 1)
                continue
            if known > 0:
                followers[place] = -1 - len(counts)
                known = self._add_node(known)
            else:
                known = -1 - known
            count = counts[known] = counts[known] + 1
            if node:
                self._rank(node, token, count)
            active.append(known)
        active.append(_TOP)
        self._active = active[-self._depth - 1 :]

    def _add_node(self, at: int) -> int:
        """Return a new node for an n-gram that occurs before ``at``."""
        node, token = len(self.counts), self._text[at]
        self.counts.append(1)
        if token == BREAK:
            self.ranked.append(())
        else:
            self.ranked.append(((token, 1),))
            self._followers[node << _TOKEN_BITS | token] = at + 1
        return node

    def _rank(self, node: int, token: int, count: int) -> None:
        """Move a follower, now the most recent, to its place by the new count."""
        ranked = self.ranked[node]
        if not ranked:
            self.ranked[node] = ((token, count),)
        elif ranked[0][0] == token:
            self.ranked[node] = ((token, count), *ranked[1:])
        else:
            others = [entry for entry in ranked if entry[0] != token] if count > 1 else [*ranked]
            place = len(others)
            while place and others[place - 1][1] <= count:
                place -= 1
            others.insert(place, (token, count))
            self.ranked[node] = tuple(others[:_MOST_FOLLOWERS])

    @property
    def end(self) -> Match:
        """The match of the text's end with earlier text."""
        return Match(0, 0, tuple(self._active))

    @property
    def start(self) -> Match:
        """The match of an empty path."""
        return Match(0, 0, (_TOP,))

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of the path extended by a token."""
        length, at, nodes, followers = 0, 0, list[int](), self._followers
        if self.next_at(match) == token:
            length, at = min(match.length + 1, self._depth), match.at + 1
        for index, node in enumerate(match.nodes):
            known = followers.get(node << _TOKEN_BITS | token, 0)
            if known < 0:
                nodes.append(-1 - known)
            elif known and not length:
                length, at = len(match.nodes) - index, known
        nodes.append(_TOP)
        return Match(length, at, tuple(nodes[-self._depth - 1 :]))

    def next_at(self, match: Match) -> int:
        """Return the token after the longest suffix that was seen once, or ``BREAK`` if there is none."""
        return self._text[match.at] if match.length and match.at < len(self._text) else BREAK
