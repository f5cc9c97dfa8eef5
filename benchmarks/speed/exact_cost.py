"""The cost of exact numerics beside fast ones: an attention layer, a pass, and a whole speculative step.

    python -m benchmarks exact_cost [--threads 2] [--repeats 25] [--steps 40]

Interleaved; medians. A layer is one call of each attention with the built-in model's heads. A pass is the model's
forward with layout, masks and logits. A step adds all the rest of the loop: a proposer that always drafts a random tree
of so many nodes. Plain decoding is a pass of one node; exact numerics may pad it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from transformers import AttentionInterface

from benchmarks.machine import facts
from specdec import Drafter, DraftTree, Generator, Proposer, demo
from specdec.strategies.base import Request
from specdec.target import Row, Target
from specdec.tree import ROOT, Budget

NODES = (1, 8, 16, 32, 120)
CONTEXTS = (256, 512, 1024, 2048, 4096)
DTYPES = (torch.bfloat16, torch.float32)
MODES = ("exact", "fast")


def tree_of(size: int, root: int = 7) -> DraftTree:
    """Chains of five below the root."""
    tree = DraftTree(root)
    for token in range(10, 9 + size):
        tree.add(ROOT if (token - 10) % 5 == 0 else len(tree) - 1, token)
    return tree


class _RandomTrees(Proposer):
    """Trees of a fixed size that are hardly ever right."""

    size: int

    def start(self, request: Request) -> Drafter:
        return _Drafter(request, self.size)


class _Drafter(Drafter):
    def __init__(self, request: Request, size: int) -> None:
        self._request, self._size = request, size

    def propose(self, budget: Budget) -> DraftTree:
        return tree_of(min(self._size, budget.num_nodes + 1), self._request.tokens[-1])


def interleaved(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median milliseconds of each."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(1e3 * (time.perf_counter() - began))
    return [statistics.median(taken[1:]) for taken in times]  # the first makes room


def layer(targets: Sequence[Target], context: int, size: int, repeats: int) -> list[float]:
    """An attention call of each mode, masks made beforehand."""
    config, calls = demo.load()[0].config, []
    for target in targets:
        layout = target.compiler.compile([tree_of(size)], [context], target.shapes)
        width, dtype = layout.width, target.shapes.dtype
        query = torch.randn(1, width, config.num_attention_heads, config.head_dim).to(dtype).transpose(1, 2)
        key, value = torch.randn(2, 1, config.num_key_value_heads, context + width, config.head_dim).to(dtype)
        name = layout.attention or ("specdec_grouped" if layout.masks or layout.width == 1 else "sdpa")
        mask = next(iter(layout.masks.values()), None)
        module = torch.nn.Module()
        module.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        attend = AttentionInterface()[name]
        calls.append(lambda a=attend, m=module, q=query, k=key, v=value, x=mask: a(m, q, k, v, x, scaling=0.125))
    with torch.inference_mode():
        return interleaved(calls, repeats)


def passes(targets: Sequence[Target], context: int, size: int, repeats: int) -> list[float]:
    """A pass of each mode behind a context, its layout and logits among it."""
    tokens = np.random.default_rng(0).integers(5, 2000, size=context).tolist()
    calls: list[Callable[[], object]] = []
    for target in targets:
        row = target.open(context + 200)
        target.read_all(row, tokens)
        calls.append(partial(one_pass, target, row, tree_of(size)))
    taken = interleaved(calls, repeats)
    for target in targets:
        target.release(target.rows[0])
    return taken


def one_pass(target: Target, row: Row, tree: DraftTree) -> None:
    """Lay out a pass over a tree behind a row, and make it; nothing is kept."""
    target.forward(target.compile({row: tree}))


def steps(model: torch.nn.Module, context: int, size: int, count: int) -> list[float]:
    """A step of the whole loop, prefill left out: the difference of two lengths."""
    prompt = np.random.default_rng(0).integers(5, 2000, size=context).tolist()
    generators = [Generator(model, proposer=_RandomTrees(size=size), numerics=mode) for mode in MODES]

    def median_step(generator: Generator) -> float:
        times, last = [], None
        for _ in generator.stream(prompt, max_new_tokens=count, eos_token_id=()):
            now = time.perf_counter()
            if last is not None:
                times.append(now - last)
            last = now
        return 1e3 * statistics.median(times)

    rounds = [[median_step(generator) for generator in generators] for _ in range(5)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(facts())
    print("| dtype | context | nodes | ms per layer, exact / fast | ms per pass | ratio | ms per step | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in DTYPES:
        model = demo.load(dtype)[0]
        targets = [Generator(model, numerics=mode).open_target() for mode in MODES]
        for context in CONTEXTS:
            for size in NODES:
                repeats = arguments.repeats if size < NODES[-1] else max(5, arguments.repeats // 3)
                one, whole = (f(targets, context, size, repeats) for f in (layer, passes))
                step = steps(model, context, size, arguments.steps if size < NODES[-1] else arguments.steps // 3)
                print(
                    f"| {str(dtype).removeprefix('torch.')} | {context} | {size} | {one[0]:.2f} / {one[1]:.2f} "
                    f"| {whole[0]:.1f} / {whole[1]:.1f} | {whole[0] / whole[1]:.2f} "
                    f"| {step[0]:.1f} / {step[1]:.1f} | {step[0] / step[1]:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
