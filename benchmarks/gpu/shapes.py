"""Shapes of models with random weights, on which no time depends, and the time of a call in a CUDA graph."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.machine.cuda_graphs import Graph, Pool

_REPLAYS = 10  # in a row, so that the host's part of the first doesn't count
_CALLS_ON_HOST = 2  # in a rehearsal


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes; ``head_size`` is of one head of attention."""

    name: str
    hidden: int
    layers: int
    heads: int
    groups: int
    head_size: int
    mlp: int
    vocab: int

    def matrices(self) -> list[tuple[int, int]]:
        """The outputs and inputs of all products, each size once."""
        queries, keys, hidden = self.heads * self.head_size, self.groups * self.head_size, self.hidden
        sizes = [(queries, hidden), (keys, hidden), (hidden, queries), (self.mlp, hidden), (hidden, self.mlp)]
        return [*dict.fromkeys([*sizes, (self.vocab, hidden)])]

    def model(self, dtype: torch.dtype, device: torch.device, num_positions: int) -> LlamaForCausalLM:
        """A model of this shape, made on the device."""
        config = LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            head_dim=self.head_size,
            intermediate_size=self.mlp,
            max_position_embeddings=num_positions,
            eos_token_id=None,
        )
        with torch.device(device):
            return LlamaForCausalLM._from_config(config, dtype=dtype).eval()


SMOLLM2 = Shape("SmolLM2-135M", 576, 30, 9, 3, 64, 1536, 49152)
LLAMA_8B = Shape("8B", 4096, 32, 32, 8, 128, 14336, 128256)
TINY = Shape("tiny", 48, 2, 4, 2, 12, 64, 96)


class _NoInputs:
    """A graph's inputs: none."""

    def owned(self) -> "_NoInputs":
        return self

    def copy_(self, other: "_NoInputs") -> None:
        pass


def microseconds(run: Callable[[int], torch.Tensor], device: torch.device, num_calls: int = 100) -> float:
    """The time of one of ``num_calls`` calls in a CUDA graph, the median of some replays; on CPUs of a few calls.

    Args:
        run: gets the call's number, and returns a tensor of the device.
    """

    def call_all(_: _NoInputs) -> tuple[torch.Tensor, ...]:
        for number in range(num_calls):
            last = run(number)
        return (last,)

    nothing, num_replays = _NoInputs(), _REPLAYS
    if device.type != "cuda":
        num_calls, num_replays = _CALLS_ON_HOST, 1
    replay = partial(Graph(call_all, nothing, Pool(device)) if device.type == "cuda" else call_all, nothing)
    seconds = []
    for _ in range(4):
        wait(device)
        began = time.perf_counter()
        for _ in range(num_replays):
            replay()
        wait(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:]) * 1e6 / num_replays / num_calls


def wait(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
