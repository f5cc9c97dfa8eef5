"""The tokens per step to expect of a head, from the curve that was measured on SmolLM2."""

# Answer tokens, and tokens per step of trees with 8 nodes on prompts that were never trained on:
# benchmarks/notebook/2026-11-26-heads.md; the first is of two cores.
_CURVE = (240_000, 1.7), (500_000, 1.8), (1_000_000, 2.0), (2_500_000, 2.3), (5_000_000, 2.4), (10_000_000, 2.6)


def expectation(num_answer_tokens: int) -> str:
    """Return what so much text was worth on SmolLM2, in words."""
    reached = [point for point in _CURVE if point[0] <= num_answer_tokens]
    if not reached:
        tokens, gained = _CURVE[0]
        return (
            f"less text than any measured head had: on SmolLM2, {_millions(tokens)} gave {gained} tokens per step in "
            "trees of 8 nodes, and each doubling 0.2 more"
        )
    tokens, gained = reached[-1]
    return (
        f"on SmolLM2, {_millions(tokens)} gave {gained} tokens per step in trees of 8 nodes, and each doubling 0.2 "
        "more; on larger models it may be more"
    )


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:g} million answer tokens"
