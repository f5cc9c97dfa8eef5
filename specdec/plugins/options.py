"""The options of a plug-in, and their values in ``"name:key=value,…"``."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from specdec.configuration import Configuration
from specdec.errors import PluginError, SpecdecError, describe

Configured = TypeVar("Configured", bound=BaseModel)


def fields_of(cls: type) -> Mapping[str, FieldInfo]:
    """Return the options of a plug-in's class by name."""
    from specdec.backends.base import Backend  # imports torch, which reading a string doesn't need

    configuration = cls.Options if issubclass(cls, Backend) else cls
    return configuration.model_fields if issubclass(configuration, BaseModel) else {}


def options_of(cls: type) -> dict[str, object]:
    """Return the options of a plug-in's class with their defaults."""
    return {name: field.get_default(call_default_factory=True) for name, field in fields_of(cls).items()}


def name_and_options(given: str) -> tuple[str, str]:
    """Return a plug-in's name and the text of its options from a string ``"name:key=value,…"``."""
    name, _, options = given.partition(":")
    return name.strip(), options


def text_options(given: str) -> dict[str, str]:
    """Return the options of a string ``"name:key=value,…"``, by name, as they were written.

    Raises:
        PluginError: for an option that isn't of that form, or is given twice.
    """
    options = dict[str, str]()
    for pair in filter(None, (part.strip() for part in name_and_options(given)[1].split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise PluginError(f"{given!r}: {pair!r} is not of the form key=value (example: lookahead:N=5,W=15,G=15)")
        if key in options:
            raise PluginError(f"{given!r}: {key} is given twice")
        options[key] = value
    return options


def configured(cls: type[Configured], kind: str, given: str) -> Configured:
    """Return a configuration object with the options of a string ``"name:key=value,…"``."""
    name, values = name_and_options(given)[0], text_options(given)
    read = {key: read_value(value) for key, value in values.items()}
    try:
        return _made(cls, read)
    except ValidationError as error:
        wrong = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
        with suppress(ValidationError):  # a text option may look like a number
            return _made(cls, read | {key: value for key, value in values.items() if key in wrong})
        missing = [option for option, field in cls.model_fields.items() if field.is_required() and option not in values]
        if missing:  # other faults are reported once it is given
            what = cls.model_fields[missing[0]].description or "an option without a default"
            raise PluginError(f"{kind[:-1]} {name!r} needs {missing[0]} ({what}): give {name}:{missing[0]}=…") from None
        instead = cls.instead if issubclass(cls, Configuration) else None
        raise PluginError(f"options of {kind[:-1]} {name!r} refused: {describe(error, cls, instead)}") from None


def _made(cls: type[Configured], values: Mapping[str, object]) -> Configured:
    """Return a configuration object; raise pydantic's error where ``cls.__init__`` raises another for that reason."""
    try:
        return cls.model_validate(values)
    except SpecdecError as error:
        if isinstance(error.__cause__, ValidationError):
            raise error.__cause__ from None
        raise


def read_value(value: str) -> object:
    """Return the value of a JSON text (or Python's True, False and None); any other text unchanged."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
    except json.JSONDecodeError:
        return value
