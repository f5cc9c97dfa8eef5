"""Estimates what could be gained by drafting during the target's pass, in the best case.

    python -m benchmarks overlap --model smollm2 --head HEAD [--backend openvino] [--dtype bfloat16]

The first table has passes without and with work in another thread: a suffix index that gets tokens, and a head's passes
on one core. The second has real decoding by `auto`, without and with the head. A draft can only begin before the pass
has ended if its outcome is guessed: the accepted path, and the token after it by the most probable candidate that isn't
in the draft. The bound counts drafting as saved if the guess was right, as if tokens were all that it needs (a head
reads hidden states too), less what passes of all sizes lose on average.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks.drafting.head_passes import Draft
from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.report import command, write
from benchmarks.tables import table
from specdec import Generator
from specdec.heads.eagle3_folder import read_head
from specdec.heads.files import TargetWeights
from specdec.models.loading import load_pretrained
from specdec.record import StepRecord
from specdec.strategies.sources.trie import SuffixTrie
from specdec.tree import ROOT, DraftTree

CONTEXT, SIZES, INDEXED, HEAD_PASSES = 128, (1, 6, 8), 96, 3  # tokens before passes, in and beside them; passes beside
ROUNDS, MS = 24, 1e3
STRATEGIES = {"index": "auto:head=false", "head": "auto:head=false+eagle3:head={}"}  # by the work that is like theirs
PASSES = "work", "tokens", "pass, ms", "work after it", "both, in turn", "pass beside work", "both at once"
DECODED = "strategy", "steps", "tokens/step", "ms per step", "of it drafting", "paths guessed", "outcomes guessed"
DECODED += "saved, ms", "lost, ms", "gain at most, ms", "of the step"

Work = Callable[[], object]


def works(text: Sequence[int], folder: Path, model: str) -> dict[str, Work]:
    """Return work: tokens that enter an index, and a head's draft on one core."""
    from specdec_openvino.heads.runner import OpenVINORunner
    from specdec_openvino.options import OpenVINOOptions

    trie, parts = SuffixTrie(depth=16), cycle([text[start:][:INDEXED] for start in range(0, len(text), INDEXED)])
    target, _ = load_pretrained(model, dtype="bfloat16")
    embeddings = target.get_input_embeddings().weight.detach()
    weights = TargetWeights(embeddings, lambda: embeddings, target.config.num_hidden_layers)
    head = OpenVINORunner(read_head(folder, weights, torch.bfloat16), 4, OpenVINOOptions(threads=1), is_quantized=True)
    return {"index": lambda: trie.extend(next(parts)), "head": partial(Draft(head, 1, CONTEXT).seconds, HEAD_PASSES)}


def at_once(forward: Work, work: Work, pool: ThreadPoolExecutor) -> tuple[float, ...]:
    """Return the milliseconds of a pass, of work after it, of both, of a pass beside work, and of both at once."""
    times, begun = [time.perf_counter()], list[Future[object]]()
    for call in (forward, work, lambda: begun.append(pool.submit(work)), forward, lambda: wait(begun)):
        call()
        times.append(time.perf_counter())
    return tuple(MS * (times[stop] - times[start]) for start, stop in ((0, 1), (1, 2), (0, 2), (2, 4), (2, 5)))


def passes(generator: Generator, tokens: Sequence[int], beside: Mapping[str, Work]) -> Iterator[list[Any]]:
    """Yield a line of medians for each size of passes and kind of work."""
    target = generator.open_target()
    row = target.open(2 * CONTEXT)
    target.read_all(row, tokens[:CONTEXT])

    def forward(tree: DraftTree) -> None:
        planned = target.compile({row: tree})
        target.forward(planned)
        target.commit(planned, {})

    with ThreadPoolExecutor(1) as pool:
        for size in SIZES:
            tree = DraftTree(tokens[CONTEXT])
            tree.add_chain(ROOT, tokens[CONTEXT + 1 :][: size - 1])
            for name, work in beside.items():
                taken = [at_once(partial(forward, tree), work, pool) for _ in range(ROUNDS)]
                yield [name, size, *map(median, zip(*taken[ROUNDS // 4 :], strict=True))]
    target.close()


def guessed(record: StepRecord) -> tuple[bool, bool]:
    """Return whether the accepted path was the most likely one, and so the whole outcome; False without a draft."""
    (outcome,) = record.outcomes
    tree, growth = outcome.tree, getattr(getattr(outcome.request, "drafter", None), "growth", None)
    if tree is None or growth is None:
        return False, False
    ends, others = list[float](), dict[tuple[int, int], float]()
    for node in range(len(tree)):
        children = {tree.tokens[child]: child for child in range(len(tree)) if tree.parents[child] == node}
        likely, candidates = growth.probabilities[node], growth.candidates[node].items()
        ends.append(likely - sum(growth.probabilities[child] for child in children.values()))
        others.update({(node, token): likely * rate.value for token, rate in candidates if token not in children})
    end, best = outcome.path[-1], max(others, key=others.__getitem__, default=None)
    return ends[end] == max(ends), best == (end, outcome.tokens[-1])


def decode(generator: Generator, prompts: Sequence[list[int]], proposer: str, num_tokens: int) -> list[float]:
    """Return the number of steps, and means per step: tokens, milliseconds, those of drafting, right guesses, saved."""
    found = list[tuple[float, ...]]()

    def note(record: StepRecord) -> None:
        if record.kind == "step":
            seconds = MS * record.total_seconds, MS * record.seconds["propose"]
            is_path, is_outcome = guessed(record)
            found.append((len(record.outcomes[0].tokens), *seconds, is_path, is_outcome, is_outcome * seconds[1]))

    generator.generate(prompts[0], max_new_tokens=num_tokens, proposer=proposer)
    for prompt in prompts:
        generator.generate(prompt, max_new_tokens=num_tokens, proposer=proposer, on_step=note)
    return [len(found), *map(mean, zip(*found, strict=True))]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--head", type=Path, required=True, help="folder of an EAGLE-3 head")
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--out", type=Path, default=Path("build/overlap"), help="path without .json and .md")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    folder, decoded = str(checkpoint(arguments)), list[list[Any]]()
    options = {"backend": arguments.backend, "dtype": arguments.dtype, "background_work": False}
    with Generator(folder, proposer=STRATEGIES["index"], numerics="fast", **options) as generator:
        prompts = [prompt.ids for prompt in encoded_prompts(arguments, generator.tokenizer)]
        text = [token for prompt in prompts for token in prompt]
        timed = list(passes(generator, text, works(text, arguments.head, folder)))
        for work, strategy in STRATEGIES.items():
            found = decode(generator, prompts, strategy.format(arguments.head), arguments.tokens)
            step, saved = found[2], found[-1]
            lost = mean(line[-1] - line[2] for line in timed if line[0] == work)
            name = "auto" if work == "index" else "auto+eagle3"
            decoded.append([name, *found, lost, saved - lost, (saved - lost) / step])
    lines = [[[line[0], *(f"{each:.3g}" for each in line[1:])] for line in part] for part in (timed, decoded)]
    parts = [f"`{command('overlap')}`", facts(), table(PASSES, lines[0]), table(DECODED, lines[1])]
    write(arguments.out, "\n\n".join(parts) + "\n", {"command": parts[0], "passes": timed, "decoded": decoded})


if __name__ == "__main__":
    main()
