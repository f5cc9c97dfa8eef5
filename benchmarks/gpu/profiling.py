"""Where the time of ten steps goes on a device: kernels, launches and waits."""

import time
from contextlib import closing
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # where its own profiler finds it
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.parts import Findings
from specdec import Generator

NUM_STEPS, WARM_STEPS = 10, 20
MOST_TOKENS = 3000  # a model with random weights repeats itself, so that many drafts of a step are accepted
_WAITS = ("synchronize", "_local_scalar_dense", "aten::item", "aten::nonzero", "memcpy")


def profiled(generator: Generator, strategy: str, prompt: list[int]) -> Findings:
    """Return what a step does on the device, and its launches and waits on the host; without a GPU only the latter."""
    settings: dict[str, Any] = {"proposer": strategy, "eos_token_id": []}
    generator.generate(prompt, max_new_tokens=64, **settings)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with closing(generator.stream(prompt, max_new_tokens=MOST_TOKENS, **settings)) as stream:
        for _ in range(WARM_STEPS):
            next(stream)
        seconds = _taken(stream)
        with profile(activities=activities) as recorded:
            _taken(stream)
    table = recorded.key_averages()
    kernels = sorted((event for event in table if event.device_type != DeviceType.CPU), key=lambda each: -each.count)
    us, num = (sum(getattr(each, name) for each in kernels) for name in ("self_device_time_total", "count"))
    return {
        "host ms, not profiled": round(1e3 * seconds / NUM_STEPS, 3),
        "device ms": round(us / 1e3 / NUM_STEPS, 3),
        "kernels and copies": num / NUM_STEPS,
        "by layer": round(num / NUM_STEPS / (generator.shapes.num_layers or 1), 1),
        "most of them": {event.key[:60]: event.count / NUM_STEPS for event in kernels[:12]},
        "launches": sum(event.count for event in table if "launch" in event.key.lower()) / NUM_STEPS,
        "waits and copies of the host": {
            event.key: event.count / NUM_STEPS for event in table if any(part in event.key.lower() for part in _WAITS)
        },
    }


def _taken(stream: Any) -> float:
    began = time.perf_counter()
    for _ in range(NUM_STEPS):
        next(stream)
    return time.perf_counter() - began
