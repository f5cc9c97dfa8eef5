"""specdec's draft model beside transformers' assisted generation: the same models, prompts, draft length and threshold.

    python -m benchmarks assisted [--repeats 3] [--threads 2] [--dtype float32] [--num-prompts 24] [--temperature 1]

The built-in model is the target, its drafter the assistant. Contenders run interleaved, in random order for each prompt
and repeat, after a warm-up. Sampled texts differ between the two libraries and between acceptance rules, so each runs
several seeds; speed is tokens per second.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.machine import facts
from benchmarks.prompts import texts
from specdec import DraftModelProposer, Generator, demo


@dataclass
class Run:
    """The counts of one decoded prompt: new tokens, and the target's forward passes."""

    num_tokens: int
    num_steps: int


Decode = Callable[[list[int], int], Run]


class CountingForward:
    """Counts a model's forward passes, by a hook that transformers' loop goes through."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        model.register_forward_pre_hook(self._note)

    def _note(self, *_: Any) -> None:
        self.count += 1


def assisted(
    model: Any, assistant: Any | None, counter: CountingForward, max_new_tokens: int, temperature: float, **options: Any
) -> Decode:
    """transformers' loop; ``options`` go onto the assistant's generation config, where it reads them."""
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    def decode(prompt: list[int], seed: int) -> Run:
        torch.manual_seed(seed)
        if assistant is not None:
            assistant.generation_config.update(**options)
        ids, before = torch.tensor([prompt]), counter.count
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            assistant_model=assistant,
            **sampling,
        )
        return Run(output.shape[1] - len(prompt), counter.count - before)

    return decode


def ours(model: Any, max_new_tokens: int, temperature: float, proposer: Any, verifier: str) -> Decode:
    generator = Generator(model, proposer=proposer, verifier=verifier)

    def decode(prompt: list[int], seed: int) -> Run:
        result = generator.generate(prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        return Run(len(result.token_ids), result.stats.steps)

    return decode


def contenders(model: Any, drafter: Any, max_new_tokens: int, temperature: float) -> dict[str, Decode]:
    counter = CountingForward(model)
    common = {"max_new_tokens": max_new_tokens, "temperature": temperature}
    named = {"transformers, plain": assisted(model, None, counter, **common)}
    for count, threshold in ((5, 0.0), (5, 0.4), (3, 0.4), (10, 0.4), (20, 0.4), (10, 0.7)):
        for schedule in ("constant", "heuristic") if (count, threshold) in {(5, 0.4), (20, 0.4)} else ("constant",):
            named[f"transformers, assisted tokens={count} confidence={threshold} {schedule}"] = assisted(
                model,
                drafter,
                counter,
                **common,
                num_assistant_tokens=count,
                assistant_confidence_threshold=threshold,
                num_assistant_tokens_schedule=schedule,
            )
    named["specdec, plain"] = ours(model, **common, proposer="autoregressive", verifier="match")
    rules = ("match", "rejection", "traversal") if temperature else ("match",)
    ways: list[dict[str, Any]] = [
        {"num_tokens": 5},
        {"num_tokens": 5, "confidence": 0.4},
        {"num_tokens": 3, "confidence": 0.4},
        {"num_tokens": 10, "confidence": 0.4},
        {"num_tokens": 20, "confidence": 0.4},
        {"num_tokens": 10, "confidence": 0.7},
        {"num_tokens": 4, "width": 2, "num_nodes": 8, "confidence": 0.2},
    ]
    for rule in rules:
        for way in ways:
            options = " ".join(f"{name}={value}" for name, value in way.items())
            proposer = DraftModelProposer(model=drafter, **way)
            named[f"specdec, {rule} {options}"] = ours(model, **common, proposer=proposer, verifier=rule)
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--only", nargs="+", default=[""], help="only contenders with one of these in their name")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    (model, tokenizer), drafter = demo.load(dtype=arguments.dtype), demo.load_drafter(dtype=arguments.dtype)
    prompts = [tokenizer(text)["input_ids"] for text in texts(None)]
    prompts = prompts[:: max(1, len(prompts) // arguments.num_prompts)]
    named = contenders(model, drafter, arguments.max_new_tokens, arguments.temperature)
    named = {name: named[name] for name in named if any(part in name for part in (*arguments.only, ", plain"))}
    for decode in named.values():
        decode(prompts[0], 0)
    rng = random.Random(0)
    speeds: dict[str, list[float]] = {name: [] for name in named}
    tallies = {name: Run(0, 0) for name in named}
    for repeat in range(arguments.repeats):
        seconds, tokens = dict.fromkeys(named, 0.0), dict.fromkeys(named, 0)
        for prompt in prompts:
            for name in rng.sample(list(named), k=len(named)):
                began = time.perf_counter()
                run = named[name](prompt, repeat)
                seconds[name] += time.perf_counter() - began
                tokens[name] += run.num_tokens
                tallies[name].num_tokens += run.num_tokens
                tallies[name].num_steps += run.num_steps
        for name in named:
            speeds[name].append(tokens[name] / seconds[name])
    base = speeds["transformers, plain"]
    print(f"{facts()}, {arguments.dtype}, temperature {arguments.temperature:g}")
    print(f"{len(prompts)} prompts x {arguments.max_new_tokens} new tokens x {arguments.repeats} repeats\n")
    print("| contender | tokens per step | tokens per second | times as fast as plain generate: median [range] |")
    print("|---|---|---|---|")
    for name, speed in speeds.items():
        ratios = [own / other for own, other in zip(speed, base, strict=True)]
        tau = tallies[name].num_tokens / tallies[name].num_steps
        spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"| {name} | {tau:.2f} | {statistics.median(speed):.0f} | {spread} |")


if __name__ == "__main__":
    main()
