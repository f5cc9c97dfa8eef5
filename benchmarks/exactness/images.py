"""Images and audio in prompts: is each strategy's text that of transformers?

    python -m benchmarks images [--families llava qwen2_vl …] [--num-texts 40] [--max-new-tokens 48]

Small random models of each family decode random prompts with up to three images or recordings, in batches of eight, in
fast and exact numerics: greedy texts are compared with transformers' ``generate``, sampled texts with plain decoding's.
The exit code is 1 if one differs.
"""

import argparse
import random
import sys
import time
import warnings
from typing import Any

import torch

from benchmarks.machine import facts
from specdec import Generator, ModelError
from specdec.inputs.processor import ProcessorOutput
from tests.support import multimodal

STRATEGIES = ["autoregressive", "prompt_lookup:num_matches=2", "lookahead:N=3,W=3,G=3", "suffix", "auto"]


def prompts_of(name: str, count: int) -> list[multimodal.Inputs]:
    """Random prompts of 8 to 40 tokens of text and up to three images or recordings, some the same."""
    rng = random.Random(11)
    return [
        multimodal.prompt(name, rng.randrange(count), rng.randrange(4), rng.choice([8, 13, 24, 40]))
        for _ in range(count)
    ]


def greedy_texts(model: Any, prompts: list[multimodal.Inputs], num_tokens: int) -> list[list[int]]:
    """Return what ``generate`` writes."""
    own = [
        model.generate(**each, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0, eos_token_id=None)
        for each in prompts
    ]
    return [text[0, each["input_ids"].shape[1] :].tolist() for text, each in zip(own, prompts, strict=True)]


def compare(name: str, num_texts: int, num_tokens: int) -> tuple[int, int]:
    """Print a table row for each numerics on one family; return the numbers of texts compared, and that differ."""
    model, prompts = multimodal.make(name), prompts_of(name, num_texts)
    greedy, compared, differing = greedy_texts(model, prompts, num_tokens), 0, 0
    for numerics in ("fast", "exact"):
        began, num_compared, found, steps, tokens = time.perf_counter(), 0, 0, 0, 0
        try:
            generator = Generator(model, proposer="autoregressive", numerics=numerics, max_batch_size=8)
        except ModelError:
            print(f"| {name} | {numerics} | unavailable | | | |", flush=True)
            continue
        sampled: list[Any] = []
        with generator:
            for strategy in STRATEGIES:
                given = [each for prompt in prompts for each in ProcessorOutput(prompt).prompts()]
                settings: dict[str, Any] = {"proposer": strategy, "max_new_tokens": num_tokens, "eos_token_id": ()}
                results = generator.generate(given, **settings)
                texts = [list(result.token_ids) for result in results]
                drawn = generator.generate(given, **settings, temperature=1.0, seed=3)
                drawn = [list(result.token_ids) for result in drawn]
                sampled = sampled or drawn
                found += sum(a != b for a, b in zip([*texts, *drawn], [*greedy, *sampled], strict=True))
                num_compared += 2 * len(prompts)
                steps += sum(result.stats.steps for result in results)
                tokens += sum(result.stats.num_tokens for result in results)
        seconds = time.perf_counter() - began
        print(f"| {name} | {numerics} | {num_compared} | {found} | {tokens / steps:.2f} | {seconds:.0f} |", flush=True)
        compared, differing = compared + num_compared, differing + found
    return compared, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=multimodal.FAMILIES, default=list(multimodal.FAMILIES))
    parser.add_argument("--num-texts", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(facts())
    print("| family | numerics | texts | differing | tokens per step | seconds |\n|---|---|---|---|---|---|")
    found = [compare(name, arguments.num_texts, arguments.max_new_tokens) for name in arguments.families]
    compared, differing = (sum(each) for each in zip(*found, strict=True))
    print(f"\n{compared} texts compared, {differing} differing")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
