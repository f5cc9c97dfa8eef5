"""Where a step's time goes on a device: operators, launches and waits of ten steps."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]  # where its own profiler finds it
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.parts import Findings, Report
from specdec import Generator

NUM_STEPS, WARM_STEPS = 10, 30
_WAITS = ("synchronize", "_local_scalar_dense", "aten::item", "aten::nonzero", "memcpy")
CASES = (("hf", "auto"), ("hf", "autoregressive"), ("static", "auto"), ("hf", "lookahead:N=5,W=15,G=15"))


def profiles(model: Any, prompt: list[int], folder: Path) -> Callable[[Report, Findings], None]:
    """Return the part that profiles some strategies; the tables of operators are in ``profile.txt``."""

    def run(report: Report, found: Findings) -> None:
        for backend, strategy in CASES:
            name = f"{backend} {strategy}"
            report.attempt(found, name, partial(_profiled, model, prompt, backend, strategy, folder / "profile.txt"))

    return run


def _profiled(model: Any, prompt: list[int], backend: str, strategy: str, file: Path) -> Findings:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if model.device.type == "cuda" else [])]
    with Generator(model, proposer=strategy, numerics="fast", backend=backend) as generator:
        generator.generate(prompt, max_new_tokens=64, eos_token_id=[])
        stream = generator.stream(prompt, max_new_tokens=512, eos_token_id=[])
        with closing(stream):
            for _ in range(WARM_STEPS):
                next(stream)
            seconds = _taken(stream)
            with profile(activities=activities) as recorded:
                _taken(stream)
    table = recorded.key_averages()
    by_device, by_host = (
        table.table(sort_by=key, row_limit=15, max_name_column_width=70)
        for key in ("self_device_time_total", "self_cpu_time_total")
    )
    with file.open("a", encoding="utf-8") as tables:
        tables.write(f"{backend} {strategy}, {NUM_STEPS} steps\n{by_device}\n{by_host}\n\n")
    return {
        "host ms/step, not profiled": round(1e3 * seconds / NUM_STEPS, 3),
        "device ms/step": round(_device_us(table) / 1e3 / NUM_STEPS, 3),
        "launches/step": sum(event.count for event in table if "launch" in event.key.lower()) / NUM_STEPS,
        "waits and copies/step": {
            event.key: event.count / NUM_STEPS for event in table if any(part in event.key.lower() for part in _WAITS)
        },
    }


def _device_us(table: Any) -> float:
    """Microseconds of kernels and copies; operators on the host are left out, which include theirs."""
    return float(sum(event.self_device_time_total for event in table if event.device_type != DeviceType.CPU))


def _taken(stream: Any) -> float:
    began = time.perf_counter()
    for _ in range(NUM_STEPS):
        next(stream)
    return time.perf_counter() - began
