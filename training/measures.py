"""Whether a text is realistic or a loop, which would flatter every method that reuses n-grams."""


def distinct_4_grams(tokens: list[int]) -> float:
    """The share of runs of four tokens that occur for the first time."""
    grams = [tuple(tokens[start : start + 4]) for start in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams)


def loops(tokens: list[int], most: int = 64) -> bool:
    """Whether some period of up to ``most`` tokens comes three times in a row (three equal digits are enough)."""
    return any(
        tokens[start : start + period] == tokens[start + period : start + 2 * period]
        and tokens[start : start + period] == tokens[start + 2 * period : start + 3 * period]
        for period in range(1, most + 1)
        for start in range(len(tokens) - 3 * period + 1)
    )
