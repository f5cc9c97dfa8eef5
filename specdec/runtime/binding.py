"""A generator's binding to its model: all parts made for one model, renewed when the model has changed."""

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch

from specdec.constraints.base import Vocabulary
from specdec.constraints.cache import ConstraintCache
from specdec.costs import Costs
from specdec.decoding.prefix_cache import PrefixCache
from specdec.errors import RequestError, close_all, plural
from specdec.machine.forks import ONE_THREAD, TORCH_IN_ONE_THREAD, refuse_fork
from specdec.models.encoder_decoders import whole_of
from specdec.models.fingerprint import Fingerprint, fingerprint_of
from specdec.models.loading import check_tokenizer, load_pretrained
from specdec.models.modalities import modalities_of
from specdec.models.notes import state_of
from specdec.models.weights.pack_model import Weights
from specdec.numerics import Numerics
from specdec.plugins.registry import Registry
from specdec.requests.builder import RequestBuilder
from specdec.requests.model_defaults import ignored_defaults
from specdec.requests.special_tokens import state_of_tokenizer
from specdec.runtime.attempts import Attempt, Attempts, Wanted
from specdec.runtime.backend_choice import LoadedModel
from specdec.runtime.lease import WeightsLease
from specdec.runtime.probes.costs import costs_of
from specdec.runtime.probes.input_check import InputCheck
from specdec.runtime.strategies import Strategies
from specdec.strategies.base import Proposer
from specdec.strategies.host import Host
from specdec.target import Target
from specdec.verifiers.base import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorChoice(Wanted):
    """A generator's options, with plug-ins in place of their names.

    Attributes:
        resolve: returns a proposer from an object or text; the same text gives the same object.
    """

    proposer: Proposer
    verifier: Verifier
    resolve: Callable[[Proposer | str], Proposer]


