"""The model options, which all commands that load a model share."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.early_checks import check_length, check_stages
from specdec.apps.cli.option_groups import OptionGroup
from specdec.apps.cli.options import ModelOption, named_model, quieten_transformers
from specdec.apps.cli.progress import status
from specdec.errors import HubUnreachableError, ModelError, nearest
from specdec.models.loading import checked_dtype, checked_name
from specdec.models.own_models import BUILT_IN, NAME, OWN_MODELS, default_model

if TYPE_CHECKING:
    from specdec.models.loading import ModelSource
    from specdec.plugins.registry import Registry
    from specdec.runtime.backend_choice import LoadedModel
    from specdec.strategies.base import Proposer

NO_SETTINGS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ModelChoice(OptionGroup):
    """A model, how it is loaded, and how it decodes."""

    model: ModelOption = None
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16, float32 or float64 (default: the checkpoint's own)", show_default=False),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="torch device, e.g. cuda (default: a GPU if torch has one)", show_default=False)
    ] = None
    numerics: Annotated[
        str,
        typer.Option(
            help="exact: drafts never change the text; fast: they may where two tokens' scores are nearly equal; auto: "
            "exact wherever this machine allows it"
        ),
    ] = "auto"
    weights: Annotated[
        str,
        typer.Option(
            help="memory layout of torch's weights: packed, stock (unchanged) or auto (packed where that is faster); "
            "int8 rounds them, which changes the text"
        ),
    ] = "auto"
    backend: Annotated[
        str,
        typer.Option(
            help="the engine that runs the model: hf (torch), static or fused (CUDA graphs) or an installed one, such "
            "as openvino; auto: openvino on CPUs where it is installed and can run the model, static on GPUs, else hf"
        ),
    ] = "auto"

    def load(self, *strategies: Any, is_logged: bool = False, has_media: bool = False) -> tuple[Any, Any]:
        """Load the model and its tokenizer, in a form that all of the strategies support.

        transformers' messages are left out, as they would mix with the text. The built-in model is always run by torch.
        For any other, a line on standard error names the engine if there was a choice.

        Args:
            is_logged: as for ``status``.
            has_media: return the processor in the tokenizer's place, if the model has one.

        Raises:
            RequestError: for an unavailable device or dtype.
            SpecdecError: before loading, if a strategy can't use its files.
            ModelError: if the model can't be loaded.
        """
        registry, made = _checked(strategies)
        with status(f"loading {self.name}"):
            source = self._checked_source()
        name = named_model(self.model)
        with status(f"loading {name}", is_logged):  # on a line of its own after the checks alone
            quieten_transformers()
            if name == BUILT_IN:
                from specdec import demo

                # The dtype is given at load because casting a model later rounds its rotary frequencies as well.
                model, tokenizer = demo.load() if self.dtype is None else demo.load(dtype=source.dtype)
                return model if source.torch_device == "cpu" else model.to(source.torch_device), tokenizer
            with self._naming_own():
                opened = self.read(registry, made, source)
        if opened.note:
            Console(stderr=True, highlight=False).print(opened.note, style="dim", markup=False, soft_wrap=True)
        return opened.model, opened.processor if has_media and opened.processor else opened.tokenizer

    def check_early(
        self,
        *strategies: str,
        verifier: str = "match",
        settings: Mapping[str, Any] = NO_SETTINGS,
        prompts: Iterable[str] = (),
    ) -> None:
        """Refuse what can be refused before torch and transformers are imported.

        Args:
            prompts: texts that will be decoded, which the model's configuration may not allow.

        Raises:
            SpecdecError: for a name, a file, a setting or a prompt that ``load`` or decoding would refuse.
        """
        check_stages(strategies, verifier, **self.stages, settings=settings)
        with self._naming_own():
            folder = checked_name(self.name)
        checked_dtype(self.dtype)
        check_length(folder, prompts, settings.get("max_new_tokens", 0))

    def check(self, *strategies: Any) -> None:
        """Check the model's path, device and dtype and the strategies' files, as ``load`` does, but load nothing.

        Raises:
            SpecdecError: if ``load`` would refuse one of them.
        """
        _checked(strategies)
        self._checked_source()

    def _checked_source(self) -> "ModelSource":
        """Check the path, device and dtype, without the hub."""
        from specdec.models.loading import ModelSource

        return ModelSource.of(self.name, self.device, self.dtype)

    def refuse_missing(self) -> None:
        """Refuse a path or hub name without a model, before torch and transformers are imported; may ask the hub.

        Raises:
            ModelError: with the remedy.
        """
        from specdec.models.hub import HubAnswer

        with self._naming_own():
            HubAnswer.of(checked_name(self.name))

    @contextmanager
    def _naming_own(self) -> Iterator[None]:
        """Add the model of specdec's own that was probably meant to a ModelError."""
        try:
            yield
        except ModelError as error:
            if self.name in OWN_MODELS:
                raise
            if isinstance(error, HubUnreachableError) and self.name.endswith(f"/{NAME}"):
                raise ModelError(f"{error}; --model smollm2 needs no hub") from error
            if near := nearest(self.name, OWN_MODELS):
                raise ModelError(f"{error}; did you mean --model {near[0]}?") from error
            raise

    def read(self, registry: "Registry", strategies: Iterable["Proposer"], source: "ModelSource") -> "LoadedModel":
        """Read a model from a folder or hub name in the backend's form, and its tokenizer."""
        from specdec.runtime.backend_choice import read_models, why_torch

        why = why_torch(self.weights, None, strategies)
        return next(read_models(registry, self.backend, source, None, why))

    @property
    def name(self) -> str:
        """The model's name as it was given, or the default's."""
        return default_model() if self.model is None else self.model

    @property
    def stages(self) -> dict[str, Any]:
        """Return the options for ``Generator`` and comparisons."""
        return {"numerics": self.numerics, "weights": self.weights, "backend": self.backend}


USUAL = ModelChoice()


def _checked(strategies: Iterable[Any]) -> "tuple[Registry, list[Proposer]]":
    """Make strategies, and check their files."""
    from specdec.plugins.registry import load_plugins
    from specdec.runtime.strategies import check_files

    registry = load_plugins()
    made: list[Proposer] = [registry.make("proposers", each) for each in strategies]
    check_files(made)
    return registry, made
