"""The longest pause of streaming requests while a long prompt is read.

    python -m benchmarks pause [--model FOLDER] [--dtype bfloat16] [--threads 2] [--tokens 4000] [--streams 4]
    python -m benchmarks pause --model smollm2 --dtype float32 --numerics fast

Some requests stream in one batch; then a request with a long prompt joins. The time between two commits of each
streaming request is measured until all have made a step with the new request. The longest pause is compared with the
pass of one chunk alone (median and maximum) plus the streaming requests' own earlier step (median), all from the same
run; the aim is at most 1.5 times their sum. The last pause is reported separately: it includes the long request's first
step with its draft, and a step after its context.

A first run isn't counted. The report ends with the passes of the longest pause: milliseconds, rows, nodes per row, and
slots that the longest row sees; "beside" is time outside of these passes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from benchmarks.machine import facts
from benchmarks.models import add_model_options, description, load_model
from benchmarks.speed.overhead import text_of
from benchmarks.tables import table
from specdec import Generator
from specdec.decoding.request_state import RequestState as Request
from specdec.decoding.scheduler import Scheduler
from specdec.errors import RequestError, SpecdecError
from specdec.record import StepRecord
from specdec.requests.generation_request import GenerationRequest
from specdec.runtime.binding import Binding

PROPOSERS = ("autoregressive", "lookahead:N=5,W=7,G=7", "draft_model:layers=2")
OWN_PROMPT, WARM_UP, OWN_STEPS = 128, 8, 24  # tokens of a streaming request's prompt; steps before and in the median
NEW_TOKENS = 16  # of the long prompt's request, which decodes with the others once its prompt is read
MOST_AT_ONCE = 12  # tokens per step, on average, that streaming requests have room for
MOST = 1.5


@dataclass(frozen=True, slots=True)
class Advance:
    """One call of the scheduler: the record of its pass, and when it began and ended."""

    record: StepRecord
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """The whole call's."""
        return self.ended - self.began

    @property
    def committed(self) -> list[Request]:
        """The requests that have new tokens."""
        return [outcome.request for outcome in self.record.outcomes if outcome.tokens]

    def __str__(self) -> str:
        record = self.record
        size = f"{record.num_rows} x {record.width} nodes, {record.num_positions} slots"
        return f"{record.kind} ({size}) {1e3 * record.total_seconds:.1f}"


@dataclass(frozen=True, slots=True)
class Pause:
    """The time between two commits of a request, and the calls of the scheduler in it."""

    seconds: float
    calls: tuple[Advance, ...]

    def has(self, kind: str) -> bool:
        """Return True if a pass of some kind lies in it."""
        return any(call.record.kind == kind for call in self.calls)

    def __str__(self) -> str:
        beside = self.seconds - sum(call.record.total_seconds for call in self.calls)
        return f"{' + '.join(map(str, self.calls))} + beside {1e3 * beside:.1f}"


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of chunks alone and of the streaming requests' own steps, and the pauses while the prompt is read.

    ``last`` is the long request's first step alone: the rest of its prompt with its first draft.
    """

    chunks: tuple[float, ...]
    last: float
    steps: tuple[float, ...]
    pauses: tuple[Pause, ...]

    @property
    def longest(self) -> Pause:
        """The longest pause of any request."""
        return max(self.pauses, key=lambda pause: pause.seconds)

    @property
    def longest_with_chunk(self) -> Pause:
        """The longest of the pauses in which a chunk was read."""
        return max((pause for pause in self.pauses if pause.has("chunk")), key=lambda pause: pause.seconds)

    def over(self, pause: Pause, chunk: float) -> float:
        """A pause over the time of a chunk and of the streaming requests' own step."""
        return pause.seconds / (chunk + statistics.median(self.steps))


def advances(scheduler: Scheduler) -> Iterator[Advance]:
    """Advance a scheduler pass by pass."""
    while True:
        began = time.perf_counter()
        record = scheduler.advance()
        if record is None:
            return
        yield Advance(record, began, time.perf_counter())


def pauses(calls: Sequence[Advance], requests: Sequence[Request]) -> list[Pause]:
    """The times between successive commits of each request, including its first."""
    found = []
    for request in requests:
        places = [place for place, call in enumerate(calls) if request in call.committed]
        for before, after in pairwise(places):
            passed = calls[after].ended - calls[before].ended
            found.append(Pause(passed, tuple(calls[before + 1 : after + 1])))
    return found


def alone(bound: Binding, prompt: Sequence[int]) -> tuple[tuple[float, ...], float]:
    """The seconds of a prompt's chunks and of its request's first step, without other requests."""
    scheduler = scheduler_of(bound)
    (request,) = requests_of(bound, [prompt], new_tokens=1)
    scheduler.enqueue(request)
    calls = list(advances(scheduler))
    if request.error is not None:
        raise request.error
    return tuple(call.seconds for call in calls if call.record.kind == "chunk"), calls[-1].seconds


