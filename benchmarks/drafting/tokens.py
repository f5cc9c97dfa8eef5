"""Tokens per step and nodes per step of strategies, by category of the prompts: counted, not timed.

    python -m benchmarks tokens
    python -m benchmarks tokens --model smollm2 --chat --per-category 5 --longest 640 --max-new-tokens 64 \\
        --prompts spec_bench.jsonl humaneval.jsonl --proposer prompt_lookup lookahead:N=5,W=7,G=7

Decoding is greedy, and end-of-text ids are ignored so that all texts have the same number of tokens. The report counts
the texts that continue after an end of text, since such text is easy to draft. A step's tokens include the model's own
last token, and a text's first step reads the prompt. A category's figure is all of its tokens over all of its steps.
``auto`` sizes its drafts by a clock, so its figures depend on the machine. A vocabulary that was prepared
(``specdec prepare``) is used where it is cached: ``XDG_CACHE_HOME`` names another cache folder.

Each text is compared with plain decoding's. In exact numerics the exit code is 1 if one differs. ``--out`` names a JSON
file with every run and a Markdown file.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from benchmarks.models import add_model_options, description, load_model
from benchmarks.prompts import EncodedPrompt, add_prompt_options, encoded_prompts
from benchmarks.report import command, write
from benchmarks.tables import table
from specdec import Generator
from specdec.decoding.result import Result
from specdec.errors import SpecdecError

PLAIN = "autoregressive"
PROPOSERS = (
    "prompt_lookup:num_tokens=3",
    "prompt_lookup",
    "prompt_lookup:num_matches=4",
    "lookahead:N=3,W=3,G=3",
    "lookahead:N=4,W=5,G=5",
    "lookahead:N=5,W=7,G=7",
    "jacobi",
)


@dataclass(frozen=True)
class Run:
    """One prompt, decoded by one strategy."""

    proposer: str
    prompt: int
    category: str
    num_tokens: int
    steps: int
    num_nodes: int
    is_plain: bool  # the text is plain decoding's


@dataclass(frozen=True)
class Row:
    """A strategy's figures."""

    proposer: str
    by_category: dict[str, float]  # tokens per step
    tokens_per_step: float
    nodes_per_step: float
    num_texts: int
    num_different: int


def generators(model: Any, tokenizer: Any, arguments: argparse.Namespace, stack: ExitStack) -> dict[str, Generator]:
    """A generator per strategy, plain decoding first."""
    options = {"numerics": arguments.numerics, "max_batch_size": arguments.max_batch_size}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lookahead with N=")  # that it is slow here is of no account
        return {
            name: stack.enter_context(Generator(model, tokenizer, proposer=name, **options))
            for name in dict.fromkeys([PLAIN, *(arguments.proposer or PROPOSERS)])
        }


