"""Choose the backend of a model: by name, by the model's name, or by the loaded model's type."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec.backends.base import Backend, BackendOptions
from specdec.errors import ModelError, PluginError, SpecdecError, in_one_line, memory_ran_out
from specdec.layout import Compiler
from specdec.models.gguf_file import is_gguf
from specdec.models.gguf_settings import remark_on
from specdec.models.loading import ModelSource, load_pretrained
from specdec.models.own_models import NAME, is_smollm2, reading
from specdec.models.unwrapping import remedy_for
from specdec.plugins.options import name_and_options
from specdec.plugins.registry import Plugin, Registry
from specdec.strategies.base import Proposer
from specdec.target import Target

NOTHING_FAILED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """A backend's name and class with its options, and the backend that is tried after it if it refuses a model."""

    name: str
    cls: type[Backend]
    options: BackendOptions
    otherwise: "ChosenBackend | None" = None

    def open(self, model: object, compiler: Compiler, on_close: Callable[[], object] | None = None) -> Target:
        """Load a model for a compiler's layouts, and examine it.

        Raises:
            ModelError: if no backend can drive the model so.
        """
        from specdec.probes.examination import examine  # which needs transformers

        try:
            backend = self.cls.load(model, compiler, self.options)
            backend, examination = examine(backend, model, compiler, self.options)
        except ModelError as error:
            if self.otherwise is None:
                raise
            try:
                return self.otherwise.open(model, compiler, on_close)
            except ModelError as other:
                raise other from error
        return Target(backend, compiler, examination, on_close)

    def loaded(self, backend: Backend) -> "ChosenBackend":
        """Return the choice that a loaded backend is of."""
        return self if self.otherwise is None or type(backend) is self.cls else self.otherwise.loaded(backend)


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that was read by its name.

    Attributes:
        engine: the name of the backend that reads and drives it instead of torch; "" for torch.
        passed_over: names and reasons of the preferred backends that don't drive it.
        failed: True if a preferred backend tried and failed.
        remark: what else is to be known of the model as it was read; "" if nothing.
    """

    model: Any
    tokenizer: Any
    engine: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()
    failed: bool = False
    remark: str = ""

    @property
    def note(self) -> str:
        """The backend, the reason and the remark, in a line; "" if there was no choice and nothing to remark."""
        if self.engine:
            parts = [f"decoding with {self.engine}; backend hf decodes with torch"]
        else:
            parts = [f"decoding with torch, not with {name}: {why}" for name, why in self.passed_over]
        return "; ".join([*parts, self.remark] if self.remark else parts)


def why_torch(weights: str, mask: object | None, strategies: Iterable[Proposer]) -> str:
    """Return why a generator needs a model whose layers torch runs, or ""."""
    if weights != "auto":
        return f"weights={weights!r} applies to torch's layers"
    if mask is not None:
        return "a mask applies to torch's attention"
    for strategy in strategies:
        if strategy.reads_layers:
            return f"{type(strategy).__name__} drafts with the model's own layers"
    return ""


def read_model(
    registry: Registry,
    backend: str,
    source: ModelSource,
    tokenizer: Any | None,
    why: str = "",
    failed: Mapping[str, str] = NOTHING_FAILED,
) -> Opened:
    """Read a model by its name, in the form that its backend takes.

    With "auto", backends that are preferred to torch are tried first.

    Args:
        why: the reason against all preferred backends, or "".
        failed: names and reasons of backends that read the model but failed to drive it.

    Raises:
        PluginError: for an unknown backend, or refused options.
        ModelError: if the model can't be read, with the reason.
    """
    is_own = is_smollm2(source.name)
    with reading(source.name) if is_own else nullcontext():
        opened = _read(registry, backend, source, tokenizer, why, failed)
    if is_own:
        with suppress(AttributeError):  # of a backend's own
            opened.model.name_or_path = NAME  # rather than where its cache is
    return _remarked(source, opened)


def _read(
    registry: Registry, backend: str, source: ModelSource, tokenizer: Any | None, why: str, failed: Mapping[str, str]
) -> Opened:
    if backend != "auto":
        cls, options = registry.backend(backend)
        return Opened(*cls.read(source, tokenizer, options))
    source = source.with_hub_answer()  # refuses a wrong hub name first
    reasons, has_failed = dict[str, str](), bool(failed)
    for plugin in preferred(registry):
        name = registry.name_of(plugin)
        reasons[name] = why or failed.get(name) or _why_not(plugin, source)
        if not reasons[name]:
            try:
                cls, options = registry.backend(name)
                return Opened(*cls.read(source, tokenizer, options), engine=name)
            except Exception as error:  # a third party's code; torch is tried next
                reasons[name], has_failed = why_failed(error), True
    try:
        loaded = load_pretrained(source.name, tokenizer, source.dtype, source.torch_device, source.hub_answer())
    except ModelError as error:
        others = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason not in str(error))
        if not others or memory_ran_out(error):
            raise
        raise ModelError(f"{error}. Backends passed over before torch: {others}") from error
    return Opened(*loaded, passed_over=tuple(reasons.items()), failed=has_failed)


def _remarked(source: ModelSource, opened: Opened) -> Opened:
    """Add that a GGUF file's weights were dequantised, in several times the file's memory, and what was left out."""
    if not is_gguf(source.name):
        return opened
    dtype = str(opened.model.dtype).removeprefix("torch.")
    left_out = remark_on(Path(source.name))
    remark = f"the GGUF file's weights are dequantised to {dtype}"
    return replace(opened, remark=f"{remark}; {left_out}" if left_out else remark)


def preferred(registry: Registry) -> list[Plugin]:
    """Return the installed backends that are preferred to torch for models given by name."""
    return [plugin for plugin in registry.of_kind("backends") if plugin.cls.is_preferred]  # type: ignore[attr-defined]  # checked to be a Backend when it registered


def _why_not(plugin: Plugin, source: ModelSource) -> str:
    try:
        return str(plugin.cls.declines(source))  # type: ignore[attr-defined]  # as above
    except Exception as error:  # a third party's code
        return why_failed(error)


def why_failed(error: Exception) -> str:
    """Return an error's first line, as the reason against a backend."""
    return str(error).splitlines()[0] if isinstance(error, SpecdecError) and str(error) else in_one_line(error)


def backend_for(registry: Registry, given: str, model: object) -> ChosenBackend:
    """Return the backend of a text such as ``"openvino:device=CPU"``; "auto" is the first that accepts and drives it.

    Raises:
        PluginError: for an unknown name, or refused options.
        ModelError: if no backend accepts the model.
    """
    if not isinstance(given, str):
        raise PluginError(f"backend={given!r}: give a backend's name, or 'auto'")
    if given != "auto":
        return ChosenBackend(name_and_options(given)[0], *registry.backend(given))
    accepting = [plugin for plugin in registry.of_kind("backends") if plugin.cls.accepts(model)]  # type: ignore[attr-defined]  # as above
    if accepting:
        chosen, *others = (ChosenBackend(each.name, each.cls, each.cls.Options()) for each in accepting)  # type: ignore[attr-defined]
        # A backend that is a special case of another leaves the models that it refuses to that one.
        return replace(chosen, otherwise=next((other for other in others if issubclass(chosen.cls, other.cls)), None))
    remedy = remedy_for(model) or (
        "pass a transformers causal language model (AutoModelForCausalLM), its path or hub name, or a ToyModel"
    )
    raise ModelError(f"no backend supports an object of type {type(model).__name__}: {remedy}{registry.faults()}")
