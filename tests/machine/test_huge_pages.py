"""Huge pages: full memory is collapsed in place once passes have taken long enough, other mappings are left alone."""

import mmap
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from specdec import Generator, ToyModel
from specdec.machine.huge_pages import HugePages, SmallPages, collapse_pages, small_pages, small_pages_of
from specdec.record import StepRecord

MIB = 2**20
SMAPS = """\
7f0000100000-7f0001000000 rw-p 00000000 00:00 0
Size:              15360 kB
Anonymous:         15360 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac sd
7f1000000000-7f1001000000 rw-p 00000000 00:00 0
Size:              16384 kB
Anonymous:          9000 kB
AnonHugePages:         0 kB
7f2000000000-7f2001000000 rw-p 00000000 00:00 0
Size:              16384 kB
Anonymous:         16384 kB
AnonHugePages:     14336 kB
7f3000000000-7f3001000000 rw-p 00000000 fe:00 77                         /weights.bin
Size:              16384 kB
Anonymous:         16384 kB
AnonHugePages:         0 kB
7f4000000000-7f4001000000 r--p 00000000 00:00 0
Size:              16384 kB
Anonymous:         16384 kB
AnonHugePages:         0 kB
560000000000-560000800000 rw-p 00000000 00:00 0                          [heap]
Size:               8192 kB
Anonymous:          8000 kB
AnonHugePages:         0 kB
"""


def huge_kib(address: int) -> int:
    """``AnonHugePages`` of the mapping at an address, read independently."""
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        first, last = (int(part, 16) for part in entry.split(" ", 1)[0].split("-"))
        if first <= address < last:
            return int(re.search(r"AnonHugePages: +(\d+)", entry)[1])  # type: ignore[index]  # every entry has it
    raise AssertionError("no mapping has this address")


def number_of_small_bytes(address: int) -> int:
    return sum(pages.num_bytes for pages in small_pages() if pages.begin <= address + 2 * MIB < pages.end)


class Memory:
    """Mappings that are full of small pages until they are collapsed; 400 MB take a second."""

    def __init__(self, num_bytes: int = 0) -> None:
        self.small = num_bytes
        self.collapsed = list[int]()
        self.niceness = 0

    def find(self) -> list[SmallPages]:
        return [SmallPages(0, self.small, self.small)] if self.small else []

    def collapse(self, pages: SmallPages) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.collapsed.append(pages.num_bytes)
        self.small = 0


def passing(memory: Memory) -> Callable[[float], list[int]]:
    """A function that notes seconds of passes, and returns what has been collapsed since."""
    pages = HugePages(memory.find, memory.collapse)

    def run(seconds: float) -> list[int]:
        memory.collapsed.clear()
        pages.add_pass_seconds(seconds)
        for thread in threading.enumerate():
            if thread.name == "huge pages":
                thread.join(60)
        return list(memory.collapsed)

    return run


def test_full_writable_memory_without_a_file_is_chosen_at_borders_of_huge_pages() -> None:
    assert list(small_pages_of(SMAPS)) == [
        SmallPages(0x7F0000200000, 0x7F0001000000, 14 * MIB),
        SmallPages(0x7F2000000000, 0x7F2001000000, 2 * MIB),
        SmallPages(0x560000000000, 0x560000800000, 8 * MIB),
    ]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="huge pages are asked for on Linux alone")
def test_memory_is_collapsed_with_its_content_and_needs_no_second_time() -> None:
    import ctypes

    content = bytes(range(256)) * (64 * MIB // 256)
    memory = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = content
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    before, small = huge_kib(address), number_of_small_bytes(address)
    if not sum(collapse_pages(pages) for pages in small_pages() if pages.begin <= address + 2 * MIB < pages.end):
        pytest.skip("this system collapses no memory")
    assert before < 32 * 1024
    assert huge_kib(address) >= 60 * 1024
    assert number_of_small_bytes(address) <= small - 60 * MIB
    assert memory[:] == content


def test_memory_is_left_as_it_is_where_its_mappings_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (OSError(), MemoryError()):
        monkeypatch.setattr(Path, "read_text", Mock(side_effect=error))
        assert small_pages() == []


def test_memory_is_collapsed_once_passes_have_taken_eight_times_as_long_as_that_takes() -> None:
    run = passing(Memory(800_000_000))  # two seconds
    assert not run(1.0)
    assert not run(14.9)
    assert run(0.2) == [800_000_000]
    assert not run(100.0)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux alone")
def test_memory_is_collapsed_at_the_lowest_priority_and_passes_keep_theirs() -> None:
    before, memory = os.getpriority(os.PRIO_PROCESS, 0), Memory(80_000_000)
    assert passing(memory)(20.0) == [80_000_000]
    assert memory.niceness == 19
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_memory_that_is_filled_later_is_collapsed_by_the_same_rule() -> None:
    memory = Memory(80_000_000)
    run = passing(memory)
    assert not run(1.0)
    assert run(0.7) == [80_000_000]
    memory.small = 4_000_000_000  # ten seconds, after one of 0.2
    assert not run(0.9)  # looks, and finds that it is worthwhile at 81.6 seconds
    assert not run(78.9)
    assert run(0.2) == [4_000_000_000]


def test_a_generator_whose_memory_another_has_collapsed_finds_nothing_to_do() -> None:
    memory = Memory(800_000_000)
    first, second = passing(memory), passing(memory)
    assert first(20.0)
    assert not second(20.0)


def test_a_generator_notes_the_time_of_passes_unless_background_work_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, records = list[float](), list[StepRecord]()
    monkeypatch.setattr(HugePages, "add_pass_seconds", lambda _, seconds: noted.append(seconds))
    for is_wanted in (False, True):
        with Generator(ToyModel.random(), proposer="autoregressive", background_work=is_wanted) as generator:
            records.clear()
            generator.generate([0, 1], max_new_tokens=3, on_step=records.append)
        assert len(records) == 3
        assert noted == ([record.seconds["forward"] for record in records] if is_wanted else [])
