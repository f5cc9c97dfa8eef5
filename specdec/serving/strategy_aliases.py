"""The strategies and rules that requests may use: by name with numeric options and choices, or by an operator's alias.

A text option may name a file or a model, so requests can't set it. Numbers are bounded, because some determine how much
memory a strategy takes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from specdec.errors import PluginError, SpecdecError
from specdec.plugins.options import name_and_options, options_of, read_value
from specdec.plugins.registry import Registry
from specdec.serving.errors import ApiError
from specdec.strategies.base import Proposer
from specdec.verifiers.base import Verifier

_MOST_KEPT = 64
_MOST = 1024  # of a request's number, unless the strategy's own default is larger
OFF = "off"


class StrategyAliases:
    """Strategies and rules by their names in requests; the same name returns the same object, with its state.

    Args:
        offered: the operator's strategies by alias.
        own: the name of the server's own strategy, as given by the operator.
    """

    def __init__(self, registry: Registry, offered: Mapping[str, str], own: Mapping[str, Proposer]) -> None:
        self._registry, self._own = registry, own
        self._offered = {name: registry.make("proposers", text) for name, text in offered.items()}
        self._made = lru_cache(_MOST_KEPT)(self._make)

    def proposer(self, name: str) -> Proposer:
        """Return the strategy that a request names.

        Raises:
            ApiError: if it isn't installed, or has options that a request can't set.
        """
        found = self._offered.get(name) or self._own.get(name)
        found = found or self._made("proposers", "autoregressive" if name == OFF else name)
        assert isinstance(found, Proposer), "the registry makes what it is asked for"
        return found

    def verifier(self, name: str) -> Verifier:
        """Return the acceptance rule that a request names; raises as ``proposer`` does."""
        found = self._made("verifiers", name)
        assert isinstance(found, Verifier), "the registry makes what it is asked for"
        return found

    @property
    def usual(self) -> list[Proposer]:
        """Return the strategies to bind at start: the server's own, plain decoding, the default and the offered."""
        return [*self._own.values(), *map(self.proposer, (OFF, "auto", *self._offered))]

    @property
    def names(self) -> list[str]:
        """Return the names of the strategies that requests may use, without options."""
        installed = [self._registry.name_of(plugin) for plugin in self._registry.of_kind("proposers")]
        return [OFF, *self._offered, *(name for name in installed if self._is_whole(name))]

    def _is_whole(self, name: str) -> bool:
        """Return True for a strategy that needs neither a file nor a model."""
        try:
            made = self._registry.make("proposers", name)
        except SpecdecError:
            return False
        return not any(
            _may_name_a_file(type(made), option) and getattr(made, option) for option in options_of(type(made))
        )

    def _make(self, kind: str, text: str) -> Proposer | Verifier:
        param = kind[:-1]
        try:
            parts = text.split("+") if kind == "proposers" else [text]
            for part in parts:
                self._check(kind, part.strip())
            made: Proposer | Verifier = self._registry.make(kind, text)
        except PluginError as error:
            raise ApiError(400, str(error).splitlines()[0], param, "invalid_value") from None
        return made

    def _check(self, kind: str, text: str) -> None:
        """Refuse options that only the operator may set."""
        name, options = name_and_options(text)
        cls = self._registry.find(kind, name)
        if kind == "proposers" and not self._is_whole(name):
            offered = f"; it offers {', '.join(self._offered)}" if self._offered else ""
            raise PluginError(f"{name} needs a file or a model, which only the server's operator can name{offered}")
        for pair in options.split(","):
            option, _, value = (part.strip() for part in pair.partition("="))
            if option not in options_of(cls):
                continue  # the registry has a better message
            if _may_name_a_file(cls, option):
                raise PluginError(f"{name}: option {option} is text, which only the server's operator can set")
            _check_size(option, read_value(value), options_of(cls)[option])


def _may_name_a_file(cls: type, option: str) -> bool:
    """Return True for an option that isn't a number, a boolean or one of a few words."""
    annotation: Any = cls.model_fields[option].annotation  # type: ignore[attr-defined]  # plug-ins with options have them
    kinds = get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    return any(get_origin(kind) is not Literal and kind not in (int, float, bool, type(None)) for kind in kinds)


def _check_size(option: str, value: object, default: object) -> None:
    most = max(_MOST, default if isinstance(default, int | float) else 0)
    if isinstance(value, int | float) and value > most:
        raise PluginError(f"{option}={value} is above the limit for requests, {most}")
