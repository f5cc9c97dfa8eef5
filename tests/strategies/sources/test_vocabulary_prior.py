"""The vocabulary prior, compared with the model's own answers; and its file."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specdec import Generator, RequestError
from specdec.backends.hf import HFBackend
from specdec.masks.dense import DenseCompiler
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.vocabulary_prior import SuccessorTable, VocabularyPrior
from specdec.target import Target
from tests.support import families
from tests.support.examined import examined_target

FIRST = 3


def tiny_llama(seed: int = 1, **options: int) -> PreTrainedModel:
    name, arguments = families.TREES["llama"]
    model = families.make(name, {**arguments, **options})
    torch.manual_seed(seed)
    return families.spread(model)


def target_of(model: torch.nn.Module) -> Target:
    compiler = DenseCompiler()
    return examined_target(HFBackend.load(model, compiler))


def prepared(
    target: Target,
    seconds: float,
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> SuccessorTable:
    """A new prior's table, after some seconds."""
    prior = VocabularyPrior(lambda: target, FIRST, folder, clock)
    prior.prepare(on_progress, seconds)
    return prior.table


@pytest.fixture
def ticks() -> Iterator[int]:
    """A clock that says how often it was asked."""
    return count()


def test_each_tokens_successors_are_what_the_model_says_behind_it_alone(tmp_path: Path) -> None:
    model = tiny_llama(seed=1)
    table = prepared(target_of(model), 60.0, tmp_path)
    vocab = model.config.vocab_size
    assert table.is_whole
    with torch.inference_mode():
        behind = torch.stack([torch.full((vocab,), FIRST), torch.arange(vocab)], 1)
        logits = model(behind).logits[:, -1]
    for token in range(vocab):
        told = table.of(token, 4)
        assert told is not None
        tokens, scores = told
        assert list(tokens) == logits[token].topk(4).indices.tolist()
        assert list(scores) == pytest.approx(logits[token].topk(4).values.tolist(), rel=1e-2, abs=1e-3)


def test_work_that_is_cut_short_goes_on_the_next_time(tmp_path: Path, ticks: Iterator[int]) -> None:
    target, clock = target_of(tiny_llama(vocab_size=1000)), lambda: float(next(ticks))
    known = [prepared(target, 3.0, tmp_path, clock).num_known for _ in range(6)]
    assert known == sorted(known)
    assert 0 < known[0] < known[1] < 1000
    assert known[-1] == 1000
    whole = prepared(target, 60.0, tmp_path / "other")
    again = prepared(target, 3.0, tmp_path, clock)
    assert np.array_equal(whole.tokens, again.tokens)
    assert not target.rows


def test_another_model_has_a_file_of_its_own_and_a_damaged_one_is_made_anew(
    tmp_path: Path, ticks: Iterator[int]
) -> None:
    clock = lambda: float(next(ticks))  # noqa: E731 - as long as the line that it is used in
    tables = [prepared(target_of(tiny_llama(seed=seed)), 99.0, tmp_path, clock) for seed in (1, 2)]
    files = sorted((tmp_path / "successors").iterdir())
    assert len(files) == 2
    assert not np.array_equal(tables[0].tokens, tables[1].tokens)
    for path in files:
        path.write_bytes(path.read_bytes()[:100])
    again = prepared(target_of(tiny_llama(seed=1)), 99.0, tmp_path, clock)
    assert np.array_equal(again.tokens, tables[0].tokens)


VOCAB, K = 50, 4


def written(path: Path, num: int = VOCAB) -> Path:
    """Save a table of so many tokens: each is followed by the four before it."""
    table = SuccessorTable.unknown(VOCAB, K)
    table.add((np.arange(num)[:, None] - np.arange(K)) % VOCAB, np.tile(np.arange(K, 0, -1.0), (num, 1)))
    table.save(path)
    return path


def with_arrays(path: Path, **changed: Any) -> None:
    """Change arrays of a file; what is None is left out."""
    with np.load(path) as held:
        arrays = {name: array for name, array in (dict(held) | changed).items() if array is not None}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    for num in (VOCAB, 7, 0):
        table = SuccessorTable.load(written(tmp_path / "table.npz", num), VOCAB, K)
        assert (table.num_known, table.is_whole) == (num, num == VOCAB)
        assert table.of(0, 2) == (((0, 49), (4.0, 3.0)) if num else None)
        with_arrays(tmp_path / "table.npz")
        assert SuccessorTable.load(tmp_path / "table.npz", VOCAB, K).num_known == num, "the tests' own way of writing"


TOKENS, LOGITS = np.zeros((VOCAB, K), np.int32), np.zeros((VOCAB, K), np.float16)


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": TOKENS[:, :3]},
        {"tokens": TOKENS[:7]},
        {"tokens": TOKENS[None], "logits": LOGITS[None]},
        {"tokens": np.int32(3), "logits": np.float16(3)},
        {"tokens": np.tile(TOKENS, (2, 1)), "logits": np.tile(LOGITS, (2, 1))},
        {"logits": None},
        {"tokens": None},
        {"made_for": None},
        {"made_for": np.array("specdec successors 1")},
        {"made_for": np.array([1, 2])},
    ],
)
def test_a_table_that_does_not_fit_is_not_read(tmp_path: Path, changed: dict[str, Any]) -> None:
    with_arrays(written(tmp_path / "table.npz"), **changed)
    assert SuccessorTable.load(tmp_path / "table.npz", VOCAB, K).num_known == 0


