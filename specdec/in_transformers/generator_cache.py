"""The generators that ``generate`` uses, cached with their model, so a second call makes none.

They go when the model does. A copy of the model starts without any.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from specdec.generator import Generator

_WHERE = "_specdec_generators"
_MOST = 8  # each with a cache of its own; the one that wasn't used for longest is closed


class _Kept:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generators: OrderedDict[Hashable, Generator] = OrderedDict()

    def __reduce__(self) -> tuple[type["_Kept"], tuple[()]]:
        return _Kept, ()


def kept_generator(model: Any, key: Hashable, make: Callable[[], Generator]) -> Generator:
    """The model's generator of some key, made when first asked for."""
    kept: _Kept = vars(model).setdefault(_WHERE, _Kept())
    with kept.lock:
        if key not in kept.generators:
            kept.generators[key] = make()
        kept.generators.move_to_end(key)
        while len(kept.generators) > _MOST:
            kept.generators.popitem(last=False)[1].close()
        return kept.generators[key]


def release(model: Any) -> None:
    """Close the model's generators, which gives its weights back as they were; the next call makes them anew."""
    kept = vars(model).pop(_WHERE, None)
    for generator in () if kept is None else kept.generators.values():
        generator.close()
