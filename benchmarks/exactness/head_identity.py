"""Trained heads: do they draft what the reference drafts, and is the text plain decoding's?

    python -m benchmarks head_identity --runners torch openvino              # small random heads, minutes
    python -m benchmarks head_identity --head FOLDER --model smollm2 --prompts FILE … --backend hf --dtype bfloat16

Without ``--head``, random heads draft for ragged batches of four, on torch or on OpenVINO (``--runners``). Their trees,
log-probabilities and cached keys and values are compared with the reference that the tests have (``--reference FILE``
adds one with the same interface). Prompts are read in one part or in several, drafts are accepted in part or rejected,
and half of the requests begin with the retained state of an earlier one.

With ``--head``, texts of a real model are compared with plain decoding's, to the token: the head alone, ``auto`` with
it and a merge with lookahead's n-grams; half of the texts greedy and half at temperature 1; in batches of four, of
eight, and continued in a context. The exit code is 1 if anything differs.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, load_model
from benchmarks.prompts import add_prompt_options, encoded_prompts
from specdec import Budget, DraftTree, Generator
from specdec.decoding.request_state import TokenView
from specdec.heads.base import HeadRunner
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.strategies.drafter import HeadDrafter
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.heads.torch_runner import TorchRunner
from specdec.sampling.randomness import Randomness
from specdec.strategies.feedback import Feedback
from specdec.strategies.request import Request
from specdec.strategies.signals import HiddenAnswers, Nodes
from tests.support.eagle3_reference import ReferenceHead
from tests.support.random_heads import random_head, reference_of

ROWS, STEPS, TIE = 4, 6, 1e-4
LARGE = Budget(num_nodes=512, depth=100, num_tokens=100)
SHAPE = TreeOptions(top_k=3, depth=3, num_nodes=9, min_probability=0.0)
MERGED = "eagle3:head={head}+prompt_lookup"
BATCHES = 4, 8
SEED, TURN = 20, 8  # TURN: tokens of the first of two turns in a context


@dataclass
class Differences:
    """The comparison of a head's drafts with the reference's."""

    trees: int = 0
    different: int = 0
    ties: int = 0
    log_prob: float = 0.0
    keys: float = 0.0

    def add(self, drafter: HeadDrafter, reference: ReferenceHead, found: DraftTree, last: torch.Tensor) -> None:
        """Compare a request's draft and cache with the reference's after the same pairs."""
        tokens, parents, scores = reference.grow(last, SHAPE.top_k, SHAPE.depth - 1, SHAPE.num_nodes)
        self.trees += 1
        if (found.tokens[1:], [parent - 1 for parent in found.parents[1:]]) != (tokens, parents):
            is_tie = any(more - less < TIE for less, more in pairwise(sorted(scores)))
            self.ties, self.different = self.ties + is_tie, self.different + (not is_tie)
        elif drafter.drafted is not None:
            worst = (torch.tensor(drafter.drafted.log_probs) - torch.tensor(scores)).abs().max()
            self.log_prob = max(self.log_prob, float(worst))
        for own, its in ((drafter.cache.keys, reference.k), (drafter.cache.values, reference.v)):
            self.keys = max(self.keys, float((own.transpose(0, 1) - its).abs().max()))


class Row:
    """One request of a batch: the engine's drafter and the reference, given the same pairs."""

    def __init__(self, engine: HeadEngine, length: int, num_parts: int, is_reused: bool, draw: torch.Generator):
        self._engine, self._draw, self._size = engine, draw, engine.head.config.target_hidden_size
        self._vocab = engine.head.config.vocab_size
        self.text = self._tokens(length)
        states = self._states(length - 1)
        self.reference = reference_of(engine.head)
        self.last = self.reference.extend(states.flatten(1), torch.tensor(self.text[1:]))
        start, retained = 0, ()
        if is_reused:
            start = length // 2
            earlier = self._start(0, ())
            self._read(earlier, states, 0, length - 1, 1)
            kept = earlier.retain(0, start + 1)
            assert kept is not None, "the state of a prompt that was read from its start"
            retained = (kept,)
        self.drafter = self._start(start, retained)
        self._read(self.drafter, states, start, length - 1, num_parts)

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = torch.randint(self._vocab, (count,), generator=self._draw).tolist()
        return tokens

    def _states(self, count: int) -> torch.Tensor:
        return torch.randn(count, 3, self._size, generator=self._draw)

    def _start(self, num_reused: int, retained: Any) -> HeadDrafter:
        fields: dict[str, Any] = {"prompt_length": len(self.text), "vocab_size": self._vocab, "temperature": 0.0}
        fields |= {"eos_token_ids": frozenset(), "rng": Randomness(5).stream("x")}
        request = Request(TokenView(self.text), num_reused=num_reused, retained=retained, **fields)
        drafter = self._engine.start(request)
        assert isinstance(drafter, HeadDrafter)
        return drafter

    def _read(self, drafter: HeadDrafter, states: torch.Tensor, start: int, stop: int, num_parts: int) -> None:
        bounds = torch.linspace(start, stop, num_parts + 1).long().tolist()
        for first, end in pairwise(bounds):
            answers = HiddenAnswers(range(first, end), partial(states.__getitem__, slice(first, end)))
            drafter.read(end, LARGE, {(Nodes.PROMPT, self._engine.states): answers})

    def accept(self, draft: DraftTree, num_accepted: int) -> None:
        """Commit some of the draft's first path and a random token; other branches are rejected."""
        path, node = [0], 0
        while len(path) <= num_accepted and node in draft.parents:
            node = draft.parents.index(node)
            path.append(node)
        new = [*(draft.tokens[node] for node in path[1:]), *self._tokens(1)]
        self.text.extend(new)
        states = self._states(len(path))
        answers = HiddenAnswers(path, partial(torch.Tensor.clone, states))
        signals = {(Nodes.PATH, self._engine.states): answers}
        self.drafter.receive(Feedback(draft, tuple(path), tuple(new), signals))
        self.last = self.reference.extend(states.flatten(1), torch.tensor(new))


