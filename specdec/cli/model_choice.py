"""The options that say what decodes: declared here once, and the same on every command that loads a model."""

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from specdec.cli.options import load_model

if TYPE_CHECKING:
    from specdec.models.loading import ModelSource
    from specdec.runtime.engines import Opened


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, how it is loaded, and how it decodes."""

    model: Annotated[str, typer.Option(help="a folder or hub name; 'demo' is built in, 'smollm2' a larger one")] = (
        "demo"
    )
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16, float32 or float64 (default: the checkpoint's own)", show_default=False),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="torch device, e.g. cuda (default: a GPU if torch has one)", show_default=False)
    ] = None
    numerics: Annotated[str, typer.Option(help="exact, fast or auto: exact wherever this machine allows it")] = "auto"
    weights: Annotated[
        str, typer.Option(help="packed, stock or auto: packed where that is faster; or int8 (lossy)")
    ] = "auto"

    backend: Annotated[
        str, typer.Option(help="the engine, such as hf; auto: an installed one that is faster where it can be, or hf")
    ] = "auto"

    def load(self, *strategies: Any) -> tuple[Any, Any]:
        """The model and its tokenizer, as all of the strategies, proposers or their strings, can be driven with it.

        Raises:
            RequestError: for a device or a dtype that can't be had.
            ModelError: for a model that can't be loaded.
        """
        return load_model(self.model, self.device, self.dtype, partial(self.read, strategies))

    def read(self, strategies: Iterable[Any], source: "ModelSource") -> "Opened":
        """The model of a folder or hub name as the backend takes it, and its tokenizer."""
        from specdec.plugins.registry import load_plugins
        from specdec.runtime.engines import read_model, why_torch

        registry = load_plugins()
        made = [registry.make("proposers", each) for each in strategies]
        return read_model(registry, self.backend, source, None, why_torch(self.weights, None, made))

    @property
    def stages(self) -> dict[str, Any]:
        """The parts that decode, as ``Generator`` and comparisons take them."""
        return {"numerics": self.numerics, "weights": self.weights, "backend": self.backend}


USUAL = ModelChoice()


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """The command, its parameter of type ``ModelChoice`` replaced by an option for each field of that."""
    hints = get_type_hints(command, include_extras=True)
    (place,) = (name for name, hint in hints.items() if hint is ModelChoice)
    fields = get_type_hints(ModelChoice, include_extras=True)

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        from specdec.cli.ranks import RankedChoice, is_ranked

        choice = ModelChoice(**{name: given.pop(name) for name in fields})
        with ExitStack() as closing:
            given[place] = RankedChoice.of(choice, closing) if is_ranked() else choice
            command(**given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name != place:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        for field, hint in fields.items():
            own = inspect.Parameter(
                field, inspect.Parameter.KEYWORD_ONLY, default=getattr(USUAL, field), annotation=hint
            )
            parameters.append(own)
    vars(with_options)["__signature__"] = inspect.Signature(parameters)
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
