"""A comparison in sentences, for the terminal and for reports."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from specdec.comparison.results import Comparison, Difference
from specdec.comparison.runs import Plan
from specdec.comparison.statistics import FEWEST_PROMPTS
from specdec.errors import plural
from specdec.numerics import Numerics

if TYPE_CHECKING:
    from specdec.comparison.tune import Tuning

Decode = Callable[[Sequence[int]], str]  # token ids to text

_MOST_DIFFERENCES = 10


def verdict(comparison: Comparison) -> str:
    """Say which strategy won, or why none is named."""
    rows = comparison.contenders
    first, baseline = rows[0], comparison.plan.baseline
    if len(comparison.rows) == 1:
        return f"Nothing to compare: {first.strategy} is the only strategy."
    if len(rows) == 1:
        exact = comparison.speed_up(comparison.plan.reference)
        return f"Plain decoding alone was run: in exact numerics it is {exact} times as fast as ordinarily."
    if comparison.winner == baseline:
        return f"Fastest: plain decoding. The next, {rows[1].strategy}, is {rows[1].speed_up} times as fast."
    if comparison.winner is not None:
        return f"Fastest: {first.strategy}, {first.speed_up} times plain decoding."
    return _undecided(comparison)


def _undecided(comparison: Comparison) -> str:
    """Say how fast the first strategy is where it can't be told apart from the next."""
    rows, num_prompts = comparison.contenders, len(comparison.prompts)
    first, baseline = rows[0], comparison.plan.baseline
    if num_prompts < FEWEST_PROMPTS:
        few = "1 prompt gives" if num_prompts == 1 else f"{num_prompts} prompts give"
        fastest = f"{first.strategy}, {first.speed_up.value:.2f} times plain decoding"
        if first.strategy == baseline:
            fastest = f"plain decoding; the next, {rows[1].strategy}, {rows[1].speed_up.value:.2f} times as fast"
        return f"No winner is named: {few} no interval, {FEWEST_PROMPTS} would. Fastest here: {fastest}."
    over = {row.strategy: comparison.speed_up(first.strategy, over=row.strategy) for row in rows[1:]}
    second = next(name for name, ratio in over.items() if not ratio.is_faster)
    if first.strategy != baseline and first.speed_up.is_faster:
        return (
            f"{first.strategy} is {first.speed_up} times as fast as plain decoding. It is {over[second]} times as fast "
            f"as {second}, and the interval contains 1."
        )
    return (
        f"No winner is named: {first.strategy} is {over[second]} times as fast as {second}, and the interval "
        "contains 1."
    )


def found_by_search(tuning: "Tuning") -> list[str]:
    """Name the setting that a search ends with: the best only where it is faster than plain decoding for certain."""
    comparison, gain = tuning.comparison, tuning.gain
    named = f"--proposer {tuning.strategy}   {gain} times plain decoding"
    others = [row for row in comparison.drafting if row.strategy != tuning.strategy and not row.num_defects]
    told = [f"{'best' if tuning.is_best else 'fastest of what was run in earnest'}: {named}"]
    if others:
        unsure = [row for row in others if not comparison.speed_up(tuning.strategy, over=row.strategy).is_faster]
        apart = f"; not told apart from it: {', '.join(row.strategy for row in unsure)}" if unsure else ""
        told.append(f"It is the fastest of {len(others) + 1} in the same runs, which flatters it a little{apart}.")
    if not gain.is_faster:
        why = "its interval lies below 1" if gain.is_slower else "its interval holds 1"
        if len(comparison.prompts) < FEWEST_PROMPTS:
            why = f"fewer than {FEWEST_PROMPTS} prompts give no interval"
        told.append(
            f"No setting is faster than plain decoding in fast numerics for certain: {why}. "
            "To be safe, --proposer autoregressive."
        )
    return told


def identity(comparison: Comparison) -> str:
    """Say whether the texts are plain decoding's."""
    plan, differing = comparison.plan, comparison.differences
    num_ties, num_wrong = len(comparison.ties), len(comparison.defects)
    others = [name for name in plan.strategies if name not in plan.plain]
    num_texts = len(comparison.pairs) * sum(plan.promises[name] == "tokens" for name in others)
    all_of_them = "The text is" if num_texts == 1 else f"All {num_texts} texts are"
    told = [f"{all_of_them} plain decoding's, token for token."] if num_texts else []
    ties = (
        f"{num_ties} {'differs by a numeric tie' if num_ties == 1 else 'differ by numeric ties'}: rounding, no defect."
    )
    if num_wrong:
        told = [f"{num_wrong} of {num_texts} texts {'is' if num_wrong == 1 else 'are'} NOT plain decoding's."]
        told += [f"Of the others, {ties}"] if num_ties else []
    elif num_ties:
        told = [
            f"Of {num_texts} texts, {num_texts - num_ties} {'is' if num_texts - num_ties == 1 else 'are'} plain "
            f"decoding's, token for token; {ties}"
        ]
    if any(found.verdict is None for found in differing):
        told.append(
            "Numeric ties and defects were not told apart here: `specdec compare --run` with the run file does."
        )
    if free := [name for name in others if plan.promises[name] != "tokens"]:
        told.append(f"Not compared, as their rule does not promise plain decoding's tokens: {', '.join(free)}.")
    return " ".join(told)


def numerics_used(comparison: Comparison) -> str:
    """Say which numerics the strategies decoded in, and which plain decoding they are measured by."""
    plan = comparison.plan
    names = [name for name in plan.strategies if name not in plan.plain] or [plan.reference]
    told = f"Numerics: {by_numerics(plan, names)}."
    if plan.reference == plan.baseline:
        return told
    return (
        f"{told} Speed-ups are over ordinary plain decoding, {plan.baseline}, whose numerics are fast; exact texts are "
        f"held against {plan.reference}."
    )


def memory_kept(comparison: Comparison) -> str:
    """Say which strategies had read the prompts' own answers before; empty where none had."""
    names = ", ".join(comparison.plan.warm)
    return names and (
        f"Warm: {names} had decoded every prompt once, uncounted, and remembered it; all others forgot what they "
        "remembered before each repeat."
    )


def by_numerics(plan: Plan, names: Iterable[str]) -> str:
    """The numerics of some strategies, each with the names of those that have it where there are several."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(str(Numerics(plan.numerics[name], plan.inexact[name])), []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{used} ({', '.join(group)})" for used, group in groups.items())


def differences(comparison: Comparison, decode: Decode | None) -> Iterator[tuple[Difference | None, str]]:
    """Each text that isn't plain decoding's and a line on it, defects first; behind the first few, what is left out."""
    ordered = [*comparison.defects, *comparison.ties]
    for found in ordered[:_MOST_DIFFERENCES]:
        category, name, _ = comparison.plan.prompts[found.prompt]
        own, plain = (token_shown(token, decode) for token in (found.token, found.expected))
        told = f"; {found.verdict}: {found.reason}" if found.verdict else ""
        yield (
            found,
            f"{found.strategy}, prompt {name!r} ({category}), repeat {found.repeat + 1}: "
            f"new token {found.position + 1} is {own}, plain decoding's is {plain}{told}",
        )
    if len(ordered) > _MOST_DIFFERENCES:
        yield None, f"and {plural(len(ordered) - _MOST_DIFFERENCES, 'text')} more"


def token_shown(token: int | None, decode: Decode | None) -> str:
    """A token as text and id; None is the end of the text."""
    if token is None:
        return "none: the text has ended"
    return str(token) if decode is None else f"{decode([token])!r} ({token})"
