"""A comparison in sentences, for the terminal and the report."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from specdec.apps.comparison.differences import Difference
from specdec.apps.comparison.results import Comparison
from specdec.apps.comparison.runs import ComparisonPlan
from specdec.apps.comparison.statistics import FEWEST_PROMPTS
from specdec.errors import plural
from specdec.numerics import Numerics

if TYPE_CHECKING:
    from specdec.apps.comparison.tune import Tuning

Decode = Callable[[Sequence[int]], str]  # token ids to text

_MOST_DIFFERENCES = 10


def verdict(comparison: Comparison) -> str:
    """The winner, or the reason why there is none."""
    rows = comparison.possible_winners
    first, baseline = rows[0], comparison.plan.baseline
    if len(comparison.rows) == 1:
        return f"Nothing to compare: {first.strategy} is the only strategy."
    if len(rows) == 1:
        exact = comparison.speed_up(comparison.plan.reference)
        return f"Only plain decoding was run: in exact numerics it is {exact} times as fast as in fast numerics."
    if comparison.winner == baseline:
        return f"Fastest: plain decoding. The next, {rows[1].strategy}, is {rows[1].speed_up} times as fast."
    if comparison.winner is not None:
        return f"Fastest: {first.strategy}, {first.speed_up} times plain decoding."
    return _undecided(comparison)


def _undecided(comparison: Comparison) -> str:
    """Return the verdict if the fastest strategy isn't clearly faster than the next one."""
    rows, num_prompts = comparison.possible_winners, len(comparison.prompts)
    first, baseline = rows[0], comparison.plan.baseline
    if num_prompts < FEWEST_PROMPTS:
        few = "1 prompt gives" if num_prompts == 1 else f"{num_prompts} prompts give"
        fastest = f"{first.strategy}, {first.speed_up.value:.2f} times plain decoding"
        if first.strategy == baseline:
            fastest = f"plain decoding; the next, {rows[1].strategy}, {rows[1].speed_up.value:.2f} times as fast"
        return f"No winner: {few} no interval, which needs {FEWEST_PROMPTS}. Fastest here: {fastest}."
    over = {row.strategy: comparison.speed_up(first.strategy, over=row.strategy) for row in rows[1:]}
    second = next(name for name, ratio in over.items() if not ratio.is_faster)
    if first.strategy != baseline and first.speed_up.is_faster:
        return (
            f"{first.strategy} is {first.speed_up} times as fast as plain decoding. It is {over[second]} times as fast "
            f"as {second}, and the interval contains 1."
        )
    return f"No winner: {first.strategy} is {over[second]} times as fast as {second}, and the interval contains 1."


def found_by_search(tuning: "Tuning") -> list[str]:
    """The result of a search, called the best only if its interval over plain decoding lies above 1."""
    comparison, gain = tuning.comparison, tuning.gain
    result = f"--proposer {tuning.strategy}   {gain} times plain decoding"
    others = [row for row in comparison.drafting if row.strategy != tuning.strategy and not row.num_defects]
    lines = [f"{'best' if tuning.is_best else 'fastest finalist'}: {result}"]
    if others:
        unsure = [row for row in others if not comparison.speed_up(tuning.strategy, over=row.strategy).is_faster]
        also = f"; possibly as fast: {', '.join(row.strategy for row in unsure)}" if unsure else ""
        lines.append(
            f"As the fastest of {len(others) + 1} in the same runs, its figure is slightly biased upward{also}."
        )
    if not gain.is_faster:
        why = "its interval lies below 1" if gain.is_slower else "its interval contains 1"
        if len(comparison.prompts) < FEWEST_PROMPTS:
            why = f"fewer than {FEWEST_PROMPTS} prompts give no interval"
        lines.append(
            f"No setting is certainly faster than plain decoding in fast numerics: {why}. "
            "The safe choice is --proposer autoregressive."
        )
    return lines


