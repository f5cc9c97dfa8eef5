"""``auto`` on simulated machines: recorded texts under other c(T), against every fixed setting.

    python -m benchmarks simulated --model smollm2 --dtype float32 --chat --per-category 3 \\
        --prompts spec_bench.jsonl --texts build/texts.json

A model's greedy texts are recorded once, with the most likely successors at each place. They are then decoded again
without the model, and a pass costs c(T). ``auto`` knows c(T), and nothing of the text to come. The fixed settings draft
from the same sources and rates, with a maximum number of nodes per step and a minimum probability; all are tried. Token
recycling learns from accepted nodes only, since the record has no predictions at rejected ones. In a batch, the next
text takes the row of a text that ends.
"""

import argparse
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import add_model_options, load_model
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.tables import table
from specdec import ROOT, Budget, DraftTree, Feedback, Generator, Nodes, Request
from specdec.costs import Costs
from specdec.decoding.request_state import TokenView
from specdec.record import Outcome, StepRecord
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.drafter import Part
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.merged import MergedEngine
from specdec.strategies.auto.proposer import AutoProposer
from specdec.strategies.auto.sizer import DraftSizer
from specdec.strategies.base import Engine
from specdec.strategies.host import Host
from specdec.strategies.signals import Answers, TopLogits
from specdec.strategies.sources.recycling import RecyclingEngine
from specdec.strategies.sources.vocabulary_prior import (
    NUM_SUCCESSORS,
    SuccessorTable,
    VocabularyPrior,
    preceding_token,
)
from specdec.testing import toy_host

SIGNAL = Nodes.ALL, TopLogits(6)
MACHINES = {
    "flat to 100 nodes, as on a GPU": Costs((1, 100, 200, 1000), (1.0, 1.02, 1.3, 5.0), 1.0),
    "this project's CPU in float32": Costs(
        (1, 2, 6, 8, 12, 16, 24, 33, 128), (1.0, 1.02, 1.1, 1.22, 1.39, 1.6, 1.95, 2.25, 7.2), 1.0
    ),
    "each further node costs a tenth": Costs((1, 101), (1.0, 11.0), 1.0),
    "steep: stock weights": Costs((1, 2, 4, 8, 16, 64), (1.0, 1.5, 2.4, 4.2, 8.0, 32.0), 1.0),
    "a node costs as much as a pass": Costs((1, 64), (1.0, 64.0), 1.0),
}
NUM_NODES = 1, 2, 3, 5, 7, 10, 14, 20, 32, 64
MIN_PROBABILITIES = 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6, 0.8


@dataclass(frozen=True)
class Text:
    """A prompt, its greedy continuation, and the most likely tokens with their logits at each place."""

    prompt: list[int]
    tokens: list[int]
    successors: list[tuple[tuple[int, ...], tuple[float, ...]]]


@dataclass(frozen=True)
class World:
    """Everything about a model that the simulation needs."""

    texts: Sequence[Text]
    vocabulary: SuccessorTable
    eos: frozenset[int]

    def host(self, costs: Costs) -> Host:
        """A host on a machine with these costs."""
        host = toy_host(len(self.vocabulary.tokens), reads_q=False)
        object.__setattr__(host, "costs", lambda: costs)
        return host

    def prepared(self, engine: MergedEngine) -> MergedEngine:
        """Give a new engine the model's vocabulary prior."""
        for part in engine.parts:
            if isinstance(part.engine, RecyclingEngine):
                part.engine.prior.table = self.vocabulary
        return engine


class FixedSizer(DraftSizer):
    """Takes every candidate that is probable enough, up to the engine's number of nodes."""

    def __init__(self, min_probability: float) -> None:
        self._min_probability = min_probability

    def min_probability(self, num_rows: int) -> float:
        return self._min_probability

    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        for growth in growths:
            while growth.next_probability:
                growth.take()
        return [len(growth) for growth in growths]


def auto(world: World, costs: Costs) -> Engine:
    engine = AutoProposer(clock=False).bind(world.host(costs))
    assert isinstance(engine, MergedEngine)
    return world.prepared(engine)


def fixed(world: World, num_nodes: int, min_probability: float) -> Engine:
    host = world.host(Costs((1, 2), (1.0, 1.0), 1.0))
    parts = list[Part]()
    for proposer in AutoProposer().merged().proposers:
        parts.append(Part.of(proposer, host, [part.name for part in parts]))
    return world.prepared(MergedEngine(parts, FixedSizer(min_probability), num_nodes, takes_trees=True))


class Row:
    """A text that is decoded again."""

    def __init__(self, text: Text, engine: Engine, world: World) -> None:
        self.text, self.done = text, 0
        self.tokens = list(text.prompt)
        rng = Randomness(0).stream("simulated")
        request = Request(TokenView(self.tokens), len(self.tokens), len(world.vocabulary.tokens), world.eos, 0.0, rng)
        self.drafter = engine.start(request)

    @property
    def num_left(self) -> int:
        return len(self.text.tokens) - self.done

    def verify(self, tree: DraftTree) -> Outcome:
        """Accept what agrees with the text, and give the drafter its feedback."""
        path, following = [ROOT], self.text.tokens[self.done :]
        for token in following[:-1]:
            child = tree.child(path[-1], token)
            if child is None:
                break
            path.append(child)
        seen = {node: self.text.successors[self.done + place] for place, node in enumerate(path)}
        tokens = tuple(following[: len(path)])
        self.tokens.extend(tokens)
        self.done += len(tokens)
        feedback = Feedback(tree, tuple(path), tokens, {SIGNAL: Answers(lambda: seen)})
        self.drafter.receive(feedback)
        self.drafter.observe(feedback)
        request: Any = None  # the engine reads nothing from it
        return Outcome(request, tree=tree, path=tuple(path), tokens=tokens, num_nodes=len(tree))


