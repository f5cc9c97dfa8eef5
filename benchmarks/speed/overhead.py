"""The cost of a step outside the model: the whole loop against the bare forward pass, interleaved.

    python -m benchmarks overhead [--model FOLDER] [--dtype bfloat16] [--threads 2] [--contexts 256 8192]

After each step of a generation the same pass runs without specdec: ``model(ids, mask, positions, cache)`` with the same
nodes, mask and wanted logits, after a prefix of the same length, with a cache that only writes its slots. The overhead
is (step - bare) / step, so that nothing hides inside the forward pass: medians over steps with quartiles, over the
model's own attention and over the step's attention, which may be faster. The loop's own count of time outside the
forward pass, by phase, is printed as well.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model, millions
from benchmarks.prompts import prompt_ids
from specdec import Generator
from specdec.layout import Layout, Shapes
from specdec.masks.dense import DenseCompiler
from specdec.models.architecture import cache_argument
from specdec.record import PHASES, StepRecord

PROPOSERS = ("autoregressive", "prompt_lookup", "lookahead:N=5,W=7,G=7")


class Slots(CacheLayerMixin):
    """Preallocated keys and values of one layer, written from slot ``start`` on."""

    is_sliding, is_croppable, is_compileable = False, False, False

    def __init__(self, num_slots: int) -> None:
        super().__init__()
        self.start, self._num_slots = 0, num_slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, size = key_states.shape
        self.keys, self.values = torch.randn(2, rows, heads, self._num_slots, size).to(key_states.dtype)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        stop = self.start + key_states.shape[2]
        self.keys[:, :, self.start : stop] = key_states
        self.values[:, :, self.start : stop] = value_states
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.start + query_length, 0

    def get_seq_length(self) -> int:
        return self.start

    def get_max_length(self) -> int:
        return -1


@dataclass(frozen=True)
class Bare:
    """The model without specdec."""

    model: Any
    cache: Cache

    @classmethod
    def of(cls, model: Any, num_slots: int) -> "Bare":
        return cls(model, Cache(layers=[Slots(num_slots) for _ in range(model.config.num_hidden_layers)]))

    @torch.inference_mode()
    def __call__(self, layout: Layout, attention: str) -> None:
        self.model.config._attn_implementation = attention
        for layer in self.cache.layers:
            layer.start = layout.lengths[0]
        mask = next(iter(layout.masks.values())) if layout.masks else None
        self.model(
            layout.input_ids,
            attention_mask=mask,
            position_ids=layout.positions,
            use_cache=True,
            logits_to_keep=torch.tensor(layout.columns),
            **{cache_argument(self.model): self.cache},
        )


@dataclass(frozen=True)
class Timed:
    """Seconds of one step and of the bare pass after it."""

    step: float
    bare: float
    bare_with_its_attention: float
    num_nodes: int

    def overhead(self, over: str) -> float:
        return (self.step - getattr(self, over)) / self.step


def measure(model: Any, proposer: str, context: list[int], count: int) -> tuple[list[Timed], dict[str, float]]:
    """Steps after a context, without the prompt's own and the first; mean seconds of a step by phase."""
    compiler, records = DenseCompiler(), list[StepRecord]()
    generator = Generator(model, proposer=proposer, mask=compiler)
    own, shapes = model.config._attn_implementation, generator.shapes
    bare, timed = Bare.of(model, len(context) + count + 600), list[Timed]()
    stream = generator.stream(context, max_new_tokens=count, eos_token_id=(), seed=0, on_step=records.append)
    next(stream)
    while True:
        began = time.perf_counter()
        chunk = next(stream)
        stepped = time.perf_counter()
        if chunk.result is not None:
            steps = records[-len(timed) : -1]
            return timed[1:], {name: statistics.mean(one.seconds[name] for one in steps) for name in PHASES}
        layout, taken = layout_of(records[-1], compiler, shapes), []
        for attention in ("specdec_grouped", own):
            middle = time.perf_counter()
            bare(layout, attention)
            taken.append(time.perf_counter() - middle)
        timed.append(Timed(stepped - began, taken[1], taken[0], layout.width))


def layout_of(record: StepRecord, compiler: DenseCompiler, shapes: Shapes) -> Layout:
    """The layout of the last step, made again from its only request's tree."""
    (outcome,) = record.outcomes
    assert outcome.tree is not None, "a step has a tree"
    root = len(outcome.request.tokens) - len(outcome.tokens) - 1  # the last token before the step's own
    return compiler.compile([outcome.tree], [root], shapes)


def text_of(tokenizer: Any, length: int, period: int | None = None) -> list[int]:
    """The first ``count`` tokens of the demo's prompts; or the first ``period`` of them, repeated."""
    ids = [token for ids in prompt_ids(tokenizer) for token in ids][:period]
    return [int(token) for token in np.resize(ids, length)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 8192])
    parser.add_argument("--period", type=int, help="repeat this many tokens, for the same drafts in all contexts")
    parser.add_argument("--proposers", nargs="+", default=PROPOSERS)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    print(f"{facts()}, {arguments.dtype}, {millions(model)}\n")
    print(
        "| proposer | context | nodes | ms per step | bare, its own attention / ours | overhead over its own "
        "| over ours | ms outside forward | by phase |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for proposer in arguments.proposers:
        for context in arguments.contexts:
            prompt = text_of(tokenizer, context, arguments.period)
            timed, phases = measure(model, proposer, prompt, arguments.max_new_tokens)
            spreads = []
            for over in ("bare", "bare_with_its_attention"):
                low, middle, high = statistics.quantiles([one.overhead(over) for one in timed], n=4)
                spreads.append(f"{middle:.1%} [{low:.1%}, {high:.1%}]")
            step, bare, ours = (
                1e3 * statistics.median(getattr(one, name) for one in timed)
                for name in ("step", "bare", "bare_with_its_attention")
            )
            outside = {name: 1e3 * spent for name, spent in phases.items() if name != "forward"}
            print(
                f"| {proposer} | {context} | {statistics.mean(one.num_nodes for one in timed):.1f} | {step:.2f} "
                f"| {bare:.2f} / {ours:.2f} | {' | '.join(spreads)} | {sum(outside.values()):.3f} "
                f"| {', '.join(f'{name} {spent:.3f}' for name, spent in outside.items())} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
