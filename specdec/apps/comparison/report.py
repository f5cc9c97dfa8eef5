"""A comparison as one HTML file that opens offline and on a phone, and prints."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specdec.apps.comparison.contributions import Contribution, contributions
from specdec.apps.comparison.differences import Difference
from specdec.apps.comparison.figures.axes import Plot
from specdec.apps.comparison.figures.plots import draw, styles_of
from specdec.apps.comparison.page_environment import page_environment
from specdec.apps.comparison.results import Comparison
from specdec.apps.comparison.rows import Row
from specdec.apps.comparison.runs import Run
from specdec.apps.comparison.sentences import (
    Decode,
    by_numerics,
    identity,
    numerics_used,
    token_shown,
    verdict,
    warm_strategies,
)
from specdec.apps.comparison.spec_bench import NOTE, SpecBench
from specdec.apps.comparison.statistics import FEWEST_PROMPTS
from specdec.costs import Costs
from specdec.errors import RequestError
from specdec.machine.extras import needs
from specdec.settings import Settings

_MOST_DIFFERENCES = 20
_MOST_PROMPT_TOKENS = 200  # from the end of a sample's prompt


@dataclass(frozen=True, slots=True)
class StepText:
    """The text that one step of a sample emitted."""

    step: int
    num_tokens: int
    text: str
    shade: str  # "" for a single token, else "odd" and "even" in turn


@dataclass(frozen=True, slots=True)
class Sample:
    """A text by its steps. ``num_left_out`` counts the prompt's tokens before those shown."""

    category: str
    name: str
    strategy: str
    run: Run
    num_left_out: int
    prompt: str
    pieces: list[StepText]


@dataclass(frozen=True, slots=True)
class View:
    """One comparison's section of the page."""

    label: str  # the settings that differ from other comparisons'; "" for a single one
    comparison: Comparison
    rows: list[Row]
    verdict: str
    identity: str
    numerics: str
    memory: str
    differences: list[tuple[Difference, str, str]]  # with the strategy's token and plain decoding's, as text
    merges: dict[str, list[Contribution]]  # sources' contributions by strategy, for merges
    spec_bench: SpecBench | None
    plots: list[Plot]
    samples: list[Sample]
    facts: dict[str, str]


def write_report(
    path: Path, comparisons: Sequence[Comparison], decode: Decode | None, costs: Costs | None = None
) -> None:
    """Write the report on comparisons of one model and prompt set.

    Args:
        decode: the tokenizer's; without it, texts are shown as token ids.
        costs: this machine's measured costs of passes; adds a figure.

    Raises:
        RequestError: there is no comparison, a library is missing, or the file can't be written.
    """
    if not comparisons:
        raise RequestError("there is no comparison to report on")
    needs("jinja2", "compare", "a report")
    needs("matplotlib", "compare", "a report")
    environment = page_environment("specdec.apps.comparison")
    environment.filters |= {"rate": _rate, "parts": partial(re.findall, r"[^,:_]*[,:_]?")}
    page = environment.get_template("report.html.j2").render(_content(comparisons, decode, costs))
    try:
        path.write_text(page, encoding="utf-8", errors="replace")  # a token may be half a character
    except OSError as error:
        raise RequestError(f"report {path} can't be written: {error.strerror}") from error


def _content(comparisons: Sequence[Comparison], decode: Decode | None, costs: Costs | None) -> dict[str, Any]:
    styles = styles_of(comparisons)
    facts = [_facts(comparison) for comparison in comparisons]
    common = {name: value for name, value in facts[0].items() if all(own.get(name) == value for own in facts)}
    views = [
        View(
            label=label,
            comparison=comparison,
            rows=comparison.ranking,
            verdict=verdict(comparison),
            identity=identity(comparison),
            numerics=numerics_used(comparison),
            memory=warm_strategies(comparison),
            differences=[
                (found, token_shown(found.token, decode), token_shown(found.expected, decode))
                for found in [*comparison.defects, *comparison.ties][:_MOST_DIFFERENCES]
            ],
            merges={
                row.strategy: found
                for row in comparison.drafting
                if (found := contributions(comparison.runs_of(row.strategy)))
            },
            spec_bench=comparison.spec_bench(),
            plots=draw(comparison, styles, costs, salt=f"specdec {index}"),
            samples=samples(comparison, decode),
            facts={name: value for name, value in own.items() if name not in common},
        )
        for index, (comparison, own, label) in enumerate(zip(comparisons, facts, _labels(comparisons), strict=True))
    ]
    plans = [comparison.plan for comparison in comparisons]
    strategies = {name: made for plan in plans for name, made in plan.strategies.items()}
    return {
        "views": views,
        "styles": styles,
        "facts": common,
        "strategies": strategies,
        "plan": plans[0],
        "fewest_prompts": FEWEST_PROMPTS,
        "spec_bench_note": NOTE,
    }


