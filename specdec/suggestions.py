"""Answers to names that don't exist: what was probably meant."""

import difflib
from collections.abc import Collection, Iterable, Mapping

from specdec.errors import RequestError

_LIKENESS = 0.6  # difflib's default


def nearest(name: str, known: Iterable[str], most: int = 1, likeness: float = _LIKENESS) -> list[str]:
    """Return the known names that are like a given one, the most similar first, whatever their case.

    Without any, those that begin with it: ``temperature`` for ``temp``.
    """
    folded = dict[str, str]()
    for each in known:
        folded.setdefault(each.casefold(), each)
    found = difflib.get_close_matches(name.casefold(), folded, n=most, cutoff=likeness)
    if not found and len(name) > 2:
        found = [each for each in folded if each.startswith(name.casefold())][:most]
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
