"""A device's rates of reading and copying, and the cost of a kernel in a CUDA graph."""

from functools import partial
from typing import Any

import torch

from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.shapes import microseconds
from benchmarks.machine import facts, recorded

READ = "read, TB/s"


def card(device: torch.device, num_bytes: int, report: Report, found: Findings) -> None:
    """The part that names the device and measures these."""
    found["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    found["cuda"] = torch.version.cuda
    report.attempt(found, "facts", facts)
    report.attempt(found, "commit", recorded)
    report.attempt(found, READ, partial(_read, device, num_bytes))
    report.attempt(found, "copy, TB/s", partial(_copied, device, num_bytes))
    report.attempt(found, "kernel in a graph, us", partial(_kernel, device))


@torch.no_grad()
def _read(device: torch.device, num_bytes: int) -> float:
    numbers = torch.ones(num_bytes // 4, device=device)
    return round(num_bytes / microseconds(lambda _: numbers.sum(), device, 2) / 1e6, 3)


@torch.no_grad()
def _copied(device: torch.device, num_bytes: int) -> float:
    """Bytes read and written."""
    source, target = (torch.empty(num_bytes // 4, device=device).fill_(value) for value in (1.0, 2.0))
    return round(2 * num_bytes / microseconds(lambda _: target.copy_(source), device, 2) / 1e6, 3)


@torch.no_grad()
def _kernel(device: torch.device) -> float:
    """One of 100 kernels, of which each needs the result of the one before it."""
    number = torch.zeros(1, device=device)
    return round(microseconds(lambda _: number.add_(1.0), device), 2)


def reading_ms(report: Report, model: Any) -> float | None:
    """The milliseconds in which a model's weights are read once at the measured rate, embeddings left out."""
    rate = report.found.get("card", {}).get(READ)
    embedded, head = model.get_input_embeddings().weight, model.lm_head.weight
    num_bytes = sum(each.nbytes for each in model.parameters() if each is not embedded or each is head)
    return num_bytes / rate / 1e9 if isinstance(rate, float) and rate else None
