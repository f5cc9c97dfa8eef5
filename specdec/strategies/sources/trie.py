"""A suffix trie: for every n-gram of a text, the tokens that followed it and their counts.

An n-gram that was seen once has no node, since its continuation can be read from the text. So the number of nodes is
about the number of repetitions, and the number of updates per token is the length of the match that it ends. Each node
links to the n-gram without its first token, so a match is its longest node, and a path is followed in about one lookup
per token.

A node is a number: the place of its record in one array of integers. Python's garbage collector doesn't visit that
array, and a record lies in one or two cache lines. Objects in place of records would be visited again and again, for
all texts, which took most of the time of indexing a batch's prompts.
"""

from array import array
from collections.abc import Iterable

NO_TOKEN = -1  # in place of a follower that an n-gram lacks
TOP = 0  # the node of the empty n-gram
NUM_RANKED = 4  # ranked followers of an n-gram
_TOKEN_BITS = 32
SHORTER, COUNT, RANKED = 1, 2, 3  # places in a record
_RANKED_COUNTS = RANKED + NUM_RANKED
_NEW = array("i", [0, TOP, 2, *[NO_TOKEN] * NUM_RANKED, *[0] * NUM_RANKED])

# The suffixes of a path that occur in the text, as three numbers: the length of the longest one that was seen exactly
# once, 0 if there is none; the position in the text after this occurrence; and the node of the longest one that was
# seen more often, TOP if there is none.
Match = tuple[int, int, int]


class SuffixTrie:
    """The n-grams of up to ``depth`` tokens of a growing text, and the match of its end with earlier text.

    Attributes:
        records: of each node, from the place that is its number: the number of tokens of its n-gram; at ``SHORTER`` the
            node of the n-gram without its first token; at ``COUNT`` the number of its occurrences; from ``RANKED`` on
            ``NUM_RANKED`` top followers, most frequent first and of equals the most recent first, ``NO_TOKEN`` where
            there are fewer; and the counts of these followers. The empty n-gram has neither count nor followers.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._text = array("i")
        self.records = array("i", _NEW)
        # By node and token, the n-gram extended by the token: minus its node or, if it occurred once, the position
        # after it.
        self._followers: dict[int, int] = {}
        self._end = TOP  # the longest suffix of the text that occurs elsewhere

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens to the text."""
        text, records, followers, depth = self._text, self.records, self._followers, self._depth
        end = self._end
        for token in tokens:
            text.append(token)
            # Of the suffixes that the token extends, the longest ones are new, the next ones occurred once, and the
            # others have a node, from which the link leads to the next one.
            node, longest, longer = end, TOP, TOP
            while (known := followers.get(place := node << _TOKEN_BITS | token, 0)) >= 0:
                if known:
                    followers[place] = -len(records)
                    known = self._add_node(known, records[node] + 1)
                    if longer:
                        records[longer + SHORTER] = known
                    longest, longer = longest or known, known
                else:
                    followers[place] = len(text)
                if node == TOP:
                    break
                self._rank(node, token, 2 if known else 1)
                node = records[node + SHORTER]
            else:
                longest = longest or -known
                if longer:
                    records[longer + SHORTER] = -known
                self._count(node, token, -known)
            end = longest if records[longest] <= depth else records[longest + SHORTER]
        self._end = end

    def _count(self, node: int, token: int, known: int) -> None:
        """Count an n-gram, extended by a token to one with the node ``known``, and all its suffixes so extended."""
        records = self.records
        while True:
            count = records[known + COUNT] = records[known + COUNT] + 1
            if node == TOP:
                return
            if records[node + RANKED] == token:
                records[node + _RANKED_COUNTS] = count
            else:
                self._rank(node, token, count)
            node, known = records[node + SHORTER], records[known + SHORTER]

    def _add_node(self, at: int, length: int) -> int:
        """Return a new node for an n-gram of ``length`` tokens that occurs before ``at``, and again now."""
        records, token = self.records, self._text[at]
        node = len(records)
        records.extend(_NEW)
        records[node] = length
        records[node + RANKED], records[node + _RANKED_COUNTS] = token, 1
        self._followers[node << _TOKEN_BITS | token] = at + 1
        return node

    def _rank(self, node: int, token: int, count: int) -> None:
        """Move a follower, now the most recent, to its place by the new count."""
        records, first = self.records, node + RANKED
        place, last = first, first + NUM_RANKED
        while place < last and records[place] != token and records[place] != NO_TOKEN:
            place += 1
        while place > first and records[place - 1 + NUM_RANKED] <= count:
            if place < last:
                records[place], records[place + NUM_RANKED] = records[place - 1], records[place - 1 + NUM_RANKED]
            place -= 1
        if place < last:
            records[place], records[place + NUM_RANKED] = token, count

    @property
    def end(self) -> Match:
        """The match of the text's end with earlier text."""
        return 0, 0, self._end

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of the path extended by a token."""
        length, at, node = match
        followers = self._followers
        if length and at < len(self._text) and self._text[at] == token:
            length, at = (length + 1 if length < self._depth else self._depth), at + 1
        else:
            length = at = 0
        while True:
            known = followers.get(node << _TOKEN_BITS | token, 0)
            if known < 0:
                records = self.records
                return length, at, (-known if records[-known] <= self._depth else records[SHORTER - known])
            if node == TOP:
                return (length, at, TOP) if length or not known else (1, known, TOP)
            if known and not length:
                length, at = self.records[node] + 1, known
            node = self.records[node + SHORTER]

    def next_at(self, match: Match) -> int:
        """Return the token after the longest suffix that was seen once, or ``NO_TOKEN`` if there is none."""
        length, at, _ = match
        return self._text[at] if length and at < len(self._text) else NO_TOKEN
