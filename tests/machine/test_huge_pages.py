"""Huge pages: full memory is collapsed in place, other mappings are left alone, and once per target."""

import mmap
import re
import threading
from pathlib import Path

import pytest

from specdec.machine.huge_pages import HugePages, collapse_memory, mappings

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


def test_full_writable_memory_without_a_file_is_chosen_at_borders_of_huge_pages() -> None:
    assert list(mappings(SMAPS)) == [(0x7F0000200000, 0x7F0001000000), (0x560000000000, 0x560000800000)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="huge pages are asked for on Linux alone")
def test_memory_is_collapsed_with_its_content() -> None:
    import ctypes

    content = bytes(range(256)) * (64 * MIB // 256)
    memory = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = content
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    before = huge_kib(address)
    if not collapse_memory():
        pytest.skip("this system collapses no memory")
    assert before < 32 * 1024
    assert huge_kib(address) >= 60 * 1024
    assert memory[:] == content


def test_a_target_collapses_once_its_passes_have_taken_two_seconds() -> None:
    begun = list[str]()
    done = threading.Event()

    def collapse() -> None:
        begun.append(threading.current_thread().name)
        done.set()

    pages = HugePages(collapse)
    pages.spent(1.0)
    pages.spent(0.9)
    assert not begun
    pages.spent(0.2)
    assert done.wait(60)
    pages.spent(5.0)
    assert begun == ["huge pages"]
