"""The contenders of a comparison: a generator for each strategy, and plain decoding to compare them with.

Plain decoding runs in up to two numerics. The *baseline* is fast: speed-ups are over it. The *reference* is exact:
texts in exact numerics are compared with it. A strategy that is plain decoding in one of the two takes that role.
Otherwise a baseline is added, and a reference if any strategy is exact (with the baseline alone: if the requested
numerics are exact). Without a reference the baseline takes its role.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.numerics import Mode
from specdec.plugins.registry import Registry, load_plugins
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.base import Proposer

PLAIN = "autoregressive"


class Contenders:
    """Generators by name, all with one model, and the names of the baseline and the reference among them.

    Args:
        stages: verifier, numerics, weights and backend, as ``Generator`` takes them.

    Raises:
        SpecdecError: a strategy is invalid, a generator has another model, or a strategy has plain decoding's name.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any | None,
        strategies: Mapping[str, Any],
        stages: Mapping[str, Any],
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._stages, self._numerics = stages, stages["numerics"]
        self._registry = load_plugins()
        read = read_strategies(self._registry, strategies)
        baseline = next((name for name, given in read.items() if _can_be_baseline(given)), None)
        self.generators = {
            name: self.make(given, "fast" if name == baseline else self._numerics) for name, given in read.items()
        }
        self.baseline = self._add_baseline() if baseline is None else baseline
        plain = self.generators[self.baseline]
        self.model, self.tokenizer = plain.model, plain.tokenizer
        for name, generator in self.generators.items():
            if generator.model is not self.model:
                raise RequestError(f"strategy {name!r} is a generator of another model: make it with the same object")
        self.reference = self._find_reference()

    def make(self, given: Any, numerics: Mode | None = None) -> Generator:
        """Make a strategy's generator in ``numerics``, by default the comparison's; a generator is returned as is.

        Plain decoding always has the rule ``match``: other texts are compared with it.
        """
        if isinstance(given, Generator):
            return given
        proposer = self._registry.make("proposers", given)
        with warnings.catch_warnings():  # it predicts what is about to be measured
            warnings.filterwarnings("ignore", message="lookahead with N=")
            own = {"verifier": "match"} if _is_plain(proposer) else {}
            return Generator(
                self.model,
                self.tokenizer,
                proposer=proposer,
                background_work=False,  # it would slow down one contender's run, and change passes in the middle
                **{**self._stages, **own, "numerics": numerics or self._numerics},
            )

    def _add_baseline(self) -> str:
        is_taken = _is_plain(self.generators.get(PLAIN))  # by the reference
        return self._add(f"{PLAIN} (fast)" if is_taken else PLAIN, self.make(PLAIN, "fast"))

    def _find_reference(self) -> str:
        exact = {name: made for name, made in self.generators.items() if made.numerics.is_bit_exact}
        plain = next((name for name, made in exact.items() if _is_plain(made)), None)
        if plain is not None:
            return plain
        is_needed = bool(exact) if len(self.generators) > 1 else self._numerics != "fast"
        if is_needed:
            generator = self.make(PLAIN, "auto" if self._numerics == "fast" else self._numerics)
            if generator.numerics.is_bit_exact:
                return self._add(f"{self.baseline} (exact)", generator)
            generator.close()
        return self.baseline

    def _add(self, name: str, generator: Generator) -> str:
        if name in self.generators:
            raise RequestError(f"the name {name!r} is plain decoding's: give the other strategy another name")
        self.generators[name] = generator
        return name


def read_strategies(registry: Registry, strategies: Mapping[str, Any]) -> dict[str, Generator | Proposer]:
    """Return the strategies by name, each as a generator or a proposer.

    Raises:
        SpecdecError: a strategy is unknown, or refuses an option.
    """
    return {
        name: given if isinstance(given, Generator) else registry.make("proposers", given)
        for name, given in strategies.items()
    }


def _is_plain(given: Generator | Proposer | None) -> bool:
    return isinstance(given.proposer if isinstance(given, Generator) else given, AutoregressiveProposer)


def _can_be_baseline(given: Generator | Proposer) -> bool:
    """True for plain decoding in fast numerics, or without a generator, which is then made in fast numerics."""
    return _is_plain(given) and (not isinstance(given, Generator) or given.numerics.mode == "fast")
