"""Lookups in an index against a search through the documents."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specdec_datastore.index.building import build_index
from specdec_datastore.index.lookup import Index, Match
from specdec_datastore.index.sorting import sorted_suffixes

Documents = list[list[int]]
documents_of = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=6).filter(any)
BREAK = None
GREATEST = (1 << 32) - 1  # a break among tokens of 32 bits


@contextmanager
def indexed(documents: Documents, depth: int = 32) -> Iterator[Index]:
    with TemporaryDirectory() as folder:
        build_index(Path(folder) / "index", documents)
        index = Index(Path(folder) / "index", depth)
        yield index
        index.close()


def behind(documents: Documents, run: list[int]) -> list[int | None]:
    """Return what follows each occurrence of a run, ``BREAK`` where its document ends."""
    return [
        (document[start + len(run)] if start + len(run) < len(document) else BREAK)
        for document in documents
        for start in range(len(document) - len(run) + 1)
        if document[start : start + len(run)] == run
    ]


def check(index: Index, match: Match, documents: Documents, path: list[int], depth: int) -> None:
    """All that a match says is what a search finds, and nothing that a search finds is missing."""
    found = {run: behind(documents, path[len(path) - run :]) for run in range(1, len(path) + 1)}
    several = [run for run, followers in found.items() if len(followers) > 1 and run <= depth]
    assert [run for run, _, _ in match.ranges] == several[::-1]
    assert [high - low for _, low, high in match.ranges] == [len(found[run]) for run in several[::-1]]
    once = [run for run, followers in found.items() if len(followers) == 1 and run <= depth]
    assert match.length >= max(once, default=0)
    if match.length:
        assert len(found[match.length]) == 1
    told = set[int]()
    for run, num_occurrences, num_seen, ranked in index.followers(match):
        told.add(num_occurrences)
        counts = Counter(token for token in found[run] if token is not BREAK)
        assert num_occurrences == len(found[run])
        assert [count for _, count in ranked] == sorted((count for _, count in ranked), reverse=True)
        if num_seen == num_occurrences:
            assert dict(ranked) == dict(counts)
        else:
            assert num_seen == 32
            assert all(abs(count - 32 * counts[token] / num_occurrences) <= 1 for token, count in ranked)
            assert counts.keys() - dict(ranked) <= {t for t, count in counts.items() if 32 * count <= num_occurrences}
    assert told == {len(found[run]) for run in several} | ({1} if match.length else set())


@given(documents=documents_of, path=st.lists(st.integers(-1, 5), max_size=8), depth=st.integers(1, 6))
def test_every_match_is_what_a_search_finds(documents: Documents, path: list[int], depth: int) -> None:
    with indexed(documents, depth) as index:
        match = index.start
        for end, token in enumerate(path, 1):
            match = index.follow(match, token)
            check(index, match, documents, path[:end], depth)


@given(documents=documents_of, data=st.data())
def test_runs_of_the_documents_themselves_are_found_to_their_ends(documents: Documents, data: st.DataObject) -> None:
    document = data.draw(st.sampled_from([document for document in documents if document]))
    with indexed(documents) as index:
        match = index.start
        for end, token in enumerate(document, 1):
            match = index.follow(match, token)
            check(index, match, documents, document[:end], 32)


def test_of_many_occurrences_some_are_looked_at_and_shares_stay() -> None:
    documents = [[1, 2 if nth % 4 else 3] for nth in range(400)]
    with indexed(documents) as index:
        match = index.follow(index.start, 1)
        check(index, match, documents, [1], 32)
        assert list(index.followers(match)) == [(1, 400, 32, [(2, 24), (3, 8)])]


def test_no_run_goes_on_behind_the_end_of_a_document() -> None:
    with indexed([[1, 2], [3, 4]]) as index:
        match = index.follow(index.follow(index.start, 1), 2)
        assert list(index.followers(match)) == [(2, 1, 1, [])]
        assert index.follow(match, 3) == index.follow(index.start, 3)
        assert index.follow(match, (1 << 16) - 1) == index.start  # a break's own number


def run_at(text: list[int], place: int, depth: int) -> list[int]:
    """Up to ``depth`` tokens from a place on, to the next break."""
    run = text[place : place + depth]
    return run[: run.index(GREATEST) + 1] if GREATEST in run else run


@given(text=st.lists(st.sampled_from([0, 1, 2, 700, GREATEST]), max_size=60), depth=st.sampled_from([1, 8, 32]))
def test_suffixes_are_sorted_by_their_first_tokens_up_to_a_break(text: list[int], depth: int) -> None:
    text = [*text, GREATEST]
    order = sorted_suffixes(np.array(text, np.uint32), 701, depth).tolist()
    assert sorted(order) == [place for place, token in enumerate(text) if token != GREATEST]
    runs = [run_at(text, place, depth) for place in order]
    assert runs == sorted(runs)


@given(data=st.data(), depth=st.sampled_from([4, 7, 16, 32]))
def test_suffixes_that_share_more_than_one_key_holds_are_sorted_too(data: st.DataObject, depth: int) -> None:
    run = data.draw(st.lists(st.integers(0, 2), min_size=20, max_size=40))
    ends = data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=8))
    documents = [[*run, end] for end in ends] + [list(range(5000))]  # 13 bits for a token: four tokens to a key
    text = [token for document in documents for token in (*document, GREATEST)]
    order = sorted_suffixes(np.array(text, np.uint32), 5000, depth).tolist()
    runs = [run_at(text, place, depth) for place in order]
    assert runs == sorted(runs)


@pytest.mark.parametrize("greatest", [65534, 65535, 65536])
def test_ids_beyond_sixteen_bits_are_kept(greatest: int) -> None:
    with indexed([[greatest, 7, greatest, 8]]) as index:
        assert index.header.token_code == ("H" if greatest < 65535 else "I")
        assert list(index.followers(index.follow(index.start, greatest))) == [(1, 2, 2, [(7, 1), (8, 1)])]