def test_cuts_holes_and_other_tables_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "table.npz")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place])
        assert SuccessorTable.load(path, VOCAB, K).num_known == 0
    for place in range(0, len(whole) - 64, 64):
        path.write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
        table = SuccessorTable.load(path, VOCAB, K)
        assert table.num_known in {0, VOCAB}
        assert table.num_known == 0 or table.of(0, 2) == ((0, 49), (4.0, 3.0)), "there were zeros"
    path.write_bytes(whole)
    for vocab_size, k in ((VOCAB + 1, K), (VOCAB - 1, K), (VOCAB, K + 1)):
        assert SuccessorTable.load(path, vocab_size, k).num_known == 0
    copied = tmp_path / "another.npz"
    copied.write_bytes(whole)
    assert SuccessorTable.load(copied, VOCAB, K).num_known == 0


def test_a_file_that_does_not_fit_is_made_anew_and_decoding_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def text() -> list[int]:
        generator = Generator(tiny_llama(seed=4), proposer=TokenRecyclingProposer(min_probability=0.0))
        return generator.generate([5, 9], max_new_tokens=8).token_ids

    Generator(tiny_llama(seed=4)).prepare()
    (path,) = (tmp_path / "specdec" / "successors").iterdir()
    whole, expected = path.read_bytes(), text()
    with np.load(path) as held:
        with_arrays(path, tokens=held["tokens"] + 10_000, made_for=np.array("another model"))
    assert text() == expected
    Generator(tiny_llama(seed=4)).prepare()
    assert path.read_bytes() == whole


def test_a_table_that_another_process_has_finished_is_not_replaced_by_a_part(tmp_path: Path) -> None:
    target, other = target_of(tiny_llama(vocab_size=1000)), target_of(tiny_llama(vocab_size=1000))

    def interrupt(num_known: int, num_tokens: int) -> None:
        if num_known > 300:
            prepared(other, math.inf, tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(target, math.inf, tmp_path, on_progress=interrupt)
    (path,) = (tmp_path / "successors").iterdir()
    assert SuccessorTable.load(path, 1000, 8).is_whole


def test_loading_and_idle_time_read_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, paths, load = target_of(tiny_llama(vocab_size=1000)), list[Path](), SuccessorTable.load

    def counting(path: Path, vocab_size: int, k: int) -> SuccessorTable:
        paths.append(path)
        return load(path, vocab_size, k)

    monkeypatch.setattr(SuccessorTable, "load", counting)
    for num_reads in (2, 1):  # the second: before it is written, since another process may have written more
        prior = VocabularyPrior(lambda: target, FIRST, tmp_path)
        assert prior.prepare(lambda *_: None, 0.0) == (num_reads == 1)
        while not prior.prepare(lambda *_: None, 1e-9):
            pass
        assert (len(paths), prior.table.is_whole) == (num_reads, True)
        paths.clear()


def test_no_seconds_are_no_successors(tmp_path: Path) -> None:
    assert prepared(target_of(tiny_llama()), 0.0, tmp_path).of(0, 4) is None
    assert not list(tmp_path.iterdir())


def test_a_table_has_only_numbers() -> None:
    table = SuccessorTable.unknown(2, 3)
    table.add(np.array([[1, 0, 1]]), np.array([[np.nan, np.inf, -np.inf]]))
    assert table.of(0, 3) is not None
    assert np.isfinite(table.logits).all()
    assert table.of(1, 3) is None


def test_an_interrupted_call_keeps_what_it_has(tmp_path: Path) -> None:
    target = target_of(tiny_llama(vocab_size=1000))

    def interrupt(num_known: int, num_tokens: int) -> None:
        if num_known > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(target, math.inf, tmp_path, on_progress=interrupt)
    (path,) = (tmp_path / "successors").iterdir()
    assert SuccessorTable.load(path, 1000, 8).num_known > 300
    assert not target.rows


def test_a_prepared_generator_knows_all_tokens_at_once_and_so_do_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    proposer = TokenRecyclingProposer(min_probability=0.0)
    generator = Generator(tiny_llama(seed=4), proposer=proposer)
    before = generator.generate([5, 9], max_new_tokens=2).stats.num_nodes
    told: list[tuple[int, int]] = []
    generator.prepare(lambda *progress: told.append(progress))
    vocab = generator.vocab_size
    assert told == [(known, vocab) for known in range(0, vocab, 128)]
    assert generator.generate([5, 9], max_new_tokens=2).stats.num_nodes > before
    later = Generator(tiny_llama(seed=4), proposer=proposer)
    assert later.generate([5, 9], max_new_tokens=2).stats.num_nodes > before


def test_a_folder_that_cant_be_written_to_is_said_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specdec").write_text("a file in the folder's place")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generator = Generator(tiny_llama(seed=4))
    with pytest.raises(RequestError, match="can't be saved"):
        generator.prepare()


def test_a_token_that_wasnt_seen_is_followed_by_what_the_target_says_of_it_alone() -> None:
    proposer, prompt = TokenRecyclingProposer(min_probability=0.0), [5, 9]
    unknown, known = (Generator(tiny_llama(seed=1), proposer=proposer) for _ in range(2))
    known.prepare()
    first, other = (each.generate(prompt, max_new_tokens=2) for each in (known, unknown))
    assert first.token_ids == other.token_ids
    assert first.stats.num_nodes > other.stats.num_nodes


def test_idle_time_is_used_until_every_token_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generator = Generator(tiny_llama(seed=6, vocab_size=1000), proposer=TokenRecyclingProposer(min_probability=0.0))
    before = generator.generate([5, 9], max_new_tokens=2).stats.num_nodes
    with generator.open_batch() as batch:
        while not batch.use_idle_time(1e-9):
            pass
    assert generator.generate([5, 9], max_new_tokens=2).stats.num_nodes > before
    assert [*(tmp_path / "specdec" / "successors").iterdir()]
    with Generator(tiny_llama(seed=6), proposer="autoregressive").open_batch() as batch:
        assert batch.use_idle_time(1e-9)  # nothing asks for it