@torch.no_grad()
def compare_head(engine: HeadEngine, seed: int, other: Any, found: Differences) -> None:
    """Draft for a ragged batch of random texts over some steps; ``other`` is a second reference's class or None."""
    draw = torch.Generator().manual_seed(seed + 500)
    rows = [Row(engine, 3 + 5 * row, 1 + row % 3, row % 2 == 1, draw) for row in range(ROWS)]
    for step in range(STEPS):
        drafts = engine.propose_many([row.drafter for row in rows], [LARGE] * ROWS)
        for index, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            assert isinstance(draft, DraftTree)
            found.add(row.drafter, row.reference, draft, row.last)
            if other is not None:
                found.different += not agrees(other, engine.head, row)
            row.accept(draft, (step + index) % 4)


def agrees(other: Any, head: Eagle3Head, row: Row) -> bool:
    """Return True if another reference grows the same tree, up to a tie, from the reference's keys and values."""
    config, ours = head.config, row.reference
    sizes = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    its = other(ours.t, *sizes, config.rope_parameters["rope_theta"])
    its.k, its.v = ours.k, ours.v
    tokens, parents, scores = ours.grow(row.last, SHAPE.top_k, SHAPE.depth - 1, SHAPE.num_nodes)
    is_tie = any(more - less < TIE for less, more in pairwise(sorted(scores)))
    return is_tie or its.grow(row.last, SHAPE.top_k, SHAPE.depth - 1, SHAPE.num_nodes) == (tokens, parents)


def runner_of(name: str, head: Eagle3Head) -> HeadRunner:
    """Return a head's runner by an engine's name."""
    if name == "torch":
        return TorchRunner(head, SHAPE.top_k)
    from specdec_openvino.heads.runner import OpenVINORunner
    from specdec_openvino.options import OpenVINOOptions

    return OpenVINORunner(head, SHAPE.top_k, OpenVINOOptions())


