"""Choose the backend of a model: by name, by the model's name, or by the loaded model's type."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.backends.base import NO_OPTIONS, Backend, BackendOptions
from specdec.errors import ModelError, PluginError, SpecdecError, in_one_line, memory_ran_out
from specdec.inputs.processor import split
from specdec.models.auto_classes import has_processor
from specdec.models.encoder_decoders import decoder_of
from specdec.models.gguf_file import is_gguf
from specdec.models.gguf_settings import remark_on
from specdec.models.loading import ModelSource
from specdec.models.own_models import NAME, is_smollm2
from specdec.models.unwrapping import remedy_for
from specdec.plugins.options import name_and_options
from specdec.plugins.registry import Plugin, Registry
from specdec.strategies.base import Proposer


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """A backend's name and class with its options."""

    name: str
    cls: type[Backend]
    options: BackendOptions


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as an engine has read it, or as its owner has loaded it.

    Attributes:
        engine: the name of the backend that reads and drives it instead of torch; "" for torch.
        processor: of its images and audio, in which the tokenizer came; None for text alone.
        passed_over: by name, why preferred backends don't drive it.
        failed: by name, why preferred backends that tried have failed; shared by all readings of the model.
        remark: what else is to be known of the model as it was read; "" if nothing.
    """

    model: Any
    tokenizer: Any
    engine: str = ""
    processor: Any = None
    passed_over: Mapping[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remark: str = ""

    @property
    def is_fallback(self) -> bool:
        """True if torch decodes because a preferred backend tried and failed."""
        return bool(self.failed) and not self.engine

    @property
    def note(self) -> str:
        """The backend, the reason and the remark, in a line; "" if there was no choice and nothing to remark."""
        if self.engine:
            parts = [f"decoding with {self.engine}; backend hf decodes with torch"]
        else:
            parts = [f"decoding with torch, not with {name}: {why}" for name, why in self.passed_over.items()]
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


def read_models(
    registry: Registry, backend: str, source: ModelSource, tokenizer: Any | None, why: str = ""
) -> Iterator[LoadedModel]:
    """Read a model by its name, in the form that its backend takes: by one engine after another, fastest first.

    With "auto", backends that are preferred to torch come first. A caller whose engine can't decode the model notes the
    reason in ``failed`` before it asks for the next.

    Args:
        why: the reason against all preferred backends, or "".

    Raises:
        PluginError: for an unknown backend, or refused options.
        ModelError: if torch, or the backend of this name, can't read the model, with the reason.
    """
    if backend != "auto":
        cls, options = registry.backend(backend)
        yield _loaded(source, *cls.read(source, tokenizer, options))
        return
    source.hub_answer()  # refuses a wrong hub name first
    declined, failed = dict[str, str](), dict[str, str]()
    for plugin in preferred(registry):
        name = registry.name_of(plugin)
        declined[name] = why or _why_not_inputs(plugin, source) or _why_not(plugin, source)
        if not declined[name]:
            try:
                cls, options = registry.backend(name)
                loaded = _loaded(source, *cls.read(source, tokenizer, options), engine=name, failed=failed)
            except Exception as error:  # a third party's code; torch is tried next
                failed[name] = why_failed(error)
            else:
                yield loaded
    passed_over = declined | failed
    read = _read_by_torch(source, tokenizer, passed_over)
    yield _loaded(source, *read, passed_over=passed_over, failed=failed)


def _read_by_torch(source: ModelSource, tokenizer: Any | None, passed_over: Mapping[str, str]) -> tuple[Any, Any]:
    try:
        return Backend.read(source, tokenizer, NO_OPTIONS)
    except ModelError as error:
        others = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items() if reason not in str(error))
        if not others or memory_ran_out(error):
            raise
        raise ModelError(f"{error}. Backends passed over before torch: {others}") from error


def _loaded(source: ModelSource, model: Any, tokenizer: Any, **facts: Any) -> LoadedModel:
    """Return a model that was read, with a remark that a GGUF file's weights take several times the file's memory."""
    if is_smollm2(source.name):
        with suppress(AttributeError):  # of a backend's own
            model.name_or_path = NAME  # rather than where its cache is
    remark = ""
    if is_gguf(source.name):
        dtype, left_out = str(model.dtype).removeprefix("torch."), remark_on(Path(source.name))
        remark = f"the GGUF file's weights are dequantised to {dtype}"
        remark = f"{remark}; {left_out}" if left_out else remark
    inner, processor = split(tokenizer)
    return LoadedModel(decoder_of(model), inner, processor=processor, remark=remark, **facts)


def preferred(registry: Registry) -> list[Plugin]:
    """Return the installed backends that are preferred to torch for models given by name."""
    return [plugin for plugin in registry.of_kind("backends") if plugin.cls.is_preferred]  # type: ignore[attr-defined]  # checked to be a Backend when it registered


def _why_not_inputs(plugin: Plugin, source: ModelSource) -> str:
    if plugin.cls.takes_inputs or not has_processor(source.name, source.hub_answer()):  # type: ignore[attr-defined]  # as above
        return ""
    return "it reads text only, and the model has a processor of images or audio"


def _why_not(plugin: Plugin, source: ModelSource) -> str:
    try:
        return str(plugin.cls.declines(source))  # type: ignore[attr-defined]  # as above
    except Exception as error:  # a third party's code
        return why_failed(error)


def why_failed(error: Exception) -> str:
    """Return an error's first line, as the reason against a backend."""
    return str(error).splitlines()[0] if isinstance(error, SpecdecError) and str(error) else in_one_line(error)


def backends_for(registry: Registry, given: str, model: object) -> list[ChosenBackend]:
    """Return the backends that may drive a model, first choice first: the one of a name, or those for its type.

    Raises:
        PluginError: for an unknown name, or refused options.
        ModelError: if no backend accepts the model.
    """
    if not isinstance(given, str):
        raise PluginError(f"backend={given!r}: give a backend's name, or 'auto'")
    if given != "auto":
        return [ChosenBackend(name_and_options(given)[0], *registry.backend(given))]
    accepting = [plugin for plugin in registry.of_kind("backends") if plugin.cls.accepts(model)]  # type: ignore[attr-defined]  # as above
    if accepting:
        first, *others = (ChosenBackend(each.name, each.cls, each.cls.Options()) for each in accepting)  # type: ignore[attr-defined]
        # Of those that run torch's layers, each takes the models that the ones before refuse.
        return [first, *[other for other in others if first.cls.runs_layers and other.cls.runs_layers]]
    remedy = remedy_for(model) or (
        "pass a transformers causal language model (AutoModelForCausalLM), its path or hub name, or a ToyModel"
    )
    raise ModelError(f"no backend supports an object of type {type(model).__name__}: {remedy}{registry.faults()}")
