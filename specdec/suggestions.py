"""Answers to names that don't exist: what was probably meant."""

import difflib
from collections.abc import Collection, Iterable, Mapping

from specdec.errors import RequestError

_LIKENESS = 0.6  # difflib's default


def nearest(name: str, known: Iterable[str], most: int = 1, likeness: float = _LIKENESS) -> list[str]:
    """Return the known names that somebody may have meant, whatever their case.

    These are the names that begin with the given one, as ``temperature`` does with ``temp``; else those that are like
    it, the most similar first.
    """
    folded = dict[str, str]()
    for each in known:
        folded.setdefault(each.casefold(), each)
    found = [each for each in folded if len(name) > 2 and each.startswith(name.casefold())][:most]
    found = found or difflib.get_close_matches(name.casefold(), folded, n=most, cutoff=likeness)
    return [folded[each] for each in found]


def remedy(name: str, allowed: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return what to do about an unknown name: the name that was probably meant, or all that are allowed.

    Args:
        elsewhere: by name, for names that other functions and libraries have: the allowed name that takes its place, or
            a sentence.
    """
    found = name if name in elsewhere else next(iter(nearest(name, [*allowed, *elsewhere])), "")
    if not found:
        return f"allowed: {', '.join(allowed)}"
    instead = elsewhere.get(found, found)
    if " " not in instead:
        return f"did you mean {instead!r}?"
    return instead if found == name else f"did you mean {found!r}? {instead}"


def refuse_unknown(caller: str, given: Iterable[str], allowed: Collection[str], elsewhere: Mapping[str, str]) -> None:
    """Refuse keyword arguments that a function doesn't have.

    Raises:
        RequestError: with each of them, and what was probably meant.
    """
    if faults := [f"unknown name {name!r} ({remedy(name, allowed, elsewhere)})" for name in given]:
        raise RequestError(f"{caller}: {'; '.join(faults)}")
