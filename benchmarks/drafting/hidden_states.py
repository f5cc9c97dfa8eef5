"""The cost of hidden states, and of a head's reading of them, beside a step and beside a prefill.

    python -m benchmarks hidden_states --head FOLDER --model smollm2 --backend openvino --dtype float32

Plain decoding, of a generator that knows no head, is timed in turns with a strategy that wants the head's layers and
drafts nothing, and with the head itself, which drafts nothing where one token is asked for. Texts are repeated ids,
since only times matter; the medians are of all rounds.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, load_model
from specdec import Budget, DraftTree, Feedback, Generator
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.strategies.base import Drafter, Proposer
from specdec.strategies.request import Request
from specdec.strategies.signals import Answers, Hidden, Nodes, Signal

STEPS = 32


class HiddenStates(Proposer):
    """Reads hidden states and drafts nothing."""

    layers: tuple[int, ...]

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROMPT, Hidden(self.layers)), (Nodes.PATH, Hidden(self.layers))})

    def start(self, request: Request) -> Drafter:
        return _Reader(request)


class _Reader(Drafter):
    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        for answers in signals.values():
            answers.tensor()

    def receive(self, feedback: Feedback) -> None:
        for answers in feedback.signals.values():
            answers.tensor()

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree(self.request.root)


def seconds(generator: Generator, proposer: Any, prompt: list[int], num_tokens: int) -> float:
    """Return the seconds of a text."""
    begin = time.perf_counter()
    generator.generate(prompt, proposer=proposer, max_new_tokens=num_tokens, eos_token_id=())
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--backend", choices=["hf", "openvino"], default="hf")
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    num_layers = model.config.num_hidden_layers
    loaded: Any = model if arguments.backend == "hf" else str(checkpoint(arguments))
    strategies = {
        "plain": "autoregressive",
        "hidden states": HiddenStates(layers=(2, num_layers // 2, num_layers - 3)),
        "head": Eagle3Proposer(head=arguments.head),
    }
    options: dict[str, Any] = {"numerics": arguments.numerics, "backend": arguments.backend}
    plain, drafting = (Generator(loaded, tokenizer, proposer="autoregressive", **options) for _ in range(2))
    print(facts())
    print("| prompt | of | plain, ms | hidden states | the head's reading |\n|---|---|---|---|---|")
    for length in arguments.lengths:
        prompt = [index % 1000 + 5 for index in range(length)]
        prefills: dict[str, list[float]] = {name: [] for name in strategies}
        steps: dict[str, list[float]] = {name: [] for name in list(strategies)[:2]}
        for number in range(arguments.rounds + 2):  # two warm up
            for name, proposer in strategies.items():
                generator = plain if name == "plain" else drafting
                taken = seconds(generator, proposer, prompt, 1)
                if number > 1:
                    prefills[name].append(taken)
                if name in steps and (whole := seconds(generator, proposer, prompt, 1 + STEPS)) and number > 1:
                    steps[name].append((whole - taken) / STEPS)
        for of, times in (("a prefill", prefills), ("a step", steps)):
            first, *others = (statistics.median(each) for each in times.values())
            shares = [*(f"{100 * (each / first - 1):+.1f} %" for each in others), "—"][:2]
            print(f"| {length} | {of} | {1000 * first:.2f} | {' | '.join(shares)} |", flush=True)
    for generator in (plain, drafting):
        generator.close()


if __name__ == "__main__":
    main()
