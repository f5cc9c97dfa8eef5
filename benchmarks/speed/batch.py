"""Tokens per second by batch size: ragged prompts side by side against one after the other.

    python -m benchmarks batch [--model FOLDER] [--dtype bfloat16] [--threads 2] [--batch 8] [--repeats 3]

The demo's prompts, each with the same number of new tokens and the end of text off; the prompts' own steps are left
out, as they are made one by one in either case. Interleaved; medians over repeats, with the range of the ratio to plain
decoding at batch 1.
"""

import argparse
import statistics
import time
from typing import Any

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model, millions
from specdec import Generator, demo

PROPOSERS = ("autoregressive", "prompt_lookup:max_ngram=2,num_tokens=2", "auto")


def speed(generator: Generator, prompts: list[list[int]], count: int) -> float:
    """New tokens per second behind the last prompt's own step."""
    seen, began, num_tokens = set[int](), 0.0, 0
    for chunk in generator.stream(prompts, max_new_tokens=count, seed=0, eos_token_id=()):
        if len(seen) == len(prompts):
            num_tokens += len(chunk.token_ids)
        else:
            seen.add(chunk.index)
            began = time.perf_counter()
    return num_tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    texts = [prompt.text for prompt in demo.prompts()]
    prompts = [tokenizer(text)["input_ids"] for text in texts[:: max(1, len(texts) // arguments.batch)]]
    prompts = prompts[: arguments.batch]
    ways: dict[tuple[str, int], Any] = {
        (proposer, batch): Generator(model, proposer=proposer, numerics=arguments.numerics, max_batch_size=batch)
        for proposer in PROPOSERS
        for batch in (1, arguments.batch)
    }
    found: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for repeat in range(arguments.repeats):
        for (proposer, batch), generator in ways.items():
            chosen = prompts if batch > 1 else [prompts[repeat % len(prompts)]]
            found[proposer, batch].append(speed(generator, chosen, arguments.max_new_tokens))
    base = found[PROPOSERS[0], 1]
    print(f"{facts()}, {arguments.dtype}, {arguments.numerics}, {millions(model)}\n")
    print("| proposer | batch | tokens/s | times plain decoding alone: median [range] |\n|---|---|---|---|")
    for (proposer, batch), speeds in found.items():
        ratios = [own / plain for own, plain in zip(speeds, base, strict=True)]
        spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"| {proposer} | {batch} | {statistics.median(speeds):.1f} | {spread} |")


if __name__ == "__main__":
    main()
