"""A suffix trie: for every n-gram of a text, the tokens that followed it and their counts.

An n-gram that was seen once has no node, since its continuation can be read from the text. So the number of nodes is
about the number of repetitions, and the number of updates per token is the length of the match that it ends. Each node
links to the n-gram without its first token, so a match is its longest node, and a path is followed in about one lookup
per token.

A node is a number, and its data is in arrays and a dictionary of integers, which Python's garbage collector doesn't
visit. It would visit all objects of all requests again and again, which took most of the time of indexing a batch's
prompts.
"""

from array import array
from typing import NamedTuple

BREAK = -1  # between texts; no n-gram continues after it
TOP = 0  # the node of the empty n-gram
NUM_RANKED = 4  # ranked followers of an n-gram
_TOKEN_BITS = 32
_UNRANKED = array("i", [BREAK] * NUM_RANKED)


class Match(NamedTuple):
    """The suffixes of a path that occur in the text.

    Attributes:
        length: the length of the longest one that was seen exactly once, 0 if there is none.
        at: the position in the text after this occurrence.
        node: the node of the longest one that was seen more often, ``TOP`` if there is none. Those of the shorter ones
            follow by ``SuffixTrie.shorter``.
    """

    length: int
    at: int
    node: int


class SuffixTrie:
    """The n-grams of up to ``depth`` tokens of a growing text, and the match of its end with earlier text.

    Attributes:
        lengths: by node, the number of tokens of the n-gram.
        shorter: by node, the node of the n-gram without its first token; ``TOP`` has none.
        counts: by node, the number of occurrences of the n-gram; not counted for the empty one.
        ranked: ``NUM_RANKED`` entries by node: the top followers, most frequent first; of equals, the most recent
            first. ``BREAK`` where there are fewer. Those of the empty n-gram aren't ranked.
        ranked_counts: the counts of these followers.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._text = array("i")
        self.lengths, self.shorter, self.counts = array("i", [0]), array("i", [TOP]), array("i", [0])
        self.ranked, self.ranked_counts = array("i", _UNRANKED), array("i", _UNRANKED)
        # By node and token, the n-gram extended by the token: -1 - node or, if it occurred once, the position after it.
        self._followers: dict[int, int] = {}
        self._end = TOP  # the longest suffix of the text that occurs elsewhere

    def __len__(self) -> int:
        return len(self._text)

    def append(self, token: int) -> None:
        """Add a token to the text; ``BREAK`` starts another text."""
        self._text.append(token)
        if token == BREAK:
            self._end = TOP
            return
        followers, counts, shorter, ranked = self._followers, self.counts, self.shorter, self.ranked
        node, longest, longer = self._end, TOP, TOP
        while True:
            place, count = node << _TOKEN_BITS | token, 1
            known = followers.get(place, 0)
            if not known:
                followers[place] = len(self._text)
            else:
                if known > 0:
                    followers[place] = -1 - len(counts)
                    known = self._add_node(known, self.lengths[node] + 1)
                else:
                    known = -1 - known
                count = counts[known] = counts[known] + 1
                if longer:
                    shorter[longer] = known
                longest, longer = longest or known, known
            if node == TOP:
                break
            if ranked[node * NUM_RANKED] == token:
                self.ranked_counts[node * NUM_RANKED] = count
            else:
                self._rank(node, token, count)
            node = shorter[node]
        self._end = longest if self.lengths[longest] <= self._depth else shorter[longest]

    def _add_node(self, at: int, length: int) -> int:
        """Return a new node for an n-gram of ``length`` tokens that occurs before ``at``."""
        node, token = len(self.counts), self._text[at]
        self.lengths.append(length)
        self.shorter.append(TOP)
        self.counts.append(1)
        self.ranked.extend(_UNRANKED)
        self.ranked_counts.extend(_UNRANKED)
        if token != BREAK:
            self.ranked[node * NUM_RANKED], self.ranked_counts[node * NUM_RANKED] = token, 1
            self._followers[node << _TOKEN_BITS | token] = at + 1
        return node

    def _rank(self, node: int, token: int, count: int) -> None:
        """Move a follower, now the most recent, to its place by the new count."""
        ranked, counts, first = self.ranked, self.ranked_counts, node * NUM_RANKED
        place = first
        while place < first + NUM_RANKED and ranked[place] not in (token, BREAK):
            place += 1
        while place > first and counts[place - 1] <= count:
            if place < first + NUM_RANKED:
                ranked[place], counts[place] = ranked[place - 1], counts[place - 1]
            place -= 1
        if place < first + NUM_RANKED:
            ranked[place], counts[place] = token, count

    @property
    def end(self) -> Match:
        """The match of the text's end with earlier text."""
        return Match(0, 0, self._end)

    @property
    def start(self) -> Match:
        """The match of an empty path."""
        return Match(0, 0, TOP)

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of the path extended by a token."""
        length, at, node = match
        followers, text = self._followers, self._text
        if length and at < len(text) and text[at] == token:
            length, at = min(length + 1, self._depth), at + 1
        else:
            length = at = 0
        while True:
            known = followers.get(node << _TOKEN_BITS | token, 0)
            if known < 0:
                found = -1 - known
                return Match(length, at, found if self.lengths[found] <= self._depth else self.shorter[found])
            if known and not length:
                length, at = self.lengths[node] + 1, known
            if node == TOP:
                return Match(length, at, TOP)
            node = self.shorter[node]

    def next_at(self, match: Match) -> int:
        """Return the token after the longest suffix that was seen once, or ``BREAK`` if there is none."""
        return self._text[match.at] if match.length and match.at < len(self._text) else BREAK
