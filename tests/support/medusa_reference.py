"""Medusa's heads in float32, written from the paper without specdec, and random ones in the published layouts."""

import torch
from torch.nn.functional import linear, silu

Tensors = dict[str, torch.Tensor]


def random_blocks(num_heads: int, num_blocks: int, hidden: int, draw: torch.Generator) -> Tensors:
    """Residual blocks under the official names."""
    tensors: Tensors = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            tensors[f"{head}.{block}.linear.weight"] = torch.randn(hidden, hidden, generator=draw) / hidden**0.5
            tensors[f"{head}.{block}.linear.bias"] = torch.randn(hidden, generator=draw)
    return tensors


def in_vllms_names(blocks: Tensors) -> Tensors:
    """The same blocks under vLLM's names."""
    named: Tensors = {}
    for name, tensor in blocks.items():
        head, block, _, kind = name.split(".")
        named[f"medusa_heads.blocks.{head}.layers.{block}.{kind}"] = tensor
    return named


def reference_log_probs(blocks: Tensors, outputs: list[torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    """Each head's log-probabilities, (heads, draft vocab), after the hidden state h."""
    found = []
    for head, output in enumerate(outputs):
        z, block = h, 0
        while (weight := blocks.get(f"{head}.{block}.linear.weight")) is not None:
            z = z + silu(linear(z, weight, blocks[f"{head}.{block}.linear.bias"]))
            block += 1
        found.append(linear(z, output).log_softmax(-1))
    return torch.stack(found)


def best_paths(log_probs: torch.Tensor, top_k: int, depth: int, num_nodes: int) -> dict[tuple[int, ...], float]:
    """The most probable paths of all products of the heads' top-k, each with its log-probability."""
    paths: dict[tuple[int, ...], float] = {(): 0.0}
    for head in log_probs[:depth]:
        values, ids = head.topk(top_k)
        longest = {path: value for path, value in paths.items() if len(path) == max(map(len, paths))}
        for path, value in longest.items():
            for token, more in zip(ids.tolist(), values.tolist(), strict=True):
                paths[*path, token] = value + more
    del paths[()]
    return dict(sorted(paths.items(), key=lambda each: -each[1])[:num_nodes])
