"""Host time of drafting: microseconds per row and step, by strategy and number of rows, without a model.

    python -m benchmarks host_time
    python -m benchmarks host_time --rows 32 --strategy suffix --profile    # the functions that take the time

Each row is a different part of specdec's own sources and documents, tokenised for the built-in model. The "model"
writes the text as it stands, so drafts are accepted as far as they are right. Two loops are measured:

- ``specdec``: a step of specdec's scheduler, the phases that draft: ``propose``, ``observe`` and ``learn``.
- ``vllm``: a call of specdec's proposer class by vLLM. Drafts are chains of up to eight tokens.

``auto`` is measured with drafts that cost nothing, so that it drafts in every step, with drafts that never pay, and by
the costs of passes on an H100, which draft as many nodes as pay there. The first step, which reads the prompt, is
reported apart.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.machine import facts
from benchmarks.report import command, write
from benchmarks.tables import table
from specdec.backends.output import Output
from specdec.backends.toy import ToyBackend, ToyModel
from specdec.costs import Costs
from specdec.decoding.request_state import RequestState
from specdec.decoding.step import step
from specdec.decoding.strategy import Strategy
from specdec.decoding.turn import Batch, RequestTurn
from specdec.layout import Layout
from specdec.masks.dense import DenseCompiler
from specdec.plugins.registry import load_plugins
from specdec.record import Outcome, StepRecord
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings
from specdec.strategies.base import Engine
from specdec.target import Target
from specdec.testing import toy_host
from specdec.verifiers.match import MatchVerifier

Steps = Iterator[tuple[float, int, int]]  # seconds of drafting, emitted tokens and drafted nodes of a step

CONTEXT, NUM_DRAFTED = 4096, 8
FREE, STEEP = Costs((1, 1 << 20), (1.0, 1.0), 1.0), Costs((1, 1 << 20), (1.0, float(1 << 20)), 1.0)
# SmolLM2-135M-Instruct in bfloat16 by CUDA graphs (notebook of 2026-11-26, "On a GPU"); extrapolated beyond 128 nodes.
H100 = Costs(
    (1, 2, 4, 8, 16, 32, 64, 128),
    (4.16e-3, 4.47e-3, 4.56e-3, 4.61e-3, 4.76e-3, 4.97e-3, 5.03e-3, 5.13e-3),
    plain=4.16e-3,
)
STRATEGIES: dict[str, tuple[str, Costs]] = {  # strategies, and what passes cost
    "prompt_lookup": ("prompt_lookup", FREE),
    "suffix": ("suffix", FREE),
    "auto, all drafts pay": ("auto:clock=false", FREE),
    "auto, no draft pays": ("auto:clock=false", STEEP),
    "auto, costs of an H100": ("auto:clock=false", H100),
}
_DOCUMENTS = "specdec/**/*.py", "docs/*.md", "tests/**/*.py", "benchmarks/**/*.py"


@dataclass(frozen=True)
class Row:
    """A strategy's figures at a number of rows: microseconds per row, over all steps but the first."""

    loop: str
    strategy: str
    num_rows: int
    first: float
    median: float
    mean: float
    tokens_per_step: float
    nodes_per_step: float


def corpus() -> tuple[list[int], int]:
    """Return the tokens of specdec's sources and documents, and the size of the vocabulary."""
    from transformers import AutoTokenizer

    from specdec import demo

    folder, root = Path(demo.__file__).with_name("model"), Path(__file__).parents[2]
    tokenizer, ids = AutoTokenizer.from_pretrained(folder), list[int]()
    for path in sorted(path for pattern in _DOCUMENTS for path in root.glob(pattern)):
        ids += tokenizer(path.read_text(encoding="utf-8"))["input_ids"]
    return ids, len(tokenizer)


class _WrittenBackend(ToyBackend):
    """A toy backend whose model writes given texts; predictions off the text are random, and fixed by the token."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int, compiler: Any) -> None:
        super().__init__(ToyModel(lambda _: (), vocab_size), compiler)
        self._texts = texts
        self._random = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(0))

    def forward(self, layout: Layout) -> Output:
        logits = self._random[layout.input_ids[:, list(layout.columns)]]
        for row, (tree, length, text) in enumerate(zip(layout.trees, layout.lengths, self._texts, strict=True)):
            written = [True]
            for node in range(1, len(tree)):
                is_right = tree.tokens[node] == text[length + tree.depths[node]]
                written.append(written[tree.parents[node]] and is_right)
            for column, node in enumerate(layout.columns):
                if node < len(tree) and written[node]:
                    logits[row, column, text[length + tree.depths[node] + 1]] += 20.0
        return Output(logits, layout.columns)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        pass


class _Unmasked(DenseCompiler):
    """Compiles no masks, which the written model doesn't read."""

    def masks(self, *_: Any) -> dict[str, torch.Tensor]:
        return {}


