"""specdec against its peers: same weights, prompts and token counts, interleaved, each contender in its own process.

    python -m benchmarks compare
    python -m benchmarks compare --contender specdec:prompt_lookup --contender lade --python lade=lade_env/bin/python

A contender is PEER or PEER:METHOD; the peer's file in ``benchmarks/peers/`` lists its methods. By default all peers
with an environment of ``python -m benchmarks environments`` take part. Each contender holds its own copy of the model.
``--ladder model``, or ``int8`` or ``int4`` for rounded weights, selects the fastest ways of each engine instead. Plain
``transformers`` is the baseline and always runs. Decoding is greedy, without an end of text unless ``--end-of-text`` is
given, one contender at a time while the other processes are stopped, in random order for each prompt and repeat.

Each contender first decodes for the same time, ``--warm-up`` seconds, which isn't measured: engines that compile, pack
or rearrange weights while they run are in their steady state then. ``--at-once N`` bounds memory: contenders are
measured in groups of N processes. The baseline, and the contender of ``--over``, stay and take part in each group, so
ratios to them are of one interleaved run; compare contenders of two groups by these ratios.

The table has the median speed over repeats; the speed over the baseline, median [quartiles], by repeat and by prompt;
acceptance and step time; and peak memory, over the loaded model and with it. ``--over`` adds the speed over another
contender. If prompts have categories, a second table has the speed over the baseline by category. Texts of contenders
with the option ``schema`` are validated. ``--out`` names a JSON file with every run and a Markdown file. The exit code
is 1 if a contender failed.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks import environments
from benchmarks.interleaved import Measurement, Rounds, measure
from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, description
from benchmarks.peers.models import load
from benchmarks.peers.process import Setup
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.report import command, without_folders, without_paths, write
from benchmarks.speed.contenders import BASELINE, contenders, ladder
from benchmarks.summary import Row, summarize
from benchmarks.tables import category_table, cost_table, phase_table, speed_table
from benchmarks.validity import validity_table
from specdec import Generator
from specdec.costs import Costs
from specdec.runtime.probes.costs import measure_costs

COST_REPEATS = 5  # of each number of nodes


def describe(folder: Path, dtype: str, with_costs: bool) -> tuple[str, Costs | None]:
    """Return a description of the model, and the costs of its passes in fast numerics, None with ``--no-costs``."""
    model = load(folder, dtype)
    if not with_costs:
        return description(model), None
    target = Generator(model, proposer="autoregressive", numerics="fast").open_target()
    return description(model), measure_costs(target, repeats=COST_REPEATS)


def ends_of_text(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end a text, as the checkpoint's generation config has them, or else its tokenizer.

    Raises:
        SystemExit: if neither has any.
    """
    path = folder / "generation_config.json"
    known = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
    known = tokenizer.eos_token_id if known is None else known
    if known is None:
        raise SystemExit(f"{folder.name} has no token that ends a text: leave --end-of-text out")
    return tuple(known) if isinstance(known, list) else (known,)


def head_folder(given: str) -> str:
    """The absolute path of ``--head``, since contenders run in another folder.

    Raises:
        argparse.ArgumentTypeError: if there is no such folder, or if a contender's name can't contain its path.
    """
    folder = Path(given).resolve()
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {folder}")
    if {*str(folder)} & {"+", ","}:
        raise argparse.ArgumentTypeError(f"{folder}: + and , separate a contender's options: use a path without them")
    return str(folder)


def markdown(head: list[str], rows: list[Row], found: Measurement, costs: Costs | None) -> str:
    """The whole report; ``head`` ends with the tables of speed."""
    parts = [*head]
    if phases := phase_table(rows):
        parts += ["Where a step's time goes:", phases]
    if costs is not None:
        parts += ["What a pass over T nodes costs (median; half of them a chain, the others below the root):"]
        parts += [cost_table(costs)]
    parts += [f"`{name}` failed:\n\n```text\n{reason}\n```" for name, reason in found.failures.items()]
    peers = {name.partition(":")[0]: versions for name, versions in found.versions.items()}
    parts += ["\n".join(f"- {peer}: {versions}" for peer, versions in peers.items())]
    return "\n\n".join(parts) + "\n"


def speeds(rows: list[Row], categories: list[str], other: str | None) -> list[str]:
    """The tables of speed: over all prompts, and by category."""
    tables = [speed_table(rows, BASELINE, other)]
    if by_category := category_table(rows, categories):
        tables += [
            f"Times {BASELINE} by category, the median over its prompts (their number in brackets):",
            by_category,
        ]
    return tables