def decode(generator: Generator, name: str, prompts: Sequence[EncodedPrompt], max_new_tokens: int) -> list[Result]:
    """Decode every prompt."""
    began = time.perf_counter()
    ids = [prompt.ids for prompt in prompts]
    results: list[Result] = generator.generate(ids, max_new_tokens=max_new_tokens, seed=0, eos_token_id=())
    for result in results:
        if result.error is not None:
            raise result.error
    print(f"{name}: {len(ids)} texts in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return results


def runs_of(name: str, prompts: Sequence[EncodedPrompt], own: Sequence[Result], plain: Sequence[Result]) -> list[Run]:
    """A strategy's figures by prompt, compared with plain decoding's texts."""
    return [
        Run(
            name,
            index,
            prompt.category,
            len(result.token_ids),
            result.stats.steps,
            result.stats.num_nodes,
            result.token_ids == expected.token_ids,
        )
        for index, (prompt, result, expected) in enumerate(zip(prompts, own, plain, strict=True))
    ]


def summarize(runs: Sequence[Run]) -> list[Row]:
    """A row per strategy, in the order of the run."""
    rows = []
    for name in dict.fromkeys(run.proposer for run in runs):
        own = [run for run in runs if run.proposer == name]
        groups = {run.category: [other for other in own if other.category == run.category] for run in own}
        rows.append(
            Row(
                proposer=name,
                by_category={category: _tokens_per_step(group) for category, group in groups.items()},
                tokens_per_step=_tokens_per_step(own),
                nodes_per_step=sum(run.num_nodes for run in own) / sum(run.steps for run in own),
                num_texts=len(own),
                num_different=sum(not run.is_plain for run in own),
            )
        )
    return rows


def _tokens_per_step(runs: Sequence[Run]) -> float:
    return sum(run.num_tokens for run in runs) / sum(run.steps for run in runs)


def tables(rows: Sequence[Row], categories: Sequence[str]) -> list[str]:
    """Tokens per step by category, and nodes per step."""
    counts = Counter(categories)
    heading = ["tokens per step", *(f"{name} ({count})" for name, count in counts.items()), "overall"]
    lines = (
        [f"`{row.proposer}`", *(f"{row.by_category[name]:.2f}" for name in counts), f"{row.tokens_per_step:.2f}"]
        for row in rows
    )
    others = (
        [f"`{row.proposer}`", f"{row.nodes_per_step:.1f}", f"{row.num_different} of {row.num_texts}"] for row in rows
    )
    return [table(heading, lines), table(["strategy", "nodes per step", "texts that differ"], others)]


def num_ended(results: Sequence[Result], model: Any) -> int:
    """Return the number of texts that have an end of text before their last token."""
    end = model.generation_config.eos_token_id
    ends = set(end) if isinstance(end, list) else {end}
    return sum(not ends.isdisjoint(result.token_ids[:-1]) for result in results)


def measure(arguments: argparse.Namespace) -> tuple[list[str], list[str], list[Run], bool]:
    """Decode all prompts; return facts of the run, categories, runs, and whether numerics were exact."""
    model, tokenizer = load_model(arguments)
    prompts = encoded_prompts(arguments, tokenizer)
    described, runs = description(model), list[Run]()
    with ExitStack() as stack:
        made = generators(model, tokenizer, arguments, stack)
        numerics, weights = made[PLAIN].numerics, made[PLAIN].weights
        plain = decode(made.pop(PLAIN), PLAIN, prompts, arguments.max_new_tokens)
        for name, generator in made.items():
            runs += runs_of(name, prompts, decode(generator, name, prompts, arguments.max_new_tokens), plain)
    length = statistics.median(len(prompt.ids) for prompt in prompts)
    what = f"prompts: {len(prompts)} (median length {length:g}), new tokens: {arguments.max_new_tokens}, "
    what += f"texts that continue after an end of text: {num_ended(plain, model)}"
    head = [f"`{command('tokens')}`", facts(), f"{described}; numerics: {numerics}; weights: {weights}", what]
    return head, [prompt.category for prompt in prompts], runs, numerics.is_bit_exact


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proposer", action="extend", nargs="+", help="one or several; default: seven of three kinds")
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--max-batch-size", type=int, default=8, help="prompts side by side: it changes no figure")
    parser.add_argument("--out", type=Path, default=Path("build/tokens"), help="path without .json and .md")
    arguments = parser.parse_args()
    try:
        head, categories, runs, is_exact = measure(arguments)
    except SpecdecError as error:
        raise SystemExit(str(error)) from None
    rows = summarize(runs)
    report = "\n\n".join([*head, *tables(rows, categories)]) + "\n"
    named = dict(zip(("command", "machine", "model", "prompts"), head, strict=True))
    data = {**named, "rows": [asdict(row) for row in rows], "runs": [asdict(run) for run in runs]}
    write(arguments.out, report, data)
    return int(is_exact and any(row.num_different for row in rows))


if __name__ == "__main__":
    sys.exit(main())
