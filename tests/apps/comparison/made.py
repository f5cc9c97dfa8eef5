"""Comparisons made by hand: a plan, runs whose seconds and tokens a test chooses, and simulated clocks."""

from collections.abc import Callable, Sequence

from specdec.apps.comparison.runs import ComparisonPlan, Run
from specdec.record import PHASES

TEXT = (5, 6, 7, 8, 9, 10)


def plan_of(strategies: Sequence[str], num_prompts: int, repeats: int = 1, **changes: object) -> ComparisonPlan:
    """``plain`` is plain decoding's name; the prompts are of two categories by turns."""
    plan = ComparisonPlan(
        strategies={name: f"{name}()" for name in strategies},
        baseline="plain",
        reference="plain",
        verifiers=dict.fromkeys(strategies, "MatchVerifier()"),
        numerics=dict.fromkeys(strategies, "fast"),
        inexact=dict.fromkeys(strategies, "made by hand"),
        promises=dict.fromkeys(strategies, "tokens"),
        settings={"max_new_tokens": len(TEXT)},
        seed=0,
        repeats=repeats,
        prompts=tuple(("even" if i % 2 == 0 else "odd", f"prompt {i}", (1, 2, i)) for i in range(num_prompts)),
        model={"model": "made by hand"},
        machine={"processor": "none"},
    )
    return plan.model_copy(update=changes)


def run_of(
    strategy: str,
    prompt: int,
    repeat: int,
    seconds: float,
    tokens: tuple[int, ...] = TEXT,
    accepted: tuple[int, ...] | None = None,
) -> Run:
    lengths = accepted or (1,) * len(tokens)
    return Run(
        strategy=strategy,
        prompt=prompt,
        repeat=repeat,
        seconds=seconds,
        tokens=tokens,
        accepted_lengths=lengths,
        num_nodes=3 * len(lengths),
        phases=dict.fromkeys(PHASES, seconds / len(PHASES)),
        cache_bytes=2**20,
    )


def runs_of(plan: ComparisonPlan, seconds: Callable[[str, int, int], float]) -> list[Run]:
    """Every run of a plan, with the seconds that a function of strategy, prompt and repeat gives."""
    return [
        run_of(name, prompt, repeat, seconds(name, prompt, repeat))
        for repeat in range(plan.repeats)
        for prompt in range(len(plan.prompts))
        for name in plan.strategies
    ]
