"""All strategies against plain decoding, on the demo prompts and HumanEval's first 20.

    python -m benchmarks lossless [--humaneval humaneval.jsonl] [--max-new-tokens 128]

Plain decoding is ``tests/support/plain.py``, which doesn't use specdec. Each strategy runs at temperature 0 and, with a
seed, at temperature 1, alone and in ragged batches of four, in float32.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.prompts import prompt_ids
from specdec import Generator, demo
from tests.support.plain import decode_model

PROPOSERS = (
    "autoregressive",
    "jacobi",
    "lookahead",
    "prompt_lookup",
    "prompt_lookup:num_matches=4",
    "draft_model:layers=2",
)
SEED = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--humaneval", type=Path)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    arguments = parser.parse_args()
    model, tokenizer = demo.load()
    ids = prompt_ids(tokenizer)
    if arguments.humaneval:
        ids += prompt_ids(tokenizer, arguments.humaneval, most=20)
    num_different = 0
    print("| proposer | temperature | texts | identical alone | identical in batches of 4 | tokens per step |")
    print("|---|---|---|---|---|---|")
    for seed in (None, SEED):
        sampling = {"temperature": 0.0 if seed is None else 1.0, "seed": SEED}
        plain = [tuple(decode_model(model, prompt, arguments.max_new_tokens, seed)) for prompt in ids]
        for proposer in PROPOSERS:
            generator = Generator(model, tokenizer, proposer=proposer, max_batch_size=4)
            settings = {"max_new_tokens": arguments.max_new_tokens, **sampling}
            alone = [generator.generate(prompt, **settings) for prompt in ids]
            batch = generator.generate(ids, **settings)
            same = [sum(r.token_ids == p for r, p in zip(rs, plain, strict=True)) for rs in (alone, batch)]
            tau = sum(r.stats.num_tokens for r in alone) / sum(r.stats.steps for r in alone)
            print(
                f"| {proposer} | {0 if seed is None else 1} | {len(ids)} | {same[0]} | {same[1]} | {tau:.2f} |",
                flush=True,
            )
            num_different += 2 * len(ids) - sum(same)
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
