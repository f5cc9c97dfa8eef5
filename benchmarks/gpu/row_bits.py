"""The bits of a row on a device: which numbers of rows go through the same kernel, and ties of the largest logit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.parts import Findings, Report
from specdec.runtime.probes.products import probe_products
from specdec.sampling.topk import topk

COUNTS = (*range(1, 17), 24, 32, 48, 64, 96, 128, 160, 192, 256)
PLACED = (8, 16, 32, 64, 128, 256)


def row_bits(model: Any) -> Callable[[Report, Findings], None]:
    """Return the part that compares rows of a model's products, and the order of equal logits."""

    def run(report: Report, found: Findings) -> None:
        report.attempt(found, "ties", partial(_ties, model.device))
        report.attempt(found, "probe", partial(_probe, model))
        report.attempt(found, "products", partial(_products, model))

    return run


def _probe(model: Any) -> str:
    return str(probe_products(model, 0.5))


@torch.inference_mode()
def _products(model: Any) -> Findings:
    """By shape, the numbers of rows whose first row has the same bits; and those in which no row's place matters."""
    found: Findings = {}
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear) or str(tuple(module.weight.shape)) in found:
            continue
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(max(COUNTS), module.in_features, generator=generator).to(model.device, model.dtype)
        order = torch.randperm(max(COUNTS), generator=generator).to(model.device)
        classes: list[tuple[torch.Tensor, list[int]]] = []
        for count in COUNTS:
            first = module(rows[:count][None])[0, 0]
            known = next((counts for bits, counts in classes if torch.equal(bits, first)), None)
            if known is None:
                classes.append((first, [count]))
            else:
                known.append(count)
        placed = []
        for count in PLACED:
            moved = order[order < count]
            straight, shuffled = module(rows[:count][None])[0], module(rows[moved][None])[0]
            placed += [count] if torch.equal(straight[moved], shuffled) else []
        found[str(tuple(module.weight.shape))] = {
            "same bits": [str(counts) for _, counts in classes],
            "place of no account": placed,
        }
    return found


def _ties(device: torch.device) -> Findings:
    """Whether the largest of equal logits is the lowest id, as on a CPU."""
    found: Findings = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        generator = torch.Generator().manual_seed(2)
        values = torch.randint(0, 40, (16, 49152), generator=generator).to(device, dtype)
        values[:, 40000] = values[:, 40001] = values[:, 123] = 50.0
        ids = topk(values, 1)[1].flatten().tolist()
        found[str(dtype)] = {"topk": set(ids) == {123}, "argmax": set(values.argmax(-1).tolist()) == {123}}
    return found
