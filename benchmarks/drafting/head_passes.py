"""How long does a pass of a trained head take, on torch and on OpenVINO?

One request with a context of random tokens and hidden states. A pass is timed in two conditions: warm, right after
another pass, and cold, after other memory was read, as the target's pass does.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from specdec.heads.base import HeadRunner
from specdec.heads.drafting import TreeGrowth
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_folder import read_head
from specdec.heads.files import TargetWeights
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.torch_runner import TorchRunner
from specdec.models.loading import load_pretrained

_NUM_TOKENS = 4  # candidates after each node
_NUM_PAIRS = 2  # accepted since the last draft
_EVICTED = 40_000_000  # float32 numbers, more than any cache holds


def runners(head: Eagle3Head) -> dict[str, HeadRunner]:
    """Return the runners that are installed, by name."""
    found: dict[str, HeadRunner] = {"torch": TorchRunner(head, _NUM_TOKENS)}
    try:
        from specdec_openvino.heads.runner import OpenVINORunner
        from specdec_openvino.options import OpenVINOOptions
    except ModuleNotFoundError:
        return found
    for name, is_quantized in (("openvino", False), ("openvino, 8 bits", True)):
        found[name] = OpenVINORunner(head, _NUM_TOKENS, OpenVINOOptions(), is_quantized)
    return found


class Draft:
    """Times the parts of a request's drafts.

    Args:
        width: nodes fed per level.
        length: tokens of the context.
    """

    def __init__(self, runner: HeadRunner, width: int, length: int) -> None:
        head = runner.head
        self._runner, self._width, self._cache = runner, width, PairCache(head, runner.num_slots)
        self._states = torch.randn(length, head.fc.in_features).to(head.fc.weight.dtype)
        append(head, self._cache, self._states, torch.arange(length) % head.config.vocab_size)

    def seconds(self, depth: int) -> tuple[float, float, float]:
        """Return the seconds of the first pass, of the further levels together, and of the choice of the tree."""
        begin = time.perf_counter()
        states = [self._states[:_NUM_PAIRS]]
        growth = TreeGrowth(self._runner, [self._cache], states, [range(_NUM_PAIRS)], self._width)
        first = time.perf_counter()
        for _ in range(depth - 1):
            growth.feed()
        last = time.perf_counter()
        growth.best(16)
        end = time.perf_counter()
        self._cache.truncate(len(self._cache) - _NUM_PAIRS)
        return first - begin, last - first, end - last


def measured(draft: Draft, depth: int, rounds: int, before: Callable[[], object]) -> tuple[float, float, float]:
    """Return the medians of a draft's three parts in milliseconds, without the first quarter of the rounds."""
    parts = []
    for _ in range(rounds):
        before()
        parts.append(draft.seconds(depth))
    first, levels, choice = (statistics.median(part) * 1000 for part in zip(*parts[rounds // 4 :], strict=True))
    return first, levels / max(1, depth - 1), choice


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the target")
    parser.add_argument("--head", required=True, type=Path, help="folder of the head")
    parser.add_argument("--length", type=int, default=200, help="tokens of the context (default: 200)")
    parser.add_argument("--depth", type=int, default=4, help="passes of a draft (default: 4)")
    parser.add_argument("--rounds", type=int, default=24, help="drafts per figure (default: 24)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default: 2)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model, _ = load_pretrained(options.model, dtype="float32")
    embeddings = model.get_input_embeddings().weight.detach()
    evicted = np.zeros(_EVICTED, np.float32)  # numpy has no threads, which would go on spinning for a while
    print("| dtype | engine | nodes per level | | first pass, ms | next level, ms | choice, ms | draft, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in (torch.bfloat16, torch.float32):
        shared = embeddings.to(dtype)
        target = TargetWeights(shared, lambda shared=shared: shared, model.config.num_hidden_layers)
        head = read_head(options.head, target, dtype)
        for name, runner in runners(head).items():
            for width in (1, _NUM_TOKENS):
                draft = Draft(runner, width, options.length)
                for condition, before in (("warm", lambda: None), ("cold", evicted.sum)):
                    first, level, choice = measured(draft, options.depth, options.rounds, before)
                    total = first + level * (options.depth - 1) + choice
                    figures = " | ".join(f"{each:.2f}" for each in (first, level, choice, total))
                    print(f"| {str(dtype)[6:]} | {name} | {width} | {condition} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
