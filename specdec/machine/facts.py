"""Facts about the machine, for reports and for keys of cached results."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import specdec

_CGROUP = Path("/sys/fs/cgroup")
_GPU_LIBRARIES = "triton", "nvidia-cublas", "nvidia-cublas-cu12"  # the last two are one library's names
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def machine_facts() -> dict[str, str]:
    """Return the processor, cores, threads in use and versions."""
    return {
        "specdec": f"specdec {version('specdec')}",
        "processor": processor_name(),
        "cores": f"{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}",
        "system": platform.system(),
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
        "transformers": f"transformers {version('transformers')}",
    }


def model_facts(model: Any) -> dict[str, str]:
    """Return those of a model's name, size, accelerator, dtype and device that are known."""
    facts = {"model": getattr(model, "name_or_path", "") or type(model).__name__}
    if hasattr(model, "num_parameters"):
        facts["parameters"] = f"{model.num_parameters() / 1e6:.4g} million parameters"
    if getattr(model, "device", None) is not None and model.device.type == "cuda":
        facts["accelerator"] = torch.cuda.get_device_name(model.device)
    if hasattr(model, "dtype"):
        facts["dtype"] = f"{str(model.dtype).removeprefix('torch.')} on {model.device}"
    return facts


def computes_in_bfloat16(device: torch.device) -> bool:
    """Return True for a CPU with bfloat16 instructions."""
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def _version(package: str) -> str:
    """Return a package's version; "" if it isn't installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def key_of(*facts: object) -> str:
    """Return a key of facts, this machine and the versions: 32 hex digits, for file names and dictionaries.

    The key changes with the processor, its usable cores and instructions, GPUs, torch's threads, and the versions of
    specdec, torch and transformers, and on GPUs of cuBLAS and Triton. Facts are compared by ``repr``: pass
    numbers, texts and tuples of them.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    gpus += [*map(_version, _GPU_LIBRARIES)] if gpus else []
    machine = processor_name(), cores, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), *gpus
    versions = specdec.__version__, torch.__version__, version("transformers")  # reading a version takes a millisecond
    return blake2b(repr((machine, versions, facts)).encode(), digest_size=16).hexdigest()


def processor_name() -> str:
    """Return the processor's name as the system reports it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes of free memory on a device, within a container's limit; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    path = Path("/proc/meminfo")
    if device.type != "cpu" or not path.exists():
        return None
    facts = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    known = [int(facts["MemAvailable"].split()[0]) * 1024] if "MemAvailable" in facts else []
    return min([*known, *_left_in_container()], default=None)


def waits_by_thread() -> dict[str, float]:
    """Return the seconds that each thread of this process was ready but waited for a processor; {} if unknown."""
    folder, waits = Path("/proc/self/task"), dict[str, float]()
    with suppress(OSError, ValueError, IndexError):  # not Linux, a kernel without these figures
        for thread in os.listdir(folder):
            with suppress(FileNotFoundError):  # a thread that has ended
                waits[thread] = int((folder / thread / "schedstat").read_text().split()[1]) / 1e9
    return waits


def _left_in_container() -> Iterator[int]:
    """Yield the bytes left by the limits of control groups, versions 2 and 1; cached files count as free."""
    for limit, used, stat in _LIMITS:
        paths = [_CGROUP / name for name in (limit, used, stat)]
        if all(path.exists() for path in paths):
            most, now, facts = (path.read_text() for path in paths)
            files = [line.split() for line in facts.splitlines()]
            cached = sum(int(count) for name, count in files if name in {"inactive_file", "active_file"})
            if most.strip() != "max":
                yield max(0, int(most) - int(now) + cached)
