"""A generator's binding to its model.

The binding is renewed when the model changes, and one thread decodes with it at a time.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from specdec.binding import Bound, Choice, bind
from specdec.errors import RequestError
from specdec.plugins.registry import Registry
from specdec.probes.findings import first_time
from specdec.weights.holding import Holding


class AttachedModel:
    """A generator's hold on its model.

    Attributes:
        bound: the parts made for the model in the state that it was last decoded with.

    Raises:
        ModelError: when the model or tokenizer can't be driven, with the reason.
        PluginError: for a backend that is unknown, or a proposer that fails.
    """

    def __init__(self, model: Any, tokenizer: Any | None, choice: Choice, registry: Registry, holding: Holding) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._choice, self._registry, self._holding = choice, registry, holding
        self.bound = self._bind()
        self._lock = threading.Lock()  # held while it decodes; a stream may be closed by another thread than began it
        self._is_closed = False

    @contextmanager
    def alone(self) -> Iterator[Bound]:
        """Hold the parts, bound to the model as it is now.

        Raises:
            RequestError: while it decodes.
            ModelError: for a model that has changed so that it can't be driven any more.
        """
        if not self._lock.acquire(blocking=False):
            raise RequestError(
                "this generator is decoding already: exhaust or close its stream, or wait for the other thread"
            )
        try:
            self._holding.is_decoding = True  # from here on no other generator lays the weights out otherwise
            if not self.bound.is_current(self._model):  # it was cast, moved, resized, given an adapter, …
                former, self.bound = self.bound, self._bind()
                former.strategies.close()
            self._is_closed = False
            yield self.bound
        finally:
            self._holding.is_decoding = False
            if self._is_closed:
                self._give_back()
            self._lock.release()

    def present(self) -> Bound:
        """Return what is bound to the model as it is now, or, while it decodes, as it was then."""
        with suppress(RequestError), self.alone():
            pass
        return self.bound

    def close(self) -> None:
        """Release what the strategies hold, and the model; a stream that is open keeps it to its end."""
        try:
            self.bound.strategies.close()
        finally:
            self._is_closed = True
            if self._lock.acquire(blocking=False):
                try:
                    self._give_back()
                finally:
                    self._lock.release()

    def _give_back(self) -> None:
        self.bound.target.backend.close()
        self._holding.give_back()

    def _bind(self) -> Bound:
        try:
            bound = bind(self._model, self._tokenizer, self._choice, self._registry, self._holding)
        except BaseException:  # Ctrl-C too
            self._holding.give_back()
            raise
        why = bound.driven.why_not_exact
        if why and first_time(self._model, why):
            warnings.warn(f"decoding with fast numerics, as exact ones can't be had: {why}", stacklevel=4)
        return bound
