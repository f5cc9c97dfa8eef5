"""The tokens per step to expect of an EAGLE-3 head, from the curve that was measured on SmolLM2."""

import math

# Answer tokens, and tokens per step of trees with 8 nodes on prompts that were never trained on:
# benchmarks/notebook/2026-11-26-heads.md; the first is of two cores.
_CURVE = (240_000, 1.7), (500_000, 1.8), (1_000_000, 2.0), (2_500_000, 2.3), (5_000_000, 2.4), (10_000_000, 2.6)
LEAST_TOKENS = _CURVE[0][0]
_MOST_MINUTES = 2 * 24 * 60  # that are worth naming


def expectation(num_answer_tokens: int, minutes_for_least: float = math.inf) -> str:
    """Return the tokens per step that a head of SmolLM2 reached with this much text, in words.

    Args:
        num_answer_tokens: of the text.
        minutes_for_least: minutes in which a run has ``LEAST_TOKENS``.
    """
    reached = [point for point in _CURVE if point[0] <= num_answer_tokens]
    if reached:
        tokens, gained = reached[-1]
        return (
            f"about {gained} tokens per step in trees of 8 nodes, where plain decoding has 1: SmolLM2's head reached "
            f"that after {_millions(tokens)}, and 0.2 more after each doubling; larger models may gain more"
        )
    (tokens, gained), remedy = _CURVE[0], ""
    if minutes_for_least <= _MOST_MINUTES:
        remedy = f"; give about --minutes {math.ceil(minutes_for_least)} for that"
    return (
        f"little: the least text that a head was measured with is {_millions(tokens)}, after which SmolLM2's head "
        f"reached {gained} tokens per step in trees of 8 nodes, where plain decoding has 1{remedy}"
    )


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:g} million answer tokens"