class Binding:
    """A model with its target, numerics, weights and strategies. One thread decodes with it at a time.

    Args:
        models: the model as one engine after another reads it; the first that can decode it does.

    Attributes:
        loaded: the model, as its engine has read it.
        weights: the layout of the model's weights.
        target: the target that all requests share.
        strategies: the proposers bound to the target.
        builder: makes the target's requests.
        fallback: the verifier for drafts without a true q under a verifier that reads q.
        prefix_cache: of the target.

    Raises:
        ModelError: if the model or tokenizer isn't supported, with the reason.
        PluginError: for an unknown backend, or a proposer that fails.
    """

    def __init__(self, models: Iterable[LoadedModel], choice: GeneratorChoice, registry: Registry) -> None:
        self.choice = choice
        self._registry, self._lease = registry, WeightsLease(choice.weights, registry.kernels())
        self._has_noted = False
        # Held while binding and closing, not while decoding: any thread may close a stream.
        self._gate = threading.RLock()
        self._is_decoding = False
        self._is_closed = False  # by its owner, since it last decoded
        self._is_open = False  # the parts are made, and not closed
        self._bind(models)

    @contextmanager
    def alone(self) -> Iterator[Self]:
        """Use the parts, bound to the model as it is now, without other users.

        Raises:
            RequestError: while the generator decodes.
            ModelError: if the model has changed and can no longer be driven.
        """
        with self._gate:
            if self._is_decoding:
                raise RequestError(
                    "this generator is already decoding: exhaust or close its stream, or wait for the other thread"
                )
            self._is_decoding = True
            self._is_closed = False
        try:
            with self._gate:
                self._renew()
            yield self
        finally:
            with self._gate:
                self._is_decoding = False
                if self._is_closed:
                    self._release()

    def refresh(self) -> None:
        """Bind to the model as it is now, to report facts; does nothing while it decodes, or once it is closed."""
        with self._gate:
            if not self._is_decoding and not self._is_closed:
                self._renew()

    def is_current(self) -> bool:
        """Return True while the parts fit model and tokenizer, and a backend's copy of the weights is the model's."""
        if (state_of(self.loaded.model), state_of_tokenizer(self.loaded.tokenizer)) != self._state:
            return False
        return self._copied is None or self._fingerprint() == self._copied

    @property
    def numerics(self) -> Numerics:
        """The numerics that the probe found; inexact if torch's threads have changed since."""
        now = torch.get_num_threads()
        if now == self._num_threads or not self._probed.is_bit_exact:
            return self._probed
        changed = f"torch had {plural(self._num_threads, 'thread')} when it was probed, and now has {now}"
        return Numerics(self._probed.mode, changed, self._probed.noise)

    def costs(self) -> Costs:
        """Return the costs of the target's passes here, measured once for a model, numerics and device."""
        return costs_of(self.target, self.loaded.model)

    def open_target(self) -> Target:
        """Load the model once more with the same compiler and a cache of its own."""
        return replace(self._attempt, is_last=True).open()

    def losses(self) -> list[str]:
        """Return a warning for each lossy part: verifier, weights and backend."""
        remedy = "the text is not what the model alone would write"
        rule, choice = self.choice.verifier, self.choice
        parts = [
            (f"with weights={choice.weights!r} {remedy}", self.weights.lossy),
            (f"with backend={choice.backend!r} {remedy}", self.target.examination.lossy),
        ]
        lossy = [f"{type(rule).__name__} is lossy: {remedy}"] if not rule.lossless else []
        return lossy + [f"{warning}: {why}" for warning, why in parts if why]

    def take_notes(self) -> tuple[str, ...]:
        """Return notes on backend, weights and the model's ignored settings: for the first result, then nothing."""
        if self._has_noted:
            return ()
        self._has_noted = True
        loaded = self.loaded
        engine = (loaded.note,) if loaded.note and not loaded.is_fallback else ()
        target = self.target
        drafts = () if target.shapes.takes_drafts else (f"decoded without drafts: {target.examination.reason}",)
        weights = (f"weights {self.weights}",) if self.weights.kernel or self.weights.is_fallback else ()
        backend = (self._attempt.note,) if self._attempt.note else ()
        return engine + backend + drafts + weights + ignored_defaults(self.loaded.model)

    def close(self) -> None:
        """Close the parts and release the model; an open stream keeps both until it ends."""
        with self._gate:
            self._is_closed = True
            if not self._is_decoding:
                self._release()

    def _renew(self) -> None:
        """Bind again if the parts are closed, the model was cast, moved, resized, …, or the tokenizer gained tokens."""
        if not self._is_open or not self.is_current():
            self._close_parts()
            self._bind([self.loaded])

    def _close_parts(self) -> None:
        """Close the strategies, then the target; once."""
        if self._is_open:
            self._is_open = False
            close_all([self.target, self.strategies, self.prefix_cache])

    def _release(self) -> None:
        try:
            self._close_parts()
        finally:
            self._lease.release()

    def _bind(self, models: Iterable[LoadedModel]) -> None:
        """Pack the weights, load a backend for them, and bind the proposer to both."""
        with ExitStack() as failing:
            failing.callback(self._lease.release)
            Attempts(models, self.choice, self._registry, self._lease.layouts).first(self._make_parts)
            failing.callback(self._close_parts)
            self._is_open = True
            numerics, choice = self._probed, self.choice
            is_fallback = choice.numerics == "auto" and choice.compiler is None and numerics.mode == "fast"
            if is_fallback:
                warnings.warn(f"decoding with fast numerics: {numerics.inexact}", stacklevel=5)
            failing.pop_all()

    def _make_parts(self, attempt: Attempt, target: Target) -> None:
        model, tokenizer, choice = attempt.loaded.model, attempt.loaded.tokenizer, self.choice
        with ExitStack() as failing:
            failing.callback(target.close)
            copied = None if attempt.backend.cls.runs_layers else fingerprint_of(model)
            check_tokenizer(tokenizer, target.shapes.vocab_size)
            state = state_of(model), state_of_tokenizer(tokenizer)
            strategies = Strategies(self._host(model, tokenizer, target, attempt.weights.engine), choice.proposer)
            failing.pop_all()
        self.loaded, self.weights, self.target, self.strategies = attempt.loaded, attempt.weights, target, strategies
        self._attempt, self._state, self._copied = attempt, state, copied
        self._probed, self._num_threads = target.numerics, torch.get_num_threads()
        remedy = TORCH_IN_ONE_THREAD if copied else ONE_THREAD
        self._fingerprint = partial(_fingerprint_here, model, os.getpid(), remedy)
        constraints = ConstraintCache(Vocabulary(tokenizer, target.shapes.vocab_size))
        self.builder = RequestBuilder(
            model,
            tokenizer,
            target.shapes,
            choice.verifier,
            constraints,
            attempt.loaded.processor,
            _why_text_only(attempt),
            InputCheck(target, model).check,
        )
        self.fallback = self._registry.make("verifiers", "match")
        self.prefix_cache = PrefixCache(target, self._fingerprint)

    def _host(self, model: Any, tokenizer: Any, target: Target, engine: str) -> Host:
        shapes, verifier = target.shapes, self.choice.verifier
        return Host(
            model=model,
            tokenizer=tokenizer,
            vocab_size=shapes.vocab_size,
            reads_q=verifier.reads_q,
            is_keyed=verifier.is_keyed,
            takes_trees=shapes.takes_trees,
            load=partial(load_pretrained, device=str(shapes.device)),
            open=partial(_open_draft, self._registry, self._lease),
            costs=partial(costs_of, target, model),
            cost_model=target.backend.cost_model,
            idle_target=lambda: None if target.is_decoding else target,
            extension=target.backend.extension,
            local_sources=partial(self._registry.local_sources, model, engine),
            num_layers=shapes.num_layers,
            expect_hidden=target.backend.expect_hidden,
        )


def _why_text_only(attempt: Attempt) -> str:
    """Return why a model's prompts can't have images or audio, or ""."""
    if not attempt.backend.cls.takes_inputs:
        return f"backend {attempt.backend.name} reads text only: use backend='hf' for images and audio"
    if not (modalities_of(attempt.loaded.model) or whole_of(attempt.loaded.model) is not None):
        return f"{type(attempt.loaded.model).__name__} reads text only: use a model that takes images or audio"
    return ""


def _fingerprint_here(model: Any, process: int, remedy: str) -> Fingerprint:
    """Return a model's fingerprint; refuse its pass where that would hang, in a process forked from ``process``."""
    if isinstance(model, torch.nn.Module) and torch.get_num_threads() > 1:
        refuse_fork(process, remedy)
    return fingerprint_of(model)


def _open_draft(registry: Registry, lease: WeightsLease, model: Any) -> Target:
    """Drive a draft model, whose passes need not be exact."""
    release = lease.acquire_draft(model)
    attempts = Attempts([LoadedModel(model, None)], Wanted(numerics="fast"), registry, lambda *_: [Weights()])
    try:
        return attempts.first(lambda _, target: target, release)
    except BaseException:
        release()
        raise
