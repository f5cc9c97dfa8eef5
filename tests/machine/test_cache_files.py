"""Files that outlive a process: whole or not at all, this version's or made anew, and none lost between writers."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field, model_validator

from specdec import Generator
from specdec.machine.cache_files import Remembered, read, replace_file, update, write
from specdec.machine.facts import key_of
from tests.support import families
from tests.support.fresh_process import ROOT


class Finding(Remembered):
    """What the tests remember."""

    name: str
    seconds: float = 0.5
    sizes: tuple[tuple[int, int], ...] = ()
    counts: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sizes_are_positive(self) -> "Finding":
        if any(min(size) < 1 for size in self.sizes):
            raise ValueError("sizes are positive")
        return self


FINDING = Finding(name="né", seconds=0.1 + 0.2, sizes=((1, 2), (3, 4)), counts={"b": 1, "a": 2})


def written(folder: Path) -> Path:
    path = folder / "below" / "finding.json"
    assert write(path, FINDING)
    return path


def changed(path: Path, **fields: Any) -> None:
    """Change fields of the value, and leave the digest."""
    text = json.loads(path.read_text())
    text["value"] |= fields
    path.write_text(json.dumps(text))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read(path, Finding) == FINDING
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert read(tmp_path / "none", Finding) is None


def test_every_cut_and_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert read(path, Finding) is None
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read(path, Finding) in [None, FINDING], "spaces between the values mean nothing"
    path.write_bytes(bytes(len(whole)))
    assert read(path, Finding) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 3},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": "0.30000000000000004"},
        {"sizes": [[1, 2.0]]},
        {"sizes": [[1, 2, 3]]},
        {"sizes": [[0, 2]]},
        {"counts": {"b": 1.0, "a": 2}},
        {"counts": []},
        {"unknown": 1},
        {"name": "another"},
    ],
    ids=str,
)
def test_values_that_the_model_does_not_allow_or_the_digest_does_not_cover(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    path = written(tmp_path)
    changed(path, **fields)
    assert read(path, Finding) is None


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"digest": "", "value": {}}', "[" * 100_000, "\x00", "\ud800"]
)
def test_foreign_files_are_not_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "finding.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    assert read(path, Finding) is None
    assert write(path, FINDING)
    assert read(path, Finding) == FINDING


def test_another_models_file_is_not_read_even_if_its_values_would_do(tmp_path: Path) -> None:
    class Newer(Finding):
        note: str = ""

    path = written(tmp_path)
    assert read(path, Newer) is None
    assert write(path, Newer(name="newer"))
    assert read(path, Finding) is None


def test_a_folder_a_pipe_and_a_loop_in_the_files_place(tmp_path: Path) -> None:
    folder, pipe, loop = tmp_path / "folder", tmp_path / "pipe", tmp_path / "loop"
    folder.mkdir()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    assert [read(path, Finding) for path in (folder, pipe, loop)] == [None] * 3
    assert not write(folder, FINDING)
    assert not write(folder.with_name("x" * 300), FINDING)
    assert not update(tmp_path / "loop" / "finding.json", Finding, lambda _: FINDING)
    assert {each.name for each in tmp_path.iterdir()} == {"folder", "pipe", "loop"}


@contextmanager
def no_file_longer_than(num_bytes: int) -> Iterator[None]:
    """Let the system refuse what is written beyond so many bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_what_was_there_and_nothing_beside_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    with no_file_longer_than(20):
        assert not write(path, Finding(name="another"))
        assert not update(path, Finding, lambda _: Finding(name="another"))
    assert read(path, Finding) == FINDING
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    path = written(tmp_path)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, interrupt)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05])
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_file_and_no_lock(
    tmp_path: Path, seconds: float
) -> None:
    path = written(tmp_path)
    child = os.fork()
    if not child:
        for number in count():  # until it is killed
            update(path, Finding, partial(counting, str(number)))
    while read(path, Finding) == FINDING:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = read(path, Finding)
    assert found is not None
    assert found.counts == FINDING.counts | {str(number): 1 for number in range(len(found.counts) - 2)}
    assert update(path, Finding, partial(counting, "after"))


def counting(name: str, value: Finding | None) -> Finding:
    value = value or Finding(name="counts")
    return value.model_copy(update={"counts": value.counts | {name: 1}})


def test_threads_that_update_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "finding.json"
    names = [str(number) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        done = pool.map(lambda name: update(path, Finding, lambda value: counting(name, value)), names)
        assert all(done)
    value = read(path, Finding)
    assert value is not None
    assert set(value.counts) == set(names)


def test_processes_that_update_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "finding.json"
    code = """
import sys
from pathlib import Path
from specdec.machine.cache_files import Remembered, update
class Counts(Remembered):
    counts: dict[str, int]
sys.stdin.readline()
for number in range(20):
    name = f"{sys.argv[2]} {number}"
    assert update(Path(sys.argv[1]), Counts, lambda value: Counts(counts={**(value.counts if value else {}), name: 1}))
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name], stdin=subprocess.PIPE, cwd=ROOT)
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert set(json.loads(path.read_text())["value"]["counts"]) == {f"{name} {n}" for name in "ab" for n in range(20)}


def test_a_lock_that_cannot_be_had_is_not_waited_for_long(tmp_path: Path) -> None:
    import fcntl

    path = written(tmp_path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert update(path, Finding, lambda _: Finding(name="another"))
    finally:
        os.close(descriptor)
    assert read(path, Finding) == Finding(name="another")


def test_a_key_depends_on_facts_and_threads() -> None:
    known = key_of("llama", 3, (1.5, None))
    assert known == key_of("llama", 3, (1.5, None))
    assert len({known, key_of("llama", 3), key_of("llama", "3", (1.5, None))}) == 3
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert key_of("llama", 3, (1.5, None)) != known
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("place", ["a file", "a full disk", "folders in the files' places"])
def test_a_generator_works_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "specdec"
    if place == "a file":
        cache.write_text("")
    elif place != "a full disk":
        (cache / "row_multiples.json").mkdir(parents=True)
        (cache / "successors").write_text("")
    model = families.spread(families.make(*families.TREES["llama"]))
    ids = torch.tensor([[5, 9, 3]])
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)[0, 3:].tolist()
    with no_file_longer_than(0 if place == "a full disk" else resource.RLIM_INFINITY):
        generator = Generator(model, proposer="token_recycling", weights="packed")
        found = generator.generate([5, 9, 3], max_new_tokens=8).token_ids
        generator.close()
    assert list(found) == expected
    assert not list(tmp_path.rglob("*.part"))
