"""Step costs on a device: Llama shapes with random weights, whose passes cost the same as a trained model's.

    python -m benchmarks device --out FOLDER [--shapes 1b 7b 13b] [--device cuda] [--dtype bfloat16]
    python -m benchmarks device --out FOLDER --shapes tiny --device cpu
    python -m benchmarks device --out FOLDER --shapes 7b --only attention

For each shape, cheapest first, written to FOLDER as it is measured (device.json, device.md):

- the time to read the weights once, and plain steps of each backend over it: the best that decoding could be;
- c(T) at a context of 1,024 for each backend and mask compiler;
- attention alone, one layer at a context of 8,192 with 120 nodes, for each mask compiler. ``flash-attn`` changes only
  this part, so it may be installed after the rest was measured.

A figure that can't be measured is replaced by the reason.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.utils import is_flash_attn_2_available

from benchmarks.machine import facts
from specdec import Generator
from specdec.errors import in_one_line
from specdec.target import CacheRow, Target
from specdec.tree import ROOT, DraftTree

# Hidden size, layers, heads, key-value heads, intermediate size: Llama 3.2 1B, Llama 2 7B and 13B.
SHAPES = {
    "tiny": (256, 2, 4, 2, 512),
    "1b": (2048, 16, 32, 8, 8192),
    "7b": (4096, 32, 32, 32, 11008),
    "13b": (5120, 40, 40, 40, 13824),
}
WAYS = (("hf", "dense"), ("hf", "split"), ("static", "dense"))  # backend, mask compiler
NODES = (1, 2, 4, 8, 16, 32, 64, 120)
VOCAB = 32000


def tree_of(size: int, root: int = 7) -> DraftTree:
    """Chains of five below the root."""
    tree = DraftTree(root)
    for token in range(10, 9 + size):
        tree.add(ROOT if (token - 10) % 5 == 0 else len(tree) - 1, token)
    return tree


def one_pass(target: Target, row: CacheRow, tree: DraftTree) -> None:
    """Compile and forward a tree after a row's tokens; nothing is committed."""
    target.forward(target.compile({row: tree}))


@dataclass(frozen=True)
class Timer:
    """Median seconds of calls, with the device's queue emptied before and after."""

    device: torch.device
    repeats: int

    def __call__(self, call: Callable[[], object]) -> float:
        taken = []
        for _ in range(self.repeats + 2):
            self._wait()
            began = time.perf_counter()
            call()
            self._wait()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[2:])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_llama(shape: str, device: torch.device, dtype: torch.dtype, positions: int) -> LlamaForCausalLM:
    hidden, layers, heads, groups, intermediate = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
        eos_token_id=None,
    )
    with torch.device(device):
        return LlamaForCausalLM(config).to(dtype).eval()


def reading(model: torch.nn.Module, timer: Timer) -> float:
    """Seconds to read every weight once, by the maximum of each matrix."""
    weights = [weight.data for weight in model.parameters()]
    return timer(lambda: [weight.amax() for weight in weights])


def passes(target: Target, context: int, timer: Timer) -> dict[int, float]:
    """Seconds of a pass by its number of nodes, layout and logits included."""
    tokens = np.random.default_rng(0).integers(VOCAB, size=context + 1).tolist()
    row = target.open(context + 2 * max(NODES))
    try:
        target.read_all(row, tokens)
        return {size: timer(partial(one_pass, target, row, tree_of(size))) for size in NODES}
    finally:
        target.release(row)


def attention(target: Target, model: LlamaForCausalLM, context: int, size: int, timer: Timer) -> float:
    """Seconds of one layer's attention over random states."""
    config, layout = model.config, target.compiler.compile([tree_of(size)], [context], target.shapes)
    kind = {"dtype": target.shapes.dtype, "device": target.shapes.device}
    query = torch.randn(1, config.num_attention_heads, layout.width, config.head_dim, **kind)
    key, value = torch.randn(2, 1, config.num_key_value_heads, context + layout.width, config.head_dim, **kind)
    attend = AttentionInterface()[layout.attention or "sdpa"]
    layer, mask = model.model.layers[0].self_attn, next(iter(layout.masks.values()))
    with torch.inference_mode():
        return timer(lambda: attend(layer, query, key, value, mask, scaling=config.head_dim**-0.5))


def prefix_kernel(device: torch.device) -> str:
    """Return the name of the kernel that ``split`` uses for the prefix here."""
    if device.type != "cuda":
        return "torch's operator for CPUs"
    return f"flash-attn {version('flash-attn')}" if is_flash_attn_2_available() else "torch's flash operator"


def measured(shape: str, arguments: argparse.Namespace, timer: Timer) -> dict[str, Any]:
    contexts = arguments.contexts
    model = random_llama(shape, timer.device, getattr(torch, arguments.dtype), 2 * max(contexts))
    row: dict[str, Any] = {
        "shape": shape,
        "parameters": model.num_parameters(),
        "prefix_kernel": prefix_kernel(timer.device),
    }
    if "steps" in arguments.only:
        row["reading_ms"] = 1e3 * reading(model, timer)
    for backend, mask in WAYS:
        name = f"{backend}, {mask}"
        if "steps" not in arguments.only and backend != "hf":
            continue
        try:
            generator = Generator(model, proposer="autoregressive", backend=backend, mask=mask)
            with generator, closing(generator.open_target()) as target:
                if "steps" in arguments.only:
                    row[name] = {size: 1e3 * seconds for size, seconds in passes(target, contexts[0], timer).items()}
                if "attention" in arguments.only and backend == "hf":
                    row[f"attention, {mask}"] = 1e3 * attention(target, model, contexts[1], 120, timer)
        except Exception as fault:  # third-party kernels: what can't be run is said, and the rest goes on
            row.setdefault(name, in_one_line(fault))
    return row


def table(rows: list[dict[str, Any]], contexts: list[int]) -> str:
    lines = [
        f"{facts()}. The prefix of `split` goes through {rows[0]['prefix_kernel']}.",
        "",
        f"| shape | way | plain step ms | over reading the weights | c(T) for T = {', '.join(map(str, NODES[1:]))}, "
        f"context {contexts[0]} | attention of a layer at {contexts[1]}, 120 nodes, ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for backend, mask in WAYS:
            found = row.get(f"{backend}, {mask}")
            what = f"| {row['shape']} ({row['parameters'] / 1e9:.2f}e9) | {backend}, {mask} "
            if isinstance(found, str):
                lines.append(f"{what}| not measured: {found} | | | |")
                continue
            steps = "| | | "
            if found is not None:
                costs = ", ".join(f"{found[size] / found[1]:.2f}" for size in NODES[1:])
                steps = f"| {found[1]:.2f} | {found[1] / row['reading_ms']:.2f} | {costs} "
            layer = row.get(f"attention, {mask}") if backend == "hf" else None
            if found is None and layer is None:
                continue
            lines.append(f"{what}{steps}| {'' if layer is None else f'{layer:.3f}'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["1b", "7b", "13b"])
    parser.add_argument("--only", nargs="+", choices=("steps", "attention"), default=["steps", "attention"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--contexts", type=int, nargs=2, default=[1024, 8192], help="of steps, and of attention alone")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for shape in arguments.shapes:
        rows.append(measured(shape, arguments, Timer(device, arguments.repeats)))
        written = {"machine": facts(), "device": where, "dtype": arguments.dtype, "rows": rows}
        (arguments.out / "device.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
        text = f"{where}, {arguments.dtype}. {table(rows, arguments.contexts)}"
        (arguments.out / "device.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