def beside(
    bound: Binding, prompts: Sequence[Sequence[int]], long_prompt: Sequence[int]
) -> tuple[list[Pause], list[Pause]]:
    """The pauses of streaming requests before a long prompt comes, and from then on until all make a step together."""
    scheduler = scheduler_of(bound)
    num_steps = WARM_UP + OWN_STEPS + len(long_prompt) // bound.target.shapes.chunk + 4
    streaming = requests_of(bound, prompts, num_steps * MOST_AT_ONCE)
    (long,) = requests_of(bound, [long_prompt], NEW_TOKENS)
    for request in streaming:
        scheduler.enqueue(request)
    try:
        calls = advances(scheduler)
        while not all(request.stats.steps >= WARM_UP for request in streaming):
            next(calls)
        own = list(islice(calls, 1 + OWN_STEPS))
        scheduler.enqueue(long)
        reading = own[-1:]
        while not (long.stats.steps and streaming[0] in reading[-1].committed):
            reading.append(next(calls))
            for request in (long, *streaming):
                if request.is_finished:
                    raise request.error or RequestError("a streaming request ended before the long prompt was read")
    finally:
        scheduler.close()
    return pauses(own, streaming), pauses(reading, streaming)


def scheduler_of(bound: Binding) -> Scheduler:
    """A scheduler as a generator makes it, without a limit on the number of requests."""
    flags_ties = bound.numerics.noise > 0.0
    return Scheduler(bound.target, bound.fallback, max_batch_size=sys.maxsize, flags_ties=flags_ties)


def requests_of(bound: Binding, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Request]:
    """Requests with the generator's own strategy that write ``max_new_tokens`` tokens.

    Raises:
        RequestError: if a prompt leaves no room for them.
    """
    settings = {"max_new_tokens": new_tokens, "eos_token_id": (), "seed": 0}
    made = []
    question = GenerationRequest([list(prompt) for prompt in prompts], settings)
    for request in bound.builder.build(question, [bound.strategies.own]):
        if isinstance(request, Exception):
            raise request
        made.append(request)
    return made


def measure(generator: Generator, tokens: Sequence[int], num_streams: int, repeats: int) -> Iterator[Run]:
    """Runs with a long prompt, of which each streaming request has a short piece; a first run is not counted."""
    prompts = [tokens[start : start + OWN_PROMPT] for start in range(num_streams)]
    with generator._binding.alone() as bound:  # a server would hold it so
        for repeat in range(1 + repeats):
            chunks, last = alone(bound, tokens)
            own, reading = beside(bound, prompts, tokens)
            if repeat:
                yield Run(chunks, last, tuple(pause.seconds for pause in own), tuple(reading))


def line(name: str, run: Run) -> list[str]:
    """A run's row of the table."""
    middle, largest = statistics.median(run.chunks), max(run.chunks)
    cells = [
        f"`{name}`",
        f"{1e3 * statistics.median(run.steps):.1f}",
        f"{1e3 * middle:.1f} / {1e3 * largest:.1f}",
        f"{1e3 * run.last:.1f}",
    ]
    for pause in (run.longest_with_chunk, run.longest):
        over = f"{run.over(pause, middle):.2f} / {run.over(pause, largest):.2f}"
        cells.append(f"{1e3 * pause.seconds:.1f}: {over}")
    return [*cells, str(run.longest)]


HEADING = (
    "strategy",
    "own step, ms",
    "a chunk alone, ms: median / largest",
    "first step alone, ms",
    "longest pause with a chunk, ms: over median / largest chunk and own step",
    "longest pause of all",
    "what that one has, ms",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--numerics", choices=("auto", "exact", "fast"), default="auto")
    parser.add_argument("--proposers", nargs="+", default=PROPOSERS)
    parser.add_argument("--tokens", type=int, default=4000, help="of the long prompt")
    parser.add_argument("--streams", type=int, default=4, help="requests that stream")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    tokens = text_of(tokenizer, arguments.tokens)
    print(f"{facts()}\n\n{description(model)}\n")
    print(
        f"{arguments.streams} requests stream; then one comes with {arguments.tokens} tokens. Wanted: at most {MOST}.\n"
    )
    print(table(HEADING, []), flush=True)
    try:
        for proposer in arguments.proposers:
            with Generator(model, proposer=proposer, numerics=arguments.numerics) as generator:
                described = (
                    f"{generator.numerics}; weights {generator.weights}; chunks of {generator.shapes.chunk} tokens"
                )
                for run in measure(generator, tokens, arguments.streams, arguments.repeats):
                    print(f"| {' | '.join(line(proposer, run))} |", flush=True)
        print(f"\nNumerics: {described}")
    except SpecdecError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