def data(rows: list[Row], found: Measurement, costs: Costs | None, facts_of_run: dict[str, Any]) -> dict[str, Any]:
    """Everything as JSON, with a run's number of tokens instead of the tokens."""
    runs = [{**asdict(run), "tokens": len(run.tokens)} for run in found.runs]
    return {
        **facts_of_run,
        "versions": found.versions,
        "rows": [asdict(row) for row in rows],
        "costs": None if costs is None else {**asdict(costs), "relative": costs.relative},
        "failures": found.failures,
        "runs": runs,
    }


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Contenders' names without folders, by their full names; with them if two would be the same."""
    short = {name: without_folders(name) for name in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in names}


def renamed(found: Measurement, new: Mapping[str, str]) -> Measurement:
    """A measurement with other names of its contenders, and without the machine's paths in its failures."""
    return Measurement(
        {new[name]: version for name, version in found.versions.items()},
        [replace(run, contender=new[run.contender]) for run in found.runs],
        {new[name]: without_paths(reason) for name, reason in found.failures.items()},
    )


def _arguments() -> tuple[argparse.Namespace, dict[str, str], list[str]]:
    """The command line, the peers' Pythons and the contenders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", action="append", metavar="PEER[:METHOD]", help="may be given several times")
    parser.add_argument("--ladder", choices=["model", "int8", "int4"], help="weights of the ladder's contenders")
    parser.add_argument("--head", type=head_folder, metavar="FOLDER", help="a trained head, for --ladder")
    parser.add_argument("--end-of-text", action="store_true", help="let a text end where the model ends it")
    parser.add_argument("--over", metavar="CONTENDER", help="a contender to compare all speeds with as well")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's own Python")
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=30, metavar="SECONDS", help="of each contender, not measured")
    parser.add_argument("--at-once", type=int, metavar="N", help="contenders in memory at a time (default: all)")
    parser.add_argument("--costs", action=argparse.BooleanOptionalAction, default=True, help="measure c(T) first")
    parser.add_argument("--out", type=Path, default=Path("build/benchmark"), help="path without .json and .md")
    arguments = parser.parse_args()
    if arguments.head and not arguments.ladder:
        parser.error("--head is for --ladder: give that too, or name the head in --contender")
    given = {peer: str(Path(path).absolute()) for peer, path in (pair.split("=", 1) for pair in arguments.python)}
    pythons = {**environments.pythons(), **given}
    given_names = arguments.contender
    if arguments.ladder:
        given_names = ladder(arguments.ladder, arguments.head or "") + (given_names or [])
    names = contenders(given_names, pythons)
    if arguments.over not in (None, *names):
        parser.error(f"--over {arguments.over} is none of the contenders: {', '.join(names)}")
    least = 1 + len(references(arguments.over))
    if arguments.at_once is not None and arguments.at_once < least:
        parser.error(f"--at-once {arguments.at_once}: at least {least}, since {least - 1} of them stay for all groups")
    return arguments, pythons, names


def references(over: str | None) -> list[str]:
    """The contenders that all others are compared with."""
    return list(dict.fromkeys([BASELINE, *([over] if over else [])]))


def main() -> None:
    arguments, pythons, names = _arguments()
    arguments.model = checkpoint(arguments)
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    encoded = encoded_prompts(arguments, tokenizer)
    prompts, categories = [prompt.ids for prompt in encoded], [prompt.category for prompt in encoded]
    eos = ends_of_text(arguments.model, tokenizer) if arguments.end_of_text else ()
    setup = Setup(arguments.model, arguments.dtype, arguments.threads, pythons, eos)
    rounds = Rounds(arguments.max_new_tokens, arguments.repeats, arguments.warm_up, arguments.at_once)
    try:
        described, costs = describe(arguments.model, arguments.dtype, arguments.costs)
        gc.collect()  # the model goes before the contenders come with theirs
        found = measure(names, setup, prompts, rounds, references(arguments.over))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    length = statistics.median(map(len, prompts))
    limit = f"{'at most ' if eos else ''}{arguments.max_new_tokens}"
    what = f"prompts: {len(prompts)} (median length {length:g}), new tokens: {limit}, "
    what += f"repeats: {arguments.repeats}, warm-up: {arguments.warm_up:g} s each"
    head = [f"`{command('compare')}`", facts(), described, what]
    valid = validity_table(found.runs, partial(tokenizer.decode, skip_special_tokens=True), arguments.max_new_tokens)
    short = short_names(names)
    found, over = renamed(found, short), short.get(arguments.over)
    rows = summarize(found, BASELINE, categories, over)
    named = dict(zip(("command", "machine", "model", "prompts"), head, strict=True))
    tables = speeds(rows, categories, over) + (["Texts under a schema:", valid] if valid else [])
    report = markdown([*head, *tables], rows, found, costs)
    write(arguments.out, report, data(rows, found, costs, {**named, "categories": categories}))
    if found.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
