"""The strategies and rules that requests may use: by name with numeric options and choices, or by an operator's alias.

A text option may name a file or a model, so requests can't set it. The sizes of strategies are bounded, because they
determine how much time and memory a strategy takes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from specdec.apps.serving.errors import ApiError
from specdec.errors import PluginError, SpecdecError, shortened
from specdec.plugins.options import fields_of, name_and_options, options_of
from specdec.plugins.registry import Registry
from specdec.strategies.base import Proposer
from specdec.strategies.size import size_of
from specdec.verifiers.base import Verifier

_MOST_KEPT = 64
OFF = "off"


class StrategyAliases:
    """Strategies and rules by their names in requests; the same name returns the same object, with its state.

    Args:
        offered: the operator's strategies by alias.
        own: the name of the server's own strategy, as given by the operator.
        max_size: of a strategy that a request names, by ``size_of``.
    """

    def __init__(
        self, registry: Registry, offered: Mapping[str, str], own: Mapping[str, Proposer], max_size: float
    ) -> None:
        self._registry, self._own, self._max_size = registry, own, max_size
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
            if isinstance(made, Proposer) and (size := size_of(made)) > self._max_size:
                raise PluginError(
                    f"{shortened(text)} is as large as {size:,.1f} strategies with default options, and requests may "
                    f"name strategies as large as {self._max_size:g}: give smaller numbers or fewer parts, or ask the "
                    "server's operator, who sets --max-strategy-size"
                )
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
            option = pair.partition("=")[0].strip()
            if option not in options_of(cls):
                continue  # the registry has a better message
            if _may_name_a_file(cls, option):
                raise PluginError(f"{name}: option {option} is text, which only the server's operator can set")
            if kind == "proposers" and _is_unbounded(cls, option):
                raise PluginError(f"{name}: option {option} has no limit, so only the server's operator can set it")


def _may_name_a_file(cls: type, option: str) -> bool:
    """Return True for an option that isn't a number, a boolean or one of a few words."""
    annotation: Any = cls.model_fields[option].annotation  # type: ignore[attr-defined]  # plug-ins with options have them
    kinds = get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    return any(get_origin(kind) is not Literal and kind not in (int, float, bool, type(None)) for kind in kinds)


def _is_unbounded(cls: type, option: str) -> bool:
    """Return True for a real number without an upper bound, such as seconds for which the server would stand still."""
    field = fields_of(cls)[option]
    return field.annotation is float and not any(hasattr(each, "le") or hasattr(each, "lt") for each in field.metadata)
