"""The end of a text that can't be passed on yet, because a marker may have begun in it."""


def overlap(text: str, marker: str) -> int:
    """Return the number of characters at the end of a text that begin a marker."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)


def num_final(text: str, marker: str) -> int:
    """Return the number of characters before the end that may begin a marker, and before the whitespace there."""
    return len(text[: len(text) - overlap(text, marker)].rstrip())