def compare_heads(names: Sequence[str], num_heads: int, path: Path | None) -> int:
    """Print a row for each runner and vocabulary; return the number of trees that differ."""
    other = None
    if path is not None:
        spec = importlib.util.spec_from_file_location("reference", path)
        if spec is None or spec.loader is None:
            raise SystemExit(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        other = module.Head
    totals = dict[tuple[str, bool], Differences]()
    for seed in range(num_heads):
        for is_reduced in (True, False):
            head, _ = random_head(seed, is_reduced)
            for name in names:
                engine = HeadEngine(SHAPE, runner_of(name, head.requires_grad_(False)), (1, 2, 3), "eagle3")
                compare_head(engine, seed, other, totals.setdefault((name, is_reduced), Differences()))
    print("| runner | vocabulary | heads | trees | differ | ties | log-probabilities | keys and values |")
    print("|---|---|---|---|---|---|---|---|")
    for (name, is_reduced), each in totals.items():
        counts = f"{num_heads} | {each.trees} | {each.different} | {each.ties}"
        vocabulary = "reduced" if is_reduced else "full"
        print(f"| {name} | {vocabulary} | {counts} | {each.log_prob:.1e} | {each.keys:.1e} |")
    return sum(each.different for each in totals.values())


def texts_of(generator: Generator, prompts: Sequence[list[int]], num_tokens: int, way: str, **settings: Any) -> Any:
    """Yield each prompt's new tokens, steps and number of reused positions; ``way`` is a batch size or a context."""
    if way not in ("context", "two turns"):
        for start in range(0, len(prompts), int(way)):
            for result in generator.generate(prompts[start : start + int(way)], max_new_tokens=num_tokens, **settings):
                yield list(result.token_ids), result.stats.steps, 0
        return
    for prompt in prompts:
        context = generator.context() if way == "context" else None
        first = generator.generate(prompt, max_new_tokens=TURN, context=context, **settings)
        text = [*prompt, *first.token_ids, *prompt[:5]]
        second = generator.generate(text, max_new_tokens=num_tokens, context=context, **settings)
        if context is not None:
            context.close()
        tokens = [*first.token_ids, *second.token_ids]
        yield tokens, first.stats.steps + second.stats.steps, second.stats.num_reused


def compare_texts(arguments: argparse.Namespace) -> int:
    """Print a row for each strategy and arrangement; return the number of texts that differ."""
    model, tokenizer = load_model(arguments)
    prompts = [prompt.ids for prompt in encoded_prompts(arguments, tokenizer)]
    loaded: Any = model if arguments.backend == "hf" else str(checkpoint(arguments))
    options: dict[str, Any] = {"numerics": "exact", "backend": arguments.backend, "max_batch_size": max(BATCHES)}
    generator = Generator(loaded, tokenizer, **options)
    strategies = [f"eagle3:head={arguments.head}", f"auto+eagle3:head={arguments.head}"]
    strategies.append(MERGED.format(head=arguments.head))
    print(f"{len(prompts)} prompts, {arguments.backend}, {arguments.dtype}, {arguments.max_new_tokens} tokens")
    print("| strategy | arrangement | temperature | texts | differ | tokens per step | reused |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    num_different, ways = 0, [*map(str, BATCHES), "context"]
    for index, way in enumerate(ways):
        for temperature in (0.0, 1.0):
            part = prompts[2 * index + int(temperature) :: 2 * len(ways)]
            settings = {"temperature": temperature, "seed": SEED, "max_new_tokens": arguments.max_new_tokens}
            num_tokens = settings.pop("max_new_tokens")
            alone = way if way != "context" else "two turns"
            plain = texts_of(generator, part, num_tokens, alone, proposer="autoregressive", **settings)
            expected = [tokens for tokens, _, _ in plain]
            for strategy in strategies:
                found = [*texts_of(generator, part, num_tokens, way, proposer=strategy, **settings)]
                different = sum(tokens != its for (tokens, _, _), its in zip(found, expected, strict=True))
                per_step = sum(len(tokens) for tokens, _, _ in found) / sum(steps for _, steps, _ in found)
                name = strategy.replace(str(arguments.head), "HEAD")
                counts = f"{len(part)} | {different} | {per_step:.2f} | {sum(reused for *_, reused in found)}"
                print(f"| {name} | {way} | {temperature:g} | {counts} |", flush=True)
                num_different += different
    generator.close()
    return num_different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--head", type=Path, help="compare texts of a model with this head instead")
    parser.add_argument("--backend", choices=["hf", "openvino"], default="hf")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--num-heads", type=int, default=20)
    parser.add_argument("--runners", nargs="+", choices=["torch", "openvino"], default=["torch"])
    parser.add_argument("--reference", type=Path, help="a file with a second reference, in a class Head")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(facts())
    begin = time.perf_counter()
    num_different = (
        compare_texts(arguments)
        if arguments.head
        else compare_heads(arguments.runners, arguments.num_heads, arguments.reference)
    )
    print(f"{num_different} differ; {time.perf_counter() - begin:.0f} s")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
