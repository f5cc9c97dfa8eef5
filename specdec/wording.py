"""Counts in messages."""


def plural(number: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: ``plural(1, "step")`` is "1 step", ``plural(2, "step")`` is "2 steps"."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"
