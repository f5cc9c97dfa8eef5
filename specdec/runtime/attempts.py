"""The ways to decode a model, fastest first: engines, mask compilers and layouts of torch's weights."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from specdec.errors import ModelError, RequestError
from specdec.layout import Compiler
from specdec.masks.base import MaskCompiler
from specdec.models.fingerprint import unchanging
from specdec.models.weights.pack_model import Weights, stock_or_refuse
from specdec.numerics import Mode
from specdec.plugins.registry import Registry
from specdec.runtime.backend_choice import ChosenBackend, LoadedModel, backends_for, why_failed
from specdec.target import Target

Parts = TypeVar("Parts")
Layouts = Callable[[Any, Mapping[str, str]], Iterable[Weights]]


class _SlowError(ModelError):
    """Raised if the model's next backend is faster."""


class _InexactError(ModelError):
    """Raised if passes have other bits than plain steps, and exact numerics are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options that restrict the ways to decode a model.

    Attributes:
        compiler: None leaves the mask compiler to the numerics.
    """

    numerics: Mode
    compiler: Compiler | None = None
    backend: str = "auto"
    weights: str = "auto"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to decode a model.

    Attributes:
        loaded: the model, as an engine has read it.
        backend: drives the model.
        compiler: of the backend's layouts.
        weights: the layout that torch's weights have now.
        is_named: the caller has chosen the compiler, rather than the numerics.
        why_inexact: why exact numerics, which were tried before, are unavailable, or "".
        passed_over: by name, why backends that were tried before don't drive the model.
        is_last: no other backend is tried with this compiler.
    """

    loaded: LoadedModel
    backend: ChosenBackend
    compiler: Compiler
    weights: Weights
    is_named: bool
    why_inexact: str
    passed_over: Mapping[str, str]
    is_last: bool

    @property
    def note(self) -> str:
        """The backend, and why others were passed over; "" if none were, and there is no choice, as on a CPU."""
        device = getattr(self.loaded.model, "device", torch.device("cpu"))
        if device.type == "cpu" and not self.passed_over:
            return ""
        why = [f"not with {name}: {reason}" for name, reason in self.passed_over.items()]
        return "; ".join([f"decoding with backend {self.backend.name}", *why])

    def open(self, on_close: Callable[[], object] | None = None) -> Target:
        """Return a target, which holds the examination of the model.

        Raises:
            ModelError: if the model can't be decoded in this way, with the reason.
        """
        from specdec.runtime.probes.examination import examine  # which needs transformers

        model, compiler, options = self.loaded.model, self.compiler, self.backend.options
        if self.backend.cls.runs_layers and not self.is_named and (why := compiler.refuses(model.device, model.dtype)):
            raise ModelError(why)
        backend, found = examine(self.backend.cls.load(model, compiler, options), model, compiler, options)
        try:
            if compiler.bit_exact and not self.is_named and found.inexact:
                raise _InexactError(found.inexact)
            if not self.is_last and (why := backend.why_slow()):
                raise _SlowError(why)
            is_optional = compiler.attention is not None and not (self.is_named or compiler.bit_exact)
            if is_optional and not backend.shapes.takes_trees:
                raise ModelError(f"the model takes chains only with {compiler!r}: {found.reason}")
        except Exception:
            backend.close()
            raise
        if self.why_inexact:
            found = replace(found, inexact=f"exact numerics are unavailable: {self.why_inexact}")
        return Target(backend, compiler, found, on_close)


class Attempts:
    """The attempts to decode a model. Each is made only if the one before has failed, since it may depend on why.

    Args:
        models: the model as one engine after another reads it.
        layouts: packs a model's weights in one way after another; receives the reasons against kernels tried so far.
    """

    def __init__(self, models: Iterable[LoadedModel], wanted: Wanted, registry: Registry, layouts: Layouts) -> None:
        self._models, self._wanted, self._registry, self._layouts = models, wanted, registry, layouts
        self._fault: Exception = ModelError("no engine has read the model")  # of the last attempt
        self._is_unsuitable = True  # the attempt at fault; its engine may serve another

    def first(self, use: Callable[[Attempt, Target], Parts], on_close: Callable[[], object] | None = None) -> Parts:
        """Return what ``use`` makes of the first attempt that succeeds; if it raises, it closes the target.

        An engine that is preferred to torch may fail in any way, and so may kernels in the place of a model's layers;
        torch only to open its target.

        Raises:
            ModelError: if the model can't be decoded, with the reason.
        """
        with closing(self._attempts()) as attempts:
            for attempt in attempts:
                target = None
                try:
                    target = attempt.open(on_close)
                    return use(attempt, target)
                except RequestError:
                    raise
                except Exception as error:  # a third party's code; others are tried next
                    is_expected = isinstance(error, ModelError) or attempt.backend.cls.replaces_layers
                    self._fault, self._is_unsuitable = error, target is None and is_expected
                    if not (self._is_unsuitable or attempt.loaded.engine):
                        raise
        raise self._fault

    def _attempts(self) -> Generator[Attempt]:
        for loaded in self._models:
            with unchanging(loaded.model):
                yield from self._of(loaded)
            if loaded.engine:
                loaded.failed[loaded.engine] = why_failed(self._fault)

    def _of(self, loaded: LoadedModel) -> Iterator[Attempt]:
        """Yield the attempts with one engine."""
        wanted, why_inexact = self._wanted, ""
        backends = backends_for(self._registry, wanted.backend, loaded.model)
        is_named = wanted.compiler is not None
        replaced = dict[str, str]()  # why what would replace the model's layers doesn't
        slow: Attempt | None = None  # but exact
        for compiler in [wanted.compiler] if wanted.compiler else self._compilers(loaded, backends[0]):
            failed = dict[str, str]()  # by kernel
            for weights in self._layouts_for(backends[0], loaded.model, failed):
                passed_over = dict(replaced)
                offered = _offered(backends, compiler, replaced)
                for backend in offered:
                    placed = replace(weights, engine=backend.name, runs_layers=backend.cls.runs_layers)
                    is_last, before = backend is offered[-1], dict(passed_over)
                    attempt = Attempt(loaded, backend, compiler, placed, is_named, why_inexact, before, is_last)
                    yield attempt
                    if not self._is_unsuitable:
                        return
                    failed[weights.kernel], passed_over[backend.name] = str(self._fault), why_failed(self._fault)
                    if isinstance(self._fault, _SlowError):
                        slow = attempt
                    if backend.cls.replaces_layers:
                        replaced[backend.name] = passed_over[backend.name]
                    elif isinstance(self._fault, _InexactError):
                        break  # the next one runs the same layers
            if compiler.bit_exact and not is_named:
                reasons = [*failed.values()]
                why_inexact = why_inexact or "; ".join(filter(None, [reasons[0], compiler.hint(reasons[0])]))
                why = f"numerics='exact' is unavailable here: {reasons[-1]}; use numerics='auto' or 'fast'"
                self._fault = ModelError(why)
        if slow:  # nothing faster is exact, and fast numerics weren't allowed
            yield replace(slow, is_last=True)

    def _compilers(self, loaded: LoadedModel, backend: ChosenBackend) -> Iterator[MaskCompiler]:
        """Yield the compilers that the numerics may choose, those that are bit-exact first."""
        # If a preferred engine has no exact numerics but torch has, torch is used.
        mode = "exact" if loaded.engine and self._wanted.numerics == "auto" else self._wanted.numerics
        device = getattr(loaded.model, "device", torch.device("cpu"))
        self._fault = ModelError(
            f"no installed mask compiler offers numerics={mode!r} on {device}: use numerics='auto'"
        )
        if mode != "fast":
            yield from self._registry.compilers(device, bit_exact=True, least=0 if mode == "auto" else -1)
        if mode != "exact":
            fast = self._registry.compilers(device, bit_exact=False, least=0)
            # Attention of its own runs among torch's layers alone.
            yield from (each for each in fast if each.attention is None or backend.cls.runs_layers)

    def _layouts_for(self, backend: ChosenBackend, model: Any, failed: Mapping[str, str]) -> Iterable[Weights]:
        if backend.cls.runs_layers:
            return self._layouts(model, failed)
        return [stock_or_refuse(self._wanted.weights, 0, f"backend {backend.name} lays them out itself")]


def _offered(
    backends: Sequence[ChosenBackend], compiler: Compiler, replaced: Mapping[str, str]
) -> Sequence[ChosenBackend]:
    """Return the backends that a compiler is tried with; all, if one was named.

    What replaces a model's layers needs masks of fixed shapes. It has products of its own, and another compiler may
    change those of the layers only, so it isn't tried again.
    """
    if len(backends) == 1:
        return backends
    suit = compiler.has_fixed_shapes
    return [each for each in backends if not each.cls.replaces_layers or (suit and each.name not in replaced)]
