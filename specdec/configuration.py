"""The base of the configurations of strategies, acceptance rules and constraints."""

from collections.abc import Mapping
from typing import Any, ClassVar, Never

from pydantic import BaseModel, ConfigDict, ValidationError

from specdec.errors import PluginError, SpecdecError, describe

_SHOWN = str, int, float, type(None)  # types whose values are short


class Configuration(BaseModel):
    """Frozen options; the constructor refuses values without names, unknown names and wrong values in one line.

    Attributes:
        error_class: the class of that error, whose cause is pydantic's.
        instead: by the name of an option that doesn't exist: what to use instead, as a sentence of that error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    error_class: ClassVar[type[SpecdecError]] = PluginError
    instead: ClassVar[Mapping[str, str]] = {}

    def __init__(self, /, *values: Never, **options: Any) -> None:
        """Raises an ``error_class`` for values without a name, unknown names and wrong values.

        ``model_validate`` does so too.
        """
        if values:
            raise self.error_class(_by_name(type(self), values, options))
        try:
            super().__init__(**options)
        except ValidationError as error:
            fault = describe(error, type(self), self.instead)
            raise self.error_class(f"{type(self).__name__} refused: {fault}") from error


def _by_name(cls: type[Configuration], values: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return the call with names that was probably meant by values without names, in the order of the options."""
    free = [name for name in cls.model_fields if name not in options]
    if len(values) > len(free):
        return f"{cls.__name__} takes options by name alone, and has {', '.join(cls.model_fields) or 'none'}"
    named = dict(zip(free, values, strict=False)) | options
    shown = (f"{name}={value!r}" if isinstance(value, _SHOWN) else f"{name}=…" for name, value in named.items())
    return f"{cls.__name__} takes options by name: {cls.__name__}({', '.join(shown)})"
