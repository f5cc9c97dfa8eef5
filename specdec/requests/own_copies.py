"""Copies of a caller's stateful processors and criteria, so that no request of a list depends on the others."""

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

from specdec.errors import RequestError, in_one_line
from specdec.sampling.processors import processor_name, stateful
from specdec.settings import Settings

_REMEDY = (
    "give it is_path_pure = True if what it returns follows from its arguments alone, or pass the prompts one by one"
)


def with_own_copies(settings: Sequence[Settings], shared: Iterable[Any]) -> list[Settings]:
    """Return the settings of a list's requests, each with copies of the processors and criteria that may have state.

    Args:
        settings: of each request.
        shared: objects that copies refer to as well, such as the model.

    Raises:
        RequestError: for one that can't be copied.
    """
    num_requests = Counter(key for one in settings for key in {id(each) for each in stateful(one)})
    check_copyable(each for one in settings for each in stateful(one) if num_requests[id(each)] > 1)
    known = {id(each): each for each in shared}
    return [_with_copies(one, dict(known)) for one in settings]


def check_copyable(given: Iterable[Any]) -> None:
    """Refuse functions, which a copy would share with its original.

    Raises:
        RequestError: with the function's name and the remedy.
    """
    for one in given:
        if isinstance(one, FunctionType | BuiltinFunctionType | partial):
            name = processor_name(one)
            raise RequestError(f"{name} is a function, which may have state and can't be copied for a list: {_REMEDY}")


def _with_copies(settings: Settings, known: dict[int, Any]) -> Settings:
    own = stateful(settings)
    if not own:
        return settings
    try:
        copies = dict(zip(map(id, own), copy.deepcopy(own, known), strict=True))
    except Exception as error:  # a third party's code
        names = ", ".join(map(processor_name, own))
        raise RequestError(f"{names} can't be copied for a list ({in_one_line(error)}): {_REMEDY}") from error
    return settings.model_copy(
        update={
            name: tuple(copies.get(id(one), one) for one in getattr(settings, name))
            for name in ("logits_processor", "stopping_criteria")
        }
    )