def samples(comparison: Comparison, decode: Decode | None) -> list[Sample]:
    """One text per category, by the fastest strategy that drafts."""
    strategy = (comparison.drafting or comparison.ranking)[0].strategy
    found = []
    for category in comparison.categories:
        run = comparison.runs_of(strategy, category)[0]
        _, name, ids = comparison.plan.prompts[run.prompt]
        ids = ids[-_MOST_PROMPT_TOKENS:]
        left_out = len(comparison.plan.prompts[run.prompt][2]) - len(ids)
        texts = _texts(ids, run, decode)
        found.append(Sample(category, name, strategy, run, left_out, texts[0], _pieces(run, texts[1:])))
    return found


def _texts(prompt: Sequence[int], run: Run, decode: Decode | None) -> list[str]:
    """The prompt's text, and the text that each step added.

    Tokens aren't decoded one by one: a token may be half a character, or have a space only after another token. A
    character belongs to the step that completes it.
    """
    if decode is None:
        ends, shown = [list(prompt)], 0
        for length in run.accepted_lengths:
            ends.append(list(run.tokens[shown : shown + length]))
            shown += length
        return [" ".join(map(str, ids)) + " " for ids in ends]
    ids, texts = list(prompt), [decode(prompt)]
    before, taken = texts[0], 0
    for step, length in enumerate(run.accepted_lengths, start=1):
        ids += run.tokens[taken : taken + length]
        taken += length
        text = decode(ids)
        whole = text if step == len(run.accepted_lengths) else text.rstrip("�")
        if whole.startswith(before):
            texts.append(whole[len(before) :])
            before = whole
        else:  # the tokenizer rewrites earlier text, e.g. spaces around punctuation
            texts.append(decode(ids[-length:]))
            before = text
    return texts


def _pieces(run: Run, texts: Sequence[str]) -> list[StepText]:
    pieces, num_shaded = [], 0
    for step, (length, text) in enumerate(zip(run.accepted_lengths, texts, strict=True), start=1):
        num_shaded += length > 1
        shade = ("even", "odd")[num_shaded % 2] if length > 1 else ""
        pieces.append(StepText(step, length, text, shade))
    return pieces


def _facts(comparison: Comparison) -> dict[str, str]:
    """The facts needed to repeat a comparison, strategies aside."""
    plan = comparison.plan
    counts = Counter(category for category, _, _ in plan.prompts)
    state = "complete" if comparison.is_complete else "stopped early"
    return {
        "model": ", ".join(plan.model.values()),
        "prompts": f"{len(plan.prompts)} ({', '.join(f'{name} {count}' for name, count in counts.items())})",
        "settings": ", ".join(f"{name}={value!r}" for name, value in _settings(comparison).items()),
        "seed": f"{plan.seed}, and one derived from it for each further repeat",
        "repeats": str(plan.repeats),
        "acceptance rule": ", ".join(dict.fromkeys(plan.verifiers.values())),
        "numerics": by_numerics(plan, plan.strategies),
        "runs": f"{len(comparison.runs)} of {plan.num_runs}: {state}",
        "machine": ", ".join(plan.machine.values()),
    }


def _labels(comparisons: Sequence[Comparison]) -> list[str]:
    """A label per comparison: the settings that differ, else its number; "" for a single one."""
    if len(comparisons) == 1:
        return [""]
    every = [_settings(comparison) for comparison in comparisons]
    names = dict.fromkeys(name for settings in every for name in settings)
    differing = [name for name in names if any(own.get(name) != every[0].get(name) for own in every)]
    labels = [", ".join(f"{name} {own[name]}" for name in differing if name in own) for own in every]
    return [label or f"comparison {place}" for place, label in enumerate(labels, start=1)]


def _settings(comparison: Comparison) -> dict[str, Any]:
    return {"temperature": Settings.model_fields["temperature"].default} | comparison.plan.settings


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
