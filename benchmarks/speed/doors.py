"""``Generator`` against ``model.generate`` with ``custom_generate``, on the same texts.

    python -m benchmarks doors --model smollm2 [--dtype float32] [--per-category 1] [--max-new-tokens 96] [--repeats 3]

Both use the default strategy and numerics; each prompt goes through both, in a changing order. transformers' own
decoding runs as well.
"""

import argparse
import random
import time
from collections.abc import Callable
from statistics import median

import torch

import specdec
from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model
from benchmarks.prompts import add_prompt_options, encoded_prompts
from specdec import Generator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    prompts = [prompt.ids for prompt in encoded_prompts(arguments, tokenizer)]
    generator, door = Generator(model), specdec.custom_generate()
    num_new = arguments.max_new_tokens

    def by_generate(ids: list[int], **given: object) -> list[int]:
        tensor = torch.tensor([ids])
        mask = torch.ones_like(tensor)
        texts = model.generate(tensor, attention_mask=mask, max_new_tokens=num_new, do_sample=False, **given)
        return list(texts[0, len(ids) :].tolist())

    ways: dict[str, Callable[[list[int]], list[int]]] = {
        "Generator": lambda ids: list(generator.generate(ids, max_new_tokens=num_new).token_ids),
        "custom_generate": lambda ids: by_generate(ids, custom_generate=door),
        "transformers": by_generate,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    ratios, num_different, rng = list[float](), 0, random.Random(0)
    for way in ways.values():
        way(prompts[0])
    for _ in range(arguments.repeats):
        for prompt in prompts:
            texts, seconds = {}, {}
            for name in rng.sample(sorted(ways), len(ways)):
                began = time.perf_counter()
                texts[name] = ways[name](prompt)
                seconds[name] = time.perf_counter() - began
                rates[name].append(len(texts[name]) / seconds[name])
            num_different += texts["custom_generate"] != texts["Generator"]
            ratios.append(seconds["Generator"] / seconds["custom_generate"])
    print(f"{facts()}; {arguments.model or 'the built-in model'}, {arguments.dtype}, {arguments.threads} threads\n")
    for name, found in rates.items():
        print(f"{name}: {median(found):.1f} tokens per second (median of {len(found)})")
    print(f"custom_generate over Generator: {median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]")
    print(f"texts that differ between the two: {num_different}")
    return 0


if __name__ == "__main__":
    main()
