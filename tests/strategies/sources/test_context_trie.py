"""The context trie against a search through the text."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.strategies.sources.context_trie import BREAK, ContextTrie, Match

texts = st.lists(st.integers(BREAK, 2), min_size=1, max_size=60)


def occurrences(text: list[int], run: list[int]) -> list[int]:
    """The places after a run in a text."""
    return [end for end in range(len(run), len(text) + 1) if text[end - len(run) : end] == run]


def add(trie: ContextTrie, text: list[int]) -> None:
    for token in text:
        if token == BREAK:
            trie.add_break()
        else:
            trie.extend([token])


def last_part(text: list[int]) -> list[int]:
    return text[len(text) - text[::-1].index(BREAK) :] if BREAK in text else list(text)


def is_right(trie: ContextTrie, match: Match, text: list[int], path: list[int], depth: int) -> None:
    """Compare levels and top followers with a search for each suffix of the path."""
    found = {length: occurrences(text, path[-length:]) for length in range(1, min(depth, len(path)) + 1)}
    repeated = {length: ends for length, ends in found.items() if len(ends) > 1}
    assert match.length == max(repeated, default=0)
    expected = dict[tuple[int, ...], int]()
    for length, ends in repeated.items():
        expected[tuple(ends[:-1] if match.is_end else ends)] = length
    levels = list(trie.levels(match))
    assert [length for length, _ in levels] == sorted({length for length, _ in levels}, reverse=True)
    longest = dict[tuple[int, ...], int]()
    for length, ends in levels:
        longest.setdefault(tuple(ends), length)
    assert longest == expected
    ranked = {length: trie.ranked_few(match, number) for length, number in trie.few(match)}
    ranked |= {node.length: trie.ranked(node) for node in match.nodes if node.length <= depth}
    for length, top in ranked.items():
        followers = [text[end] for end in found[length] if end < len(text) and text[end] != BREAK]
        latest = {token: place for place, token in enumerate(followers)}
        order = sorted(Counter(followers).items(), key=lambda entry: (entry[1], latest[entry[0]]), reverse=True)
        assert top == order[:4]


@pytest.mark.parametrize("num_few", [1, 3, 16])
@given(text=texts, later=texts, path=st.lists(st.integers(0, 2), max_size=6), depth=st.integers(1, 6))
def test_every_match_is_what_a_search_finds(
    num_few: int, text: list[int], later: list[int], path: list[int], depth: int
) -> None:
    trie, written = ContextTrie(depth, num_few), list[int]()
    for part in (text, later):  # what was looked up is kept up to date
        add(trie, part)
        written += part
        seen, match = last_part(written), trie.end()
        is_right(trie, match, written, seen, depth)
        for token in path:
            match = trie.follow(match, token)
            seen.append(token)
            is_right(trie, match, written, seen, depth)
            if (only := trie.next_at(match)) != BREAK:
                assert written[match.at] == only
                assert match.at in occurrences(written, seen[len(seen) - match.once :])


@given(text=texts, path=st.lists(st.integers(0, 2), min_size=1, max_size=6), depth=st.integers(1, 6))
def test_a_path_is_found_without_its_beginning(text: list[int], path: list[int], depth: int) -> None:
    trie = ContextTrie(depth)
    add(trie, text)
    match = trie.find([*ContextTrie(depth).end().path, *path])
    is_right(trie, match, text, path, depth)
    single = [length for length in range(1, len(path) + 1) if len(occurrences(text, path[-length:])) == 1]
    assert bool(match.once) == bool([length for length in single if length <= depth])
    assert not match.once or match.once == min(depth, max(single))


def test_a_prompt_is_read_without_sorting_it() -> None:
    whole, token_by_token = ContextTrie(4), ContextTrie(4)
    text = [token * token % 7 for token in range(300)]
    whole.extend(text)
    add(token_by_token, text)
    assert not whole._nodes
    assert list(whole.levels(whole.end())) == list(token_by_token.levels(token_by_token.end()))
