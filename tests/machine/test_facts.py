"""The facts of a machine: the memory that is free, which in a container is what its own limit leaves."""

from pathlib import Path

import pytest
import torch

from specdec.machine import facts as machine

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ],
)
def test_a_containers_limit_counts_without_the_files_that_it_can_drop(
    names: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in zip(names, ("9000", "5000", "anon 2000\ninactive_file 1000\nactive_file 500\n"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.free_bytes(CPU) == 9000 - 5000 + 1500


@pytest.mark.parametrize("limit", ["max\n", str(2**63 - 4096), None])
def test_a_container_without_a_limit_has_what_the_system_has(
    limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        for name, text in (("memory.max", limit), ("memory.current", "5000"), ("memory.stat", "")):
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    free = machine.free_bytes(CPU)
    assert free is None or free > 2**20


def test_a_key_changes_with_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    keys = set()
    for name in ("H100", "H200"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        keys.add(machine.key_of("costs"))
    assert len(keys) == 2
