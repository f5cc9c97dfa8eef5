"""specdec beside its peers: same weights, prompts and token counts, interleaved, each contender a process of its own.

    python -m benchmarks compare
    python -m benchmarks compare --contender specdec:prompt_lookup --contender lade --python lade=lade_env/bin/python

A contender is PEER or PEER:METHOD; ``benchmarks/peers/`` has a file for each peer, which says what methods there are
and how its environment is made. Each contender holds its own copy of the model. Plain ``transformers`` is the baseline
and always runs. Decoding is greedy with the end of text off, after a warm-up, one contender at a time, in random order
for each prompt and repeat.

The table gives the median speed over repeats; how many times as fast as the baseline, median [quartiles], over repeats
and over prompts; acceptance and the cost of a step apart; and the most memory over the loaded model, from when the
weights are there (code that is loaded later counts). ``--out`` names a JSON file with every run and a Markdown file.
The exit code is 1 where a contender failed.
"""

import argparse
import gc
import json
import re
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.interleaved import Measurement, measure
from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint
from benchmarks.peers.models import load
from benchmarks.peers.process import Setup
from benchmarks.summary import Row, summarize
from benchmarks.tables import cost_table, phase_table, speed_table
from specdec import Generator
from specdec.comparison.prompts import demo_prompts, load_prompts, select
from specdec.costs import Costs, measure_costs
from specdec.prompts import encode

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
ELSEWHERE = {  # these run where an environment is given
    "lade": ("lade:N=5,W=7,G=7",),
    "vllm": (
        "vllm",
        "vllm:method=ngram,num_speculative_tokens=10,prompt_lookup_max=2,prompt_lookup_min=1",
        "vllm:method=suffix",
    ),
}


def contenders(given: list[str] | None, pythons: dict[str, str]) -> list[str]:
    """Those asked for, or all that can run; the baseline first."""
    default = [*HERE, *(name for peer in pythons for name in ELSEWHERE.get(peer, ()))]
    return list(dict.fromkeys([BASELINE, *(default if given is None else given)]))


def encoded(arguments: argparse.Namespace) -> list[list[int]]:
    """The prompts' token ids, evenly spread over those there are where fewer are wanted."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    sources = [load_prompts(path) for path in arguments.prompts] or [demo_prompts()]
    categories = [arguments.category] if arguments.category else []
    texts = [prompt.prompt for source in sources for prompt in select(source, categories, arguments.per_category)]
    given = [[{"role": "user", "content": text}] if arguments.chat else text for text in texts]
    found = [encode(prompt, tokenizer, len(tokenizer)) for prompt in given]
    found = [ids for ids in found if len(ids) <= arguments.longest]
    count = min(arguments.num_prompts or len(found), len(found))
    return [found[index * len(found) // count] for index in range(count)]


def describe(folder: Path, dtype: str, with_costs: bool) -> tuple[str, Costs | None]:
    """What the model is, and what its passes cost in fast numerics."""
    model = load(folder, dtype)
    config, parameters = model.config, model.num_parameters() / 1e6
    described = f"{type(model).__name__}, {parameters:.4g} million parameters, width {config.hidden_size}, "
    described += f"{config.num_hidden_layers} layers, {dtype}"
    widened_from = getattr(config, "widened_from", None)
    if widened_from is not None:
        described += f"; widened from {widened_from}: its text, so its acceptance, and a large model's step costs"
    if not with_costs:
        return described, None
    driver = Generator(model, proposer="autoregressive", numerics="fast").driver()
    return described, measure_costs(driver, repeats=COST_REPEATS)


def markdown(head: list[str], rows: list[Row], found: Measurement, costs: Costs | None) -> str:
    """The whole report."""
    parts = [*head, speed_table(rows, BASELINE)]
    if phases := phase_table(rows):
        parts += ["Where a step's time goes:", phases]
    if costs is not None:
        parts += ["What a pass over T nodes costs (median; half of them a chain, the others below the root):"]
        parts += [cost_table(costs)]
    parts += [f"`{name}` failed:\n\n```text\n{reason}\n```" for name, reason in found.failures.items()]
    peers = {name.partition(":")[0]: versions for name, versions in found.versions.items()}
    parts += ["\n".join(f"- {peer}: {versions}" for peer, versions in peers.items())]
    return "\n\n".join(parts) + "\n"


def data(rows: list[Row], found: Measurement, costs: Costs | None, facts_of_run: dict[str, Any]) -> dict[str, Any]:
    """Everything, for JSON; a run's tokens only by their number."""
    runs = [{**asdict(run), "tokens": len(run.tokens)} for run in found.runs]
    return {
        **facts_of_run,
        "versions": found.versions,
        "rows": [asdict(row) for row in rows],
        "costs": None if costs is None else {**asdict(costs), "relative": costs.relative},
        "failures": found.failures,
        "runs": runs,
    }


def command() -> str:
    """The command line, its folders left out."""
    parts = (re.sub(r"(^|=)[^=\s]*/", r"\1…/", part) for part in sys.argv[1:])
    return " ".join(["python -m benchmarks compare", *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", action="append", metavar="PEER[:METHOD]", help="may be given several times")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's own Python")
    add_model_options(parser)
    parser.add_argument("--prompts", type=Path, nargs="+", default=[], help="JSON Lines files instead of the demo's")
    parser.add_argument("--chat", action="store_true", help="send them through the tokenizer's chat template")
    parser.add_argument("--category", help="only this category's prompts")
    parser.add_argument("--per-category", type=int, help="at most so many of each category")
    parser.add_argument("--longest", type=int, default=10**9, help="only prompts of so many tokens at most")
    parser.add_argument("--num-prompts", type=int, help="so many, evenly spread; default: all")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--costs", action=argparse.BooleanOptionalAction, default=True, help="measure c(T) first")
    parser.add_argument("--out", type=Path, default=Path("build/benchmark"), help="path without .json and .md")
    arguments = parser.parse_args()
    arguments.model = checkpoint(arguments)
    pythons = {peer: str(Path(path).absolute()) for peer, path in (pair.split("=", 1) for pair in arguments.python)}
    torch.set_num_threads(arguments.threads)
    prompts = encoded(arguments)
    setup = Setup(arguments.model, arguments.dtype, arguments.threads, pythons)
    names = contenders(arguments.contender, pythons)
    try:
        described, costs = describe(arguments.model, arguments.dtype, arguments.costs)
        gc.collect()  # the model goes before the contenders come with theirs
        found = measure(names, setup, prompts, arguments.max_new_tokens, arguments.repeats)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    length = statistics.median(map(len, prompts))
    what = f"prompts: {len(prompts)} (median length {length:g}), new tokens: {arguments.max_new_tokens}, "
    head = [f"`{command()}`", facts(), described, what + f"repeats: {arguments.repeats}"]
    rows = summarize(found, BASELINE)
    report = markdown(head, rows, found, costs)
    print(report)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_name(arguments.out.name + ".md").write_text(report)
    named = dict(zip(("command", "machine", "model", "prompts"), head, strict=True))
    arguments.out.with_name(arguments.out.name + ".json").write_text(json.dumps(data(rows, found, costs, named)))
    if found.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
