"""The ways to decode a model, fastest first: engines, mask compilers and layouts of torch's weights."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specdec.errors import ModelError, RequestError
from specdec.layout import Compiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.models.fingerprint import unchanging
from specdec.models.independent_rows import has_kernels
from specdec.numerics import Mode
from specdec.plugins.registry import Registry
from specdec.runtime.backend_choice import ChosenBackend, LoadedModel, backends_for, why_failed
from specdec.target import Target
from specdec.weights.pack_model import Weights, stock_or_refuse
from specdec.weights.row_independence import PRODUCT

Parts = TypeVar("Parts")
Layouts = Callable[[Any, Mapping[str, str]], Iterable[Weights]]


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
        must_be_exact: True for a bit-exact compiler that the numerics, rather than the caller, have chosen.
        why_inexact: why exact numerics, which were tried before, are unavailable, or "".
    """

    loaded: LoadedModel
    backend: ChosenBackend
    compiler: Compiler
    weights: Weights
    must_be_exact: bool
    why_inexact: str

    def open(self, on_close: Callable[[], object] | None = None) -> Target:
        """Return a target, which holds the examination of the model.

        Raises:
            ModelError: if the model can't be decoded in this way, with the reason.
        """
        from specdec.probes.examination import examine  # which needs transformers

        model, compiler, options = self.loaded.model, self.compiler, self.backend.options
        backend, found = examine(self.backend.cls.load(model, compiler, options), model, compiler, options)
        if self.must_be_exact and found.inexact:
            backend.close()
            raise _InexactError(found.inexact)
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

        An engine that is preferred to torch may fail in any way, torch only to open its target.

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
                    self._fault, self._is_unsuitable = error, target is None and isinstance(error, ModelError)
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
        # If a preferred engine has no exact numerics but torch has, torch is used.
        mode = "exact" if loaded.engine and wanted.numerics == "auto" else wanted.numerics
        backends = backends_for(self._registry, wanted.backend, loaded.model)
        for compiler in _compilers(mode, loaded.model) if wanted.compiler is None else [wanted.compiler]:
            must_be_exact = wanted.compiler is None and compiler.bit_exact
            failed = dict[str, str]()  # by kernel
            for weights in self._layouts_for(backends[0], loaded.model, failed):
                for backend in backends:
                    placed = replace(weights, engine=backend.name, runs_layers=backend.cls.runs_layers)
                    yield Attempt(loaded, backend, compiler, placed, must_be_exact, why_inexact)
                    if not self._is_unsuitable:
                        return
                    failed[weights.kernel] = str(self._fault)
                    if isinstance(self._fault, _InexactError):  # so are other backends
                        break
            if must_be_exact:
                reasons = [*failed.values()]
                why_inexact = why_inexact or _with_hint(reasons[0], loaded.model)
                why = f"numerics='exact' is unavailable here: {reasons[-1]}; use numerics='auto' or 'fast'"
                self._fault = ModelError(why)

    def _layouts_for(self, backend: ChosenBackend, model: Any, failed: Mapping[str, str]) -> Iterable[Weights]:
        if backend.cls.runs_layers:
            return self._layouts(model, failed)
        return [stock_or_refuse(self._wanted.weights, 0, f"backend {backend.name} lays them out itself")]


def _with_hint(why: str, model: Any) -> str:
    """Return the reason, with what else may make the model exact."""
    if PRODUCT not in why or not has_kernels(getattr(model, "device", None)):
        return why
    return f"{why}; numerics='exact' computes linear layers by a kernel of its own, which reads prompts more slowly"


def _compilers(mode: Mode, model: Any) -> Iterator[Compiler]:
    """Yield the compilers of a mode, in the order in which they are tried."""
    if mode != "fast" and has_kernels(getattr(model, "device", None)):
        yield SlotTableCompiler()
        if mode == "exact":  # reading prompts takes several times as long then
            yield SlotTableCompiler(own_products=True)
    elif mode != "fast":
        yield ExactCompiler()
    if mode != "exact":
        yield DenseCompiler()
