"""The suffix trie against a search through the text."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from specdec.strategies.sources.trie import COUNT, NO_TOKEN, NUM_RANKED, RANKED, SHORTER, TOP, SuffixTrie

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def occurrences(text: list[int], run: list[int]) -> list[int]:
    """The places behind a run in a text."""
    return [end for end in range(len(run), len(text) + 1) if text[end - len(run) : end] == run]


def followers(text: list[int], run: list[int]) -> Counter[int]:
    """What follows a run in a text."""
    return Counter(text[end] for end in occurrences(text, run) if end < len(text))


def suffixes_of(trie: SuffixTrie, node: int) -> list[int]:
    """The nodes of an n-gram and of its suffixes, longest first."""
    return [] if node == TOP else [node, *suffixes_of(trie, trie.records[node + SHORTER])]


def ranking(trie: SuffixTrie, node: int) -> list[tuple[int, int]]:
    """The ranked followers of an n-gram with their counts."""
    first = node + RANKED
    counts = trie.records[first + NUM_RANKED : first + 2 * NUM_RANKED]
    ranked = zip(trie.records[first : first + NUM_RANKED], counts, strict=True)
    return [entry for entry in ranked if entry[0] != NO_TOKEN]


@given(text=texts, path=st.lists(st.integers(0, 3), max_size=6), depth=st.integers(1, 6))
def test_every_match_is_what_a_search_finds(text: list[int], path: list[int], depth: int) -> None:
    trie = SuffixTrie(depth)
    trie.extend(text)
    seen = list(text)
    match = trie.end
    for token in [*path, None]:
        length, at, longest = match
        for node in suffixes_of(trie, longest):
            suffix = seen[len(seen) - trie.records[node] :]
            found, ranked = followers(text, suffix), ranking(trie, node)
            assert dict(ranked) == dict(found)
            assert [count for _, count in ranked] == sorted(found.values(), reverse=True)
            assert trie.records[node + COUNT] == len(occurrences(text, suffix))
        if (only := trie.next_at(match)) != NO_TOKEN:
            assert length <= len(seen)
            assert text[at] == only
            assert at in occurrences(text, seen[len(seen) - length :])
        if token is not None:
            match = trie.follow(match, token)
            seen.append(token)


@given(text=texts, depth=st.integers(1, 6))
def test_the_end_is_matched_as_far_as_it_was_written_before(text: list[int], depth: int) -> None:
    trie = SuffixTrie(depth)
    trie.extend(text)
    longest = max(
        length
        for length in range(len(text) + 1)
        if len(occurrences(text, text[len(text) - length :])) > 1 or not length
    )
    lengths = [trie.records[node] for node in suffixes_of(trie, trie.end[2])]
    assert lengths == [*range(min(longest, depth), 0, -1)]
