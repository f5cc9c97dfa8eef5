"""specdec against its peers: same weights, prompts and token counts, interleaved, each contender in its own process.

    python -m benchmarks compare
    python -m benchmarks compare --contender specdec:prompt_lookup --contender lade --python lade=lade_env/bin/python

A contender is PEER or PEER:METHOD; the peer's file in ``benchmarks/peers/`` lists its methods. By default all peers
with an environment of ``python -m benchmarks environments`` take part. Each contender holds its own copy of the model.
Plain ``transformers`` is the baseline and always runs. Decoding is greedy, without an end of text, after a warm-up, one
contender at a time while the other processes are stopped, in random order for each prompt and repeat.

The table has the median speed over repeats; the speed over the baseline, median [quartiles], by repeat and by prompt;
acceptance and step time; and peak memory over the loaded model. ``--over`` adds the speed over another contender. If
prompts have categories, a second table has the speed over the baseline by category. Texts of contenders with the option
``schema`` are validated. ``--out`` names a JSON file with every run and a Markdown file. The exit code is 1 if a
contender failed.
"""

import argparse
import gc
import statistics
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks import environments
from benchmarks.interleaved import Measurement, measure
from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, description
from benchmarks.peers.models import load
from benchmarks.peers.process import Setup
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.report import command, write
from benchmarks.summary import Row, summarize
from benchmarks.tables import category_table, cost_table, phase_table, speed_table
from benchmarks.validity import validity_table
from specdec import Generator
from specdec.costs import Costs
from specdec.probes.costs import measure_costs

BASELINE = "transformers"
COST_REPEATS = 5  # of each number of nodes
HERE = (
    "transformers:prompt_lookup_num_tokens=10,max_matching_ngram_size=2",
    "transformers:prompt_lookup_num_tokens=3,max_matching_ngram_size=2",
    "transformers:assistant=demo_drafter,num_assistant_tokens=5,assistant_confidence_threshold=0.4",
    "specdec:autoregressive",
    "specdec:autoregressive+numerics=exact",
    "specdec:auto",
    "specdec:prompt_lookup:max_ngram=2,num_tokens=10,prefer=first",
    "specdec:prompt_lookup:max_ngram=2,num_tokens=3",
    "specdec:prompt_lookup:max_ngram=2,num_tokens=3+numerics=exact",
    "specdec:lookahead:N=5,W=7,G=7",
    "specdec:draft_model:model=demo_drafter,num_tokens=5,confidence=0.4",
)
ELSEWHERE = {  # these run where an environment is given, or was made
    "specdec": ("specdec:autoregressive+backend=openvino", "specdec:auto+backend=openvino"),
    "lade": ("lade:N=5,W=7,G=7",),
    "vllm": (
        "vllm",
        "vllm:method=ngram,num_speculative_tokens=10,prompt_lookup_max=2,prompt_lookup_min=1",
        "vllm:method=suffix",
        "vllm:method=custom_class,model=specdec_vllm.Proposer,num_speculative_tokens=16",
    ),
    "openvino": (
        "openvino",
        "openvino:prompt_lookup=5,max_ngram_size=3",
        "openvino:precision=default",
        "openvino:prompt_lookup=5,max_ngram_size=3,precision=default",
    ),
}


def contenders(given: list[str] | None, pythons: dict[str, str]) -> list[str]:
    """The selected contenders, or all with an environment; the baseline first."""
    default = [*HERE, *(name for peer in pythons for name in ELSEWHERE.get(peer, ()))]
    return list(dict.fromkeys([BASELINE, *(default if given is None else given)]))


def describe(folder: Path, dtype: str, with_costs: bool) -> tuple[str, Costs | None]:
    """Return a description of the model, and the costs of its passes in fast numerics, None with ``--no-costs``."""
    model = load(folder, dtype)
    if not with_costs:
        return description(model), None
    target = Generator(model, proposer="autoregressive", numerics="fast").open_target()
    return description(model), measure_costs(target, repeats=COST_REPEATS)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", action="append", metavar="PEER[:METHOD]", help="may be given several times")
    parser.add_argument("--over", metavar="CONTENDER", help="one of them, to hold the speed of all against as well")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's own Python")
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--costs", action=argparse.BooleanOptionalAction, default=True, help="measure c(T) first")
    parser.add_argument("--out", type=Path, default=Path("build/benchmark"), help="path without .json and .md")
    arguments = parser.parse_args()
    given = {peer: str(Path(path).absolute()) for peer, path in (pair.split("=", 1) for pair in arguments.python)}
    pythons = {**environments.pythons(), **given}
    names = contenders(arguments.contender, pythons)
    if arguments.over not in (None, *names):
        parser.error(f"--over {arguments.over} is none of the contenders: {', '.join(names)}")
    arguments.model = checkpoint(arguments)
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    encoded = encoded_prompts(arguments, tokenizer)
    prompts, categories = [prompt.ids for prompt in encoded], [prompt.category for prompt in encoded]
    setup = Setup(arguments.model, arguments.dtype, arguments.threads, pythons)
    try:
        described, costs = describe(arguments.model, arguments.dtype, arguments.costs)
        gc.collect()  # the model goes before the contenders come with theirs
        found = measure(names, setup, prompts, arguments.max_new_tokens, arguments.repeats)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    length = statistics.median(map(len, prompts))
    what = f"prompts: {len(prompts)} (median length {length:g}), new tokens: {arguments.max_new_tokens}, "
    head = [f"`{command('compare')}`", facts(), described, what + f"repeats: {arguments.repeats}"]
    rows = summarize(found, BASELINE, categories, arguments.over)
    named = dict(zip(("command", "machine", "model", "prompts"), head, strict=True))
    tables = speeds(rows, categories, arguments.over)
    if valid := validity_table(
        found.runs, partial(tokenizer.decode, skip_special_tokens=True), arguments.max_new_tokens
    ):
        tables += ["Texts under a schema:", valid]
    report = markdown([*head, *tables], rows, found, costs)
    write(arguments.out, report, data(rows, found, costs, {**named, "categories": categories}))
    if found.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
