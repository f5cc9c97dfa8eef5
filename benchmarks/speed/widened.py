"""Wider models that say what the built-in model says: a larger model's step costs, with a trained model's text.

    python -m benchmarks widened [--shape 0.3b] [--out FOLDER] [--num-prompts 24] [--threads 2]

Prints how well the wide model agrees with the built-in one, in float32 and in bfloat16; ``--out`` saves it in bfloat16
with its tokenizer. The vocabulary stays at 2,048, so the head is cheaper than a real model's.

``benchmarks/widening.py`` says why it is the same function.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.machine import facts
from benchmarks.prompts import prompt_ids
from benchmarks.widening import SHAPES, save, widen
from specdec import demo


@dataclass(frozen=True)
class Agreement:
    """How a wide model's logits and greedy texts agree with the original's."""

    most: float  # largest difference of two logits
    same_argmax: float  # share of positions
    same_text: float | None  # share of greedy texts; None where none was decoded


@torch.inference_mode()
def agreement(model: Any, wide: Any, prompts: list[list[int]], num_tokens: int = 0) -> Agreement:
    """Compare logits at every position of the prompts, and greedy texts of ``num_tokens`` tokens."""
    most, positions, same_argmax, same_text = 0.0, 0, 0, 0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        one, other = model(ids).logits[0].float(), wide(ids).logits[0].float()
        most = max(most, (one - other).abs().max().item())
        positions += len(prompt)
        same_argmax += int((one.argmax(-1) == other.argmax(-1)).sum())
        same_text += bool(num_tokens) and _greedy(model, ids, num_tokens) == _greedy(wide, ids, num_tokens)
    return Agreement(most, same_argmax / positions, same_text / len(prompts) if num_tokens else None)


def _greedy(model: Any, ids: torch.Tensor, num_tokens: int) -> list[int]:
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens)
    return output[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.3b")
    parser.add_argument("--out", type=Path, help="folder to save the model in, in bfloat16")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--num-tokens", type=int, default=128, help="length of the greedy texts, in bfloat16; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of the dead weights")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    print(facts())
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = demo.load(dtype=dtype)
        wide = widen(model, **SHAPES[arguments.shape], seed=arguments.seed)
        if dtype == "bfloat16" and arguments.out is not None:
            save(wide, tokenizer, arguments.out)
        prompts = prompt_ids(tokenizer, most=arguments.num_prompts)
        num_tokens = arguments.num_tokens if dtype == "bfloat16" else 0
        found = agreement(model, wide, prompts, num_tokens)
        of_texts = f", {found.same_text:.1%} of texts of {num_tokens} tokens" if num_tokens else ""
        size = f"{wide.num_parameters() / 1e6:.4g} million parameters, {dtype}, {len(prompts)} prompts"
        same = f"the same: {found.same_argmax:.2%} of argmaxes{of_texts}"
        print(f"{arguments.shape}: {size}: logits differ by at most {found.most:.2g}; {same}", flush=True)


if __name__ == "__main__":
    main()