class _TimedEngine(Engine):
    """An engine whose ``learn`` is timed."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.seconds = engine, 0.0

    def start(self, request: Any) -> Any:
        return self._engine.start(request)

    def propose_many(self, drafters: Any, budgets: Any) -> Any:
        return self._engine.propose_many(drafters, budgets)

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        began = time.perf_counter()
        self._engine.learn(record, outcomes)
        self.seconds = time.perf_counter() - began


def in_specdec(strategy: str, costs: Costs, written: Sequence[Sequence[int]], vocab_size: int) -> Steps:
    """Yield the figures of each step of specdec's own loop."""
    proposer, compiler = load_plugins().make("proposers", strategy), _Unmasked()
    engine = _TimedEngine(proposer.bind(replace(toy_host(vocab_size, reads_q=False), costs=lambda: costs)))
    bound, rule = Strategy(strategy, engine, proposer.wants()), MatchVerifier()
    target = Target(_WrittenBackend(written, vocab_size, compiler), compiler)
    requests = [_request(bound, text[:CONTEXT], target) for text in written]
    while True:
        record = step(Batch(target, [RequestTurn(request, target) for request in requests], "step", rule))
        num_nodes = sum(len(each.tree) - 1 for each in record.outcomes if each.tree is not None)
        num_tokens = sum(len(each.tokens) for each in record.outcomes)
        yield record.seconds["propose"] + engine.seconds, num_tokens, num_nodes


def _request(strategy: Strategy, prompt: list[int], target: Target) -> RequestState:
    """Return a request whose prompt is cached."""
    settings = Settings(max_new_tokens=1 << 20)
    warper = Warper(settings, len(prompt), (), target.shapes.device)
    request = RequestState(prompt, strategy, MatchVerifier(), settings, frozenset(), Randomness(0), warper)
    request.row = target.open(request.capacity)
    request.row.length = len(prompt) - 1
    request.drafter = strategy.engine.start(request.for_drafter(target.shapes.vocab_size))
    return request


def in_vllm(strategy: str, costs: Costs, written: Sequence[Sequence[int]], vocab_size: int) -> Steps:
    """Yield the figures of each step of vLLM's loop; its draft is verified in the next one."""
    from specdec_vllm import Proposer

    model = SimpleNamespace(
        get_vocab_size=lambda: vocab_size,
        hf_config=SimpleNamespace(eos_token_id=None),
        skip_tokenizer_init=True,
        max_model_len=len(written[0]),
    )
    config = SimpleNamespace(
        model_config=model,
        speculative_config=SimpleNamespace(num_speculative_tokens=NUM_DRAFTED),
        additional_config={"specdec": strategy.partition(":")[0]},
    )
    now = 0.0
    proposer = Proposer(config, clock=lambda: now)
    tokens, lengths = np.array(written, np.int32), np.full(len(written), CONTEXT)
    emitted = [[text[CONTEXT - 1]] for text in written]
    while True:
        began = time.perf_counter()
        drafts = proposer.propose(emitted, lengths, tokens)
        seconds = time.perf_counter() - began
        yield seconds, sum(map(len, emitted)), sum(map(len, drafts))
        emitted = [
            _verified(draft, text, int(length)) for draft, text, length in zip(drafts, written, lengths, strict=True)
        ]
        lengths += [len(new) for new in emitted]
        now += costs.at(len(written) + sum(map(len, drafts)))


def _verified(draft: Sequence[int], text: Sequence[int], length: int) -> list[int]:
    """Return the accepted draft tokens and the bonus token."""
    right = list(takewhile(lambda place: draft[place] == text[length + place], range(len(draft))))
    return list(text[length : length + len(right) + 1])


LOOPS: dict[str, Callable[..., Steps]] = {"specdec": in_specdec, "vllm": in_vllm}


def measure(loop: str, strategy: str, written: Sequence[Sequence[int]], vocab_size: int, num_steps: int) -> Row:
    """Measure a strategy with a row for each text."""
    (name, costs), num_rows = STRATEGIES[strategy], len(written)
    steps = list(islice(LOOPS[loop](name, costs, written, vocab_size), num_steps + 1))
    micros = [seconds * 1e6 / num_rows for seconds, *_ in steps]
    median, mean = statistics.median(micros[1:]), statistics.fmean(micros[1:])
    tokens, nodes = (statistics.fmean(step[place] for step in steps[1:]) / num_rows for place in (1, 2))
    return Row(loop, strategy, num_rows, micros[0], median, mean, tokens, nodes)


def report(rows: Sequence[Row]) -> str:
    """A table with a line for each loop, strategy and number of rows."""
    heading = ["loop", "strategy", "rows", "us per row: median", "mean", "first step", "tokens/step", "nodes/step"]
    lines = [
        [
            each.loop,
            each.strategy,
            str(each.num_rows),
            f"{each.median:.1f}",
            f"{each.mean:.1f}",
            f"{each.first:.0f}",
            f"{each.tokens_per_step:.2f}",
            f"{each.nodes_per_step:.1f}",
        ]
        for each in rows
    ]
    return table(heading, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--loop", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--profile", action="store_true", help="print the functions that take the time")
    parser.add_argument("--out", type=Path, default=Path("build/host_time"), help="path without .json and .md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads that spin after the model's operations would slow drafting
    (ids, vocab_size), length = corpus(), CONTEXT + 40 * (arguments.steps + 2)
    rows, profiler = list[Row](), cProfile.Profile()
    for loop, strategy, num_rows in product(arguments.loop, arguments.strategy, arguments.rows):
        starts = range(0, len(ids) - length, (len(ids) - length) // num_rows)[:num_rows]
        if arguments.profile:
            profiler.enable()
        rows.append(measure(loop, strategy, [ids[at : at + length] for at in starts], vocab_size, arguments.steps))
        profiler.disable()
    if arguments.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    head = [f"`{command('host_time')}`", facts()]
    write(arguments.out, "\n\n".join([*head, report(rows)]) + "\n", {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
