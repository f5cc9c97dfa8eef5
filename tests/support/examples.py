"""The number of examples of a law: its own by day, ten times as many in the night."""

from hypothesis import settings

BY_DAY = 50  # of a law that names no number


def examples(number: int) -> settings:
    """Settings of a law with this many examples, times as many as the chosen profile has more than that of the day."""
    return settings(max_examples=number * settings().max_examples // BY_DAY)
