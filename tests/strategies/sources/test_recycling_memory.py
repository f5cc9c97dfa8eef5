"""Saved recycling memories: what begins with one drafts as what wrote it, and other files are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, Generator, ModelError, Request, RequestError, ToyModel
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.sources.recycling import RecyclingEngine, TokenRecyclingProposer
from specdec.strategies.sources.recycling_memory import RecyclingMemory
from specdec.strategies.sources.tokenizer_fingerprint import Fingerprint
from specdec.testing import toy_host
from tests.support.byte_tokenizer import trained

MODEL = ToyModel.random(6, order=2, sharpness=3.0, seed=5)
ROOMY = Budget(99, 99, 99)

successors = st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9)), min_size=1, max_size=4).map(
    lambda pairs: tuple(zip(*pairs, strict=True))
)
memories = st.builds(
    RecyclingMemory,
    st.dictionaries(st.integers(0, 5), successors),
    st.dictionaries(st.tuples(st.integers(-1, 5), st.integers(0, 5)), successors),
)


def drafts(engine: RecyclingEngine, tokens: list[int]) -> list[list[int]]:
    request = Request(TokenView(tokens), 1, 6, frozenset(), 0.0, Randomness(0).stream("test"))
    tree = engine.start(request).propose(ROOMY)
    return [tree.path(node) for node in range(len(tree))]


def opened(**options: Any) -> RecyclingEngine:
    engine = TokenRecyclingProposer(**options).bind(toy_host(6, reads_q=False))
    assert isinstance(engine, RecyclingEngine)
    return engine


@given(memory=memories)
def test_what_was_saved_is_read_to_the_bit_and_in_its_order(memory: RecyclingMemory, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("saved") / "memory.npz"
    memory.save(path, Fingerprint())
    read = RecyclingMemory.load(path, None, 6)
    assert list(read.of_token.items()) == list(memory.of_token.items())
    assert list(read.of_pair.items()) == list(memory.of_pair.items())
    first = path.read_bytes()
    read.save(path, Fingerprint())
    assert path.read_bytes() == first


def test_a_generator_that_begins_with_anothers_memory_drafts_what_that_one_would_have(tmp_path: Path) -> None:
    path = tmp_path / "memory.npz"
    with Generator(MODEL, proposer=f"token_recycling:save_to={path}") as first:
        plain = first.generate([1, 2], max_new_tokens=200)
        again = first.generate([1, 2], max_new_tokens=200)
    with Generator(MODEL, proposer=f"suffix+token_recycling:path={path}") as merged:
        assert merged.generate([1, 2], max_new_tokens=200).token_ids == plain.token_ids
    with Generator(MODEL, proposer=f"token_recycling:path={path}") as second:
        warm = second.generate([1, 2], max_new_tokens=200)
        assert warm.token_ids == plain.token_ids
        assert warm.stats.steps < plain.stats.steps
        assert abs(warm.stats.steps - again.stats.steps) <= 0.1 * again.stats.steps  # but for rates, which aren't saved
    engine, other = opened(path=path), opened(path=path)
    for before, token in np.ndindex(6, 6):
        assert drafts(engine, [before, token]) == drafts(other, [before, token])
    assert max(len(drafts(engine, [before, token])) for before, token in np.ndindex(6, 6)) > 3
    assert [each.name for each in tmp_path.iterdir()] == ["memory.npz"]


def test_forgetting_goes_back_to_the_file(tmp_path: Path) -> None:
    RecyclingMemory({1: ((2,), (1.0,))}, {}).save(tmp_path / "memory", Fingerprint())
    engine = opened(path=tmp_path / "memory")
    engine.remember([1], [-1], 3, {0: ((5,), (1.0,))})
    engine.forget()
    assert engine.of_token == {1: ((2,), (1.0,))}
    assert not engine.of_pair


def test_only_as_much_is_taken_as_the_options_allow_the_latest_of_it(tmp_path: Path) -> None:
    table = dict.fromkeys((4, 0, 5), ((1, 2, 3), (3.0, 2.0, 1.0)))
    RecyclingMemory(table, {}).save(tmp_path / "memory", Fingerprint())
    assert opened(path=tmp_path / "memory", num_pairs=2, k=2).of_token == dict.fromkeys((0, 5), ((1, 2), (3.0, 2.0)))
    assert opened(path=tmp_path / "memory", num_pairs=0).of_token == {}


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
def test_where_the_text_depends_on_drafts_a_file_serves_and_saving_is_refused(tmp_path: Path, verifier: str) -> None:
    path, settings = tmp_path / "memory.npz", {"max_new_tokens": 40, "temperature": 1.0, "seed": 8}
    with Generator(MODEL, proposer=f"token_recycling:save_to={path}") as first:
        first.generate([1, 2], max_new_tokens=100)
    begun = TokenRecyclingProposer(path=path)
    fresh = Generator(MODEL, proposer=begun, verifier=verifier).generate([1, 2], **settings)  # type: ignore[arg-type]
    used = Generator(MODEL, proposer=begun, verifier=verifier)
    used.generate([3, 1], **settings)  # type: ignore[arg-type]
    assert used.generate([1, 2], **settings).token_ids == fresh.token_ids  # type: ignore[arg-type]
    assert fresh.stats.tokens_per_step > 1.0
    with pytest.raises(RequestError, match="save_to needs verifier='match'"):
        Generator(MODEL, proposer=TokenRecyclingProposer(save_to=path), verifier=verifier)


@pytest.mark.parametrize(
    "fault", ["missing", "folder", "foreign", "empty", "truncated", "a bit", "other arrays", "later"]
)
def test_a_file_that_is_no_memory_is_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "memory.npz"
    RecyclingMemory({1: ((2,), (1.0,))}, {(0, 1): ((2,), (1.0,))}).save(path, Fingerprint())
    data = bytearray(path.read_bytes())
    if fault == "missing":
        path.unlink()
    elif fault == "folder":
        path.unlink()
        path.mkdir()
    elif fault == "other arrays":
        np.savez(path, weights=np.zeros(3))
    else:
        place = data.index(b"version 1") + 8
        changed = {
            "foreign": b"hello, I am a letter",
            "empty": b"",
            "truncated": bytes(data[:-300]),
            "a bit": bytes(data[:place] + b"7" + data[place + 1 :]),
            "later": bytes(data),
        }[fault]
        path.write_bytes(changed)
        if fault == "later":
            with np.load(path) as arrays:
                kept = dict(arrays)
            kept["header"] = np.frombuffer(b'{"format": "specdec token recycling, version 2"}', np.uint8)
            np.savez(path, **kept)
    with pytest.raises(RequestError, match=r"recycling memory.*save one with token_recycling:save_to=FILE") as refused:
        Generator(MODEL, proposer=TokenRecyclingProposer(path=path))
    assert "\n" not in str(refused.value)


def test_another_tokenizers_memory_and_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    tokenizer = trained()
    model = ToyModel.random(len(tokenizer))
    RecyclingMemory({1: ((2,), (1.0,))}, {}).save(tmp_path / "other", Fingerprint(name="another", digest="abcdef0123"))
    RecyclingMemory({1: ((len(tokenizer),), (1.0,))}, {}).save(tmp_path / "beyond", Fingerprint.of(tokenizer))
    with pytest.raises(ModelError, match="was made with the tokenizer 'another'"):
        Generator(model, tokenizer, proposer=TokenRecyclingProposer(path=tmp_path / "other"))
    with pytest.raises(ModelError, match=f"has ids up to {len(tokenizer)}"):
        Generator(model, tokenizer, proposer=TokenRecyclingProposer(path=tmp_path / "beyond"))


def test_a_file_that_could_not_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    for impossible in (tmp_path / "no" / "memory", tmp_path):
        with pytest.raises(RequestError, match="give a file in a folder that exists"):
            Generator(MODEL, proposer=TokenRecyclingProposer(save_to=impossible))


def test_nothing_is_written_where_nothing_was_learnt(tmp_path: Path) -> None:
    Generator(MODEL, proposer=TokenRecyclingProposer(save_to=tmp_path / "memory")).close()
    assert not list(tmp_path.iterdir())
