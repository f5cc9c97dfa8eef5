"""Comparisons for the report's tests: figures to work out in one's head, and names that nobody should have."""

from collections.abc import Sequence
from typing import Any

from specdec.apps.comparison import Comparison
from specdec.apps.comparison.runs import ComparisonPlan, Run
from specdec.costs import Costs
from specdec.record import PHASES

PLAIN = "autoregressive"
HOSTILE = {
    "<script>alert(1)</script>": 1.5,
    '"><img src=x onerror=alert(1)>': 1.4,
    r"$\frac{1}{$ {{ 7 * 7 }}": 1.3,
    "_hidden\x1b[31m\nname": 1.2,
    "東京 lookahead:N=5,W=15,G=15," + "pool_from_prompt=True," * 6: 1.1,
}
EIGHT = {f"lookahead:N={n},W=15,G=15,verify_window=True": 1 + n / 10 for n in range(1, 8)}
FIGURES = [  # title, label of x, label of y
    ("Speed-up over plain decoding", "times plain decoding's tokens per second", None),
    ("Where a step's time goes", "milliseconds per step", None),
    ("Accepted lengths", "tokens emitted by a step", "share of steps (%)"),
    ("Tokens per step by category", "tokens per step", None),
    ("Tokens per step along the text", "position in the new text (tokens)", "tokens per step"),
    ("Cost of a pass over T nodes", "nodes in a pass, T", "c(T), and tokens per step"),
]
COSTS = Costs((1, 2, 4, 8, 16, 32, 64, 128), (0.004, 0.004, 0.005, 0.006, 0.008, 0.012, 0.02, 0.036), 0.004)


def build(
    speeds: dict[str, float],
    num_prompts: int = 6,
    lengths: Sequence[int] = (3, 1, 4),
    categories: Sequence[str] = ("code", "prose"),
    wrong: Sequence[str] = (),
    left_out: int = 0,
    **plan: Any,
) -> Comparison:
    """Plain decoding takes a second a token on prompt 0, 1.1 on prompt 1 and so on; others are so many times as fast.

    Prompt p continues with p, p + 1, …; strategies in ``wrong`` write 99 as the second token of prompt 0.
    """
    num_tokens = sum(lengths)
    given: dict[str, Any] = {
        "strategies": {PLAIN: "AutoregressiveProposer()"} | {name: f"Made({name})" for name in speeds},
        "baseline": PLAIN,
        "reference": PLAIN,
        "verifiers": dict.fromkeys([PLAIN, *speeds], "MatchVerifier()"),
        "numerics": dict.fromkeys([PLAIN, *speeds], "fast"),
        "inexact": dict.fromkeys([PLAIN, *speeds], "made up"),
        "promises": dict.fromkeys([PLAIN, *speeds], "tokens"),
        "settings": {"max_new_tokens": num_tokens},
        "seed": 5,
        "repeats": 1,
        "prompts": tuple(
            (categories[index % len(categories)], f"prompt {index}", (index, 70, 71)) for index in range(num_prompts)
        ),
        "model": {"model": "test model", "parameters": "7 million parameters"},
        "machine": {"specdec": "specdec 0.0", "processor": "abacus", "cores": "2 cores (1 threads used)"},
    }
    runs = []
    for prompt in range(num_prompts):
        for name in given["strategies"]:
            tokens = list(range(prompt, prompt + num_tokens))
            if name in wrong and prompt == 0:
                tokens[1] = 99
            runs.append(
                Run(
                    strategy=name,
                    prompt=prompt,
                    repeat=0,
                    seconds=num_tokens * (1 + prompt / 10) / speeds.get(name, 1.0),
                    tokens=tuple(tokens),
                    accepted_lengths=(1,) * num_tokens if name == PLAIN else tuple(lengths),
                    num_nodes=num_tokens if name == PLAIN else 7 * len(lengths),
                    phases={phase: 0.001 * (1 + place) for place, phase in enumerate(PHASES)},
                    cache_bytes=3 * 2**20,
                )
            )
    return Comparison(ComparisonPlan(**(given | plan)), runs[: len(runs) - left_out])


def letters(ids: Sequence[int]) -> str:
    """A tokenizer's decode, for tests: 0 is a."""
    return "".join(chr(97 + token % 26) for token in ids)


def as_merge(
    comparison: Comparison, strategy: str, sources: Sequence[str] = ("suffix", "token_recycling")
) -> Comparison:
    """The same, each run of a strategy having sources.

    Source i named i + 1 nodes at depths 1 and 20 each, of which 1 was right. Of its chances, 30 nodes
    were given 0.25 and 6 were right; 2 were given 0.95 and both were.
    """
    bins = [(0, 0.0, 0)] * 10
    bins[2], bins[9] = (30, 7.5, 6), (2, 1.9, 2)
    given = {
        "sources": {name: {1: (place + 1, 1), 20: (place + 1, 1)} for place, name in enumerate(sources)},
        "calibration": dict.fromkeys(sources, tuple(bins)),
    }
    runs = [run.model_copy(update=given) if run.strategy == strategy else run for run in comparison.runs]
    return Comparison(comparison.plan, runs)