def identity(comparison: Comparison) -> str:
    """Return sentences on how many texts are plain decoding's, and which texts were not compared."""
    plan = comparison.plan
    others = [name for name in plan.strategies if name not in plan.plain]
    num_texts = len(comparison.pairs) * sum(plan.promises[name] == "tokens" for name in others)
    sentences = _same_or_not(num_texts, len(comparison.ties), len(comparison.defects))
    if any(found.verdict is None for found in comparison.differences):
        sentences.append(
            "Numeric ties and defects were not distinguished here: run `specdec compare --run` with the run file."
        )
    if free := [name for name in others if plan.promises[name] != "tokens"]:
        sentences.append(f"Not compared, as their rule does not promise plain decoding's tokens: {', '.join(free)}.")
    return " ".join(sentences)


def _same_or_not(num_texts: int, num_ties: int, num_wrong: int) -> list[str]:
    """Return sentences with the numbers of texts that are plain decoding's, differ by numeric ties, or are wrong."""
    ties = (
        f"{num_ties} {'differs by a numeric tie' if num_ties == 1 else 'differ by numeric ties'}: rounding, no defect."
    )
    if num_wrong:
        wrong = f"{num_wrong} of {num_texts} texts {'is' if num_wrong == 1 else 'are'} NOT plain decoding's."
        return [wrong, f"Of the others, {ties}"] if num_ties else [wrong]
    if num_ties:
        num_same = num_texts - num_ties
        same = f"{num_same} {'is' if num_same == 1 else 'are'} plain decoding's, token for token"
        return [f"Of {num_texts} texts, {same}; {ties}"]
    if num_texts:
        all_of_them = "The text is" if num_texts == 1 else f"All {num_texts} texts are"
        return [f"{all_of_them} plain decoding's, token for token."]
    return []


def numerics_used(comparison: Comparison) -> str:
    """The strategies' numerics, and the plain decoding with which they are compared."""
    plan = comparison.plan
    names = [name for name in plan.strategies if name not in plan.plain] or [plan.reference]
    numerics = f"Numerics: {by_numerics(plan, names)}."
    if plan.reference == plan.baseline:
        return numerics
    return (
        f"{numerics} Speed-ups are over {plan.baseline}, plain decoding in fast numerics; texts in exact numerics are "
        f"compared with {plan.reference}."
    )


def warm_strategies(comparison: Comparison) -> str:
    """The strategies that decoded the prompts before the measurement; "" if there are none."""
    names = ", ".join(comparison.plan.warm)
    return names and (
        f"Warm: {names} decoded every prompt once, uncounted, and kept its memory; all others started each repeat with "
        "an empty memory."
    )


def by_numerics(plan: ComparisonPlan, names: Iterable[str]) -> str:
    """The numerics of some strategies; if they differ, each followed by the names of its strategies."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(str(Numerics(plan.numerics[name], plan.inexact[name])), []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{used} ({', '.join(group)})" for used, group in groups.items())


def differences(comparison: Comparison, decode: Decode | None) -> Iterator[tuple[Difference | None, str]]:
    """A line for each text that differs, defects first; a last line counts the texts left out."""
    ordered = [*comparison.defects, *comparison.ties]
    for found in ordered[:_MOST_DIFFERENCES]:
        category, name, _ = comparison.plan.prompts[found.prompt]
        own, plain = (token_shown(token, decode) for token in (found.token, found.expected))
        judged = f"; {found.verdict}: {found.reason}" if found.verdict else ""
        yield (
            found,
            f"{found.strategy}, prompt {name!r} ({category}), repeat {found.repeat + 1}: "
            f"new token {found.position + 1} is {own}, plain decoding's is {plain}{judged}",
        )
    if len(ordered) > _MOST_DIFFERENCES:
        yield None, f"and {plural(len(ordered) - _MOST_DIFFERENCES, 'text')} more"


def token_shown(token: int | None, decode: Decode | None) -> str:
    """A token as text and id; None means that the text has ended."""
    if token is None:
        return "none: the text has ended"
    return str(token) if decode is None else f"{decode([token])!r} ({token})"