def decode(world: World, engine: Engine, batch: int) -> list[tuple[int, int, int]]:
    """Decode all texts again; per pass: rows, nodes per row, and new tokens."""
    waiting, rows, passes = deque(world.texts), list[Row](), list[tuple[int, int, int]]()
    while rows or waiting:
        while waiting and len(rows) < batch:
            rows.append(Row(waiting.popleft(), engine, world))
        trees = engine.propose_many([row.drafter for row in rows], [Budget(512, 1000, row.num_left) for row in rows])
        grown = [tree for tree in trees if isinstance(tree, DraftTree)]
        outcomes = tuple(row.verify(tree) for row, tree in zip(rows, grown, strict=True))
        width = max(map(len, grown))
        engine.learn(StepRecord("step", outcomes, width=width), outcomes)
        passes.append((len(rows), width, sum(len(outcome.tokens) for outcome in outcomes)))
        for row in rows:
            if not row.num_left:
                row.drafter.stop()
        rows = [row for row in rows if row.num_left]
    return passes


def speed(passes: Iterable[tuple[int, int, int]], costs: Costs) -> float:
    """Tokens per time of a plain step of one row."""
    counted = list(passes)
    return sum(tokens for *_, tokens in counted) / sum(costs.relative_at(rows * width) for rows, width, _ in counted)


def in_pool(world: World, engines: Iterable[Callable[[World], Engine]], batch: int) -> list[list[tuple[int, int, int]]]:
    """``decode`` with each engine, in one process per torch thread."""
    with Pool(torch.get_num_threads()) as pool:
        return pool.map(partial(_decoded, world=world, batch=batch), list(engines), chunksize=4)


def _decoded(engine: Callable[[World], Engine], world: World, batch: int) -> list[tuple[int, int, int]]:
    return decode(world, engine(world), batch)


def report(world: World, sizes: Sequence[int]) -> str:
    """For each machine and batch: ``auto``, and the best fixed setting."""
    lines = []
    for batch in sizes:
        settings = list(product(NUM_NODES, MIN_PROBABILITIES))
        engines = [partial(fixed, num_nodes=num_nodes, min_probability=least) for num_nodes, least in settings]
        tried = dict(zip(settings, in_pool(world, engines, batch), strict=True))
        [plain] = in_pool(world, [partial(fixed, num_nodes=0, min_probability=1.0)], batch)
        chosen = in_pool(world, [partial(auto, costs=costs) for costs in MACHINES.values()], batch)
        for (name, costs), passes in zip(MACHINES.items(), chosen, strict=True):
            best = max(settings, key=lambda setting: speed(tried[setting], costs))
            base, own = speed(plain, costs), speed(passes, costs)
            bound = max(speed(tried[best], costs), base)
            setting = "plain" if bound == base else f"{best[0]} nodes from {best[1]:g}"
            nodes = sum(rows * width for rows, width, _ in passes) / sum(rows for rows, *_ in passes)
            tau = sum(tokens for *_, tokens in passes) / sum(rows for rows, *_ in passes)
            cells = f"{tau:.2f}", f"{nodes:.1f}", f"{own / base:.2f}", setting, f"{bound / base:.2f}"
            lines.append([name, str(batch), *cells, f"{own / bound:.3f}"])
    heading = (
        "machine",
        "batch",
        "tokens/step",
        "nodes/step",
        "times plain",
        "best fixed setting",
        "times plain",
        "share",
    )
    return table(list(heading), lines)


def record(arguments: argparse.Namespace) -> World:
    """Record the model's texts, or read an earlier record."""
    model, tokenizer = load_model(arguments)
    generator = Generator(model, tokenizer, proposer="autoregressive", numerics="fast")
    target = generator.open_target()
    prior = VocabularyPrior(lambda: target, preceding_token(tokenizer))
    prior.prepare(lambda *_: None, math.inf)
    target.close()
    if not arguments.texts.exists():
        texts = []
        for prompt in encoded_prompts(arguments, tokenizer):
            tokens = list(generator.generate(prompt.ids, max_new_tokens=arguments.max_new_tokens).token_ids)
            with torch.inference_mode():
                logits = model(torch.tensor([prompt.ids + tokens[:-1]])).logits[0, len(prompt.ids) - 1 :]
            top = logits.float().topk(NUM_SUCCESSORS)
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            texts.append([prompt.ids, tokens, [list(zip(*pair, strict=True)) for pair in pairs]])
        arguments.texts.parent.mkdir(parents=True, exist_ok=True)
        arguments.texts.write_text(json.dumps(texts), encoding="utf-8")
    generator.close()
    held = json.loads(arguments.texts.read_text("utf-8"))
    ends = model.generation_config.eos_token_id
    eos = frozenset([ends] if isinstance(ends, int) else ends or ())
    cut = SIGNAL[1].k
    return World(
        [
            Text(prompt, tokens, [tuple(zip(*place[:cut], strict=True)) for place in places])
            for prompt, tokens, places in held
        ],
        prior.table,
        eos,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--texts", type=Path, default=Path("build/texts.json"), help="written if it isn't there")
    arguments = parser.parse_args()
    world = record(arguments)
    print(f"{len(world.texts)} texts, {sum(len(text.tokens) for text in world.texts)} tokens\n")
    print(report(world, arguments.batch))


if __name__ == "__main__":
    from benchmarks.speed import simulated  # noqa: PLW0406 - worker processes import the classes by this name

    simulated.main()
