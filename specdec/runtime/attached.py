"""A generator's binding to its model.

The binding is renewed when the model changes, and one thread decodes with it at a time.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from specdec.errors import RequestError
from specdec.models.fingerprint import unchanging
from specdec.models.state import first_time
from specdec.plugins.registry import Registry
from specdec.runtime.binding import Bound, Choice, bind
from specdec.weights.lease import Holding


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
        self._gate = threading.RLock()  # held to bind and to close, not to decode: any thread may close a stream
        self._is_decoding = False
        self._is_closed = False  # by its owner, since it last decoded
        self.bound = self._bind()
        self._is_open = True  # what is bound hasn't been closed

    @contextmanager
    def alone(self) -> Iterator[Bound]:
        """Hold the parts, bound to the model as it is now.

        Raises:
            RequestError: while it decodes.
            ModelError: for a model that has changed so that it can't be driven any more.
        """
        with self._gate:
            if self._is_decoding:
                raise RequestError(
                    "this generator is decoding already: exhaust or close its stream, or wait for the other thread"
                )
            self._is_decoding = True
            self._is_closed = False
        try:
            with self._gate:
                self._renew()
            yield self.bound
        finally:
            with self._gate:
                self._is_decoding = self._holding.is_decoding = False
                if self._is_closed:
                    self._give_back()

    def present(self) -> Bound:
        """Return what is bound to the model as it is now; while it decodes, or once it is closed, as it was then."""
        with self._gate:
            if not self._is_decoding and not self._is_closed:
                try:
                    self._renew()
                finally:
                    self._holding.is_decoding = False
            return self.bound

    def close(self) -> None:
        """Release what is bound, and the model; a stream that is open keeps both to its end."""
        with self._gate:
            self._is_closed = True
            if not self._is_decoding:
                self._give_back()

    def _renew(self) -> None:
        """Bind anew where what is bound was closed, or the model was cast, moved, resized, given an adapter, …"""
        self._holding.is_decoding = True  # from here on no other generator lays the weights out otherwise
        if not self._is_open or not self.bound.is_current():
            self._close()
            self.bound = self._bind()
            self._is_open = True

    def _close(self) -> None:
        """Close what is bound, once."""
        if self._is_open:
            self._is_open = False
            self.bound.close()

    def _give_back(self) -> None:
        try:
            self._close()
        finally:
            self._holding.give_back()

    def _bind(self) -> Bound:
        with ExitStack() as failing:
            failing.callback(self._holding.give_back)
            with unchanging(self._model):
                bound = bind(self._model, self._tokenizer, self._choice, self._registry, self._holding)
            failing.callback(bound.close)
            why = bound.driven.why_not_exact
            if why and first_time(self._model, why):
                warnings.warn(f"decoding with fast numerics, as exact ones can't be had: {why}", stacklevel=4)
            failing.pop_all()
        return bound
