"""Rows of logits of large random layers, in trees of any size and in plain steps: does a bit differ?

    python -m benchmarks rows [--width 2048] [--intermediate 5632] [--layers 2] [--dtype bfloat16] [--threads 2]
                              [--weights auto] [--num-rows 2500]

A random Llama of that shape decodes a random text in plain steps, in exact numerics. Then trees of 2 to 120 nodes,
which contain the text's next tokens, are fed after prefixes of it, and prompts are read in chunks followed by a tree.
Each position must have the same bits. The exit code is 1 if one differs.
"""

import argparse
import random
import sys
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import facts
from specdec import ROOT, DraftTree, Generator
from specdec.target import Target

VOCAB, LENGTH, MOST_NODES, MOST_DEPTH = 4096, 400, 120, 24


def model_of(arguments: argparse.Namespace) -> Any:
    """A random model of the shape, with heads of 64 dimensions and a quarter as many key-value heads."""
    torch.manual_seed(0)
    heads = arguments.width // 64
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=arguments.width,
        intermediate_size=arguments.intermediate,
        num_hidden_layers=arguments.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=2 * LENGTH,
        initializer_range=2.0 * arguments.width**-0.5,  # so that attention has a say in every logit
    )
    return LlamaForCausalLM(config).to(getattr(torch, arguments.dtype)).eval()


def plain_rows(target: Target, tokens: list[int]) -> list[torch.Tensor]:
    """The logits after each token, in plain steps."""
    row = target.open(len(tokens))
    rows = [target.read(row, [token]).logits(ROOT) for token in tokens]
    target.release(row)
    return rows


def tree_over(tokens: list[int], rng: random.Random) -> tuple[DraftTree, list[int]]:
    """A tree of some size with the first token as its root, and the path of the other tokens in it."""
    size = rng.randint(2, MOST_NODES)
    tree, path = DraftTree(tokens[0]), [ROOT]
    for token in tokens[1 : rng.randint(2, MOST_DEPTH)]:
        path.append(tree.add(path[-1], token))
        for _ in range(rng.randint(0, max(0, (size - len(tree)) // 8))):
            _add(tree, rng.randrange(len(tree)), rng)
    while len(tree) < size:
        _add(tree, rng.randrange(len(tree)), rng)
    return tree, path


def _add(tree: DraftTree, parent: int, rng: random.Random) -> None:
    if tree.depths[parent] < MOST_DEPTH:
        tree.add(parent, rng.randrange(VOCAB))


def differing(target: Target, tokens: list[int], expected: list[torch.Tensor], num_rows: int) -> tuple[int, int]:
    """Return how many rows differ and how many were compared, at least ``num_rows``."""
    rng, tried, different = random.Random(1), 0, 0
    while tried < num_rows:
        row, length = target.open(len(tokens)), rng.randint(1, len(tokens) - 2 * MOST_DEPTH)
        while chunk := target.chunk_after(row, tokens[:length]):
            target.read(row, chunk)
        for _ in range(2):  # after the rest of the prompt, then after committed tokens
            start = max(length - 1, row.length)
            tree, path = tree_over(tokens[start:], rng)
            planned = target.compile({row: tree}, {row: tokens[row.length : start]})
            answers = target.forward(planned).rows[row]
            found = [(start + depth, answers.logits(node)) for depth, node in enumerate(path)]
            different += sum(not torch.equal(logits, expected[position]) for position, logits in found)
            tried += len(found)
            target.commit(planned, {row: path})
        target.release(row)
    return different, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=5632)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--numerics", default="auto", help="fast: to see that differences are found")
    parser.add_argument("--num-rows", type=int, default=2500)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, began = model_of(arguments), time.perf_counter()
    generator = Generator(model, proposer="autoregressive", weights=arguments.weights, numerics=arguments.numerics)
    made = time.perf_counter() - began
    tokens = random.Random(0).choices(range(VOCAB), k=LENGTH)
    target = generator.open_target()
    different, tried = differing(target, tokens, plain_rows(target, tokens), arguments.num_rows)
    shape = f"{arguments.width} x {arguments.intermediate}, {arguments.layers} layers, {arguments.dtype}"
    print(f"{facts()}; {shape}; {generator.weights}; {generator.numerics}; made in {made:.1f} s")
    print(f"{different} of {tried} rows differ")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
