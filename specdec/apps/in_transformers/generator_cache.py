"""The generators that ``generate`` uses, cached with their model for later calls.

They are freed with the model. A copy of the model has none.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from specdec.errors import RequestError
from specdec.generator import Generator

_WHERE = "_specdec_generators"
_MOST = 8  # each with a cache of its own; the least recently used is closed


class _Kept:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generators: OrderedDict[Hashable, Generator] = OrderedDict()

    def __reduce__(self) -> tuple[type["_Kept"], tuple[()]]:
        return _Kept, ()


def kept_generator(model: Any, key: Hashable, make: Callable[[], Generator]) -> Generator:
    """Return the model's generator for a key, made at the first call."""
    kept: _Kept = vars(model).setdefault(_WHERE, _Kept())
    with kept.lock:
        if key not in kept.generators:
            try:
                kept.generators[key] = make()
            except RequestError:  # the others may hold the weights in another form
                while kept.generators:
                    kept.generators.popitem()[1].close()
                kept.generators[key] = make()
        kept.generators.move_to_end(key)
        while len(kept.generators) > _MOST:
            kept.generators.popitem(last=False)[1].close()
        return kept.generators[key]


def release(model: Any) -> None:
    """Close the model's generators, which restores its weights; the next call makes new ones."""
    kept = vars(model).pop(_WHERE, None)
    for generator in () if kept is None else kept.generators.values():
        generator.close()
