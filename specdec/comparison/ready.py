"""Strategies made ready to be compared: a generator for each, and plain decoding to measure them by."""

import warnings
from collections.abc import Mapping
from typing import Any

from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.numerics import Mode, checked_mode
from specdec.plugins.registry import load_plugins
from specdec.settings import Settings
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.base import Proposer
from specdec.weights.modes import checked_weights

PLAIN = "autoregressive"
MAX_NEW_TOKENS = 64  # enough for a repetition to show, and a comparison ends in minutes


def check_options(
    *,
    verifier: Any = "match",
    numerics: Any = "auto",
    weights: Any = "auto",
    repeats: int = 3,
    seed: int = 0,
    **settings: Any,
) -> Settings:
    """A comparison's settings, checked as far as that takes no model.

    Raises:
        SpecdecError: for whatever of them can't be honoured.
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise RequestError(f"repeats={repeats!r}: it must be an integer of at least 1")
    if "logits_processor" in settings:
        raise RequestError("logits_processor can't be among the settings of a comparison: requests would share it")
    checked_mode(numerics)
    registry = load_plugins()
    registry.make("verifiers", verifier)
    checked_weights(weights, registry)
    return Settings.make({"max_new_tokens": MAX_NEW_TOKENS, "seed": seed, **settings})


class Ready:
    """Generators by name, all with one model.

    A generator that is given keeps its numerics and its rule. ``baseline`` is the name of ordinary plain decoding, in
    fast numerics whatever the others': speed-ups are over it. ``reference`` is that of plain decoding in exact numerics
    where any strategy has those, else the baseline's: texts are held against it. Either is added where no strategy is
    it. Where there is no other strategy, the numerics asked for decide whether there is a reference.

    Raises:
        SpecdecError: for what can't be made, generators of several models, and names that plain decoding needs.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any | None,
        strategies: Mapping[str, Any],
        verifier: Any,
        numerics: Mode,
        weights: str = "auto",
    ) -> None:
        self._given, self._verifier, self._numerics, self._weights = (model, tokenizer), verifier, numerics, weights
        registry = load_plugins()
        made = {
            name: given if isinstance(given, Generator) else registry.make("proposers", given)
            for name, given in strategies.items()
        }
        ordinary = next((name for name, given in made.items() if _is_ordinary(given)), None)
        self.generators = {
            name: given if isinstance(given, Generator) else self.make(given, "fast" if name == ordinary else numerics)
            for name, given in made.items()
        }
        self.baseline = self._with_baseline() if ordinary is None else ordinary
        plain = self.generators[self.baseline]
        self.model, self.tokenizer = self._given = plain.model, plain.tokenizer
        for name, generator in self.generators.items():
            if generator.model is not self.model:
                raise RequestError(f"strategy {name!r} is a generator of another model: make it with the same object")
        self.reference = self._with_reference()

    def make(self, proposer: Any, numerics: Mode | None = None) -> Generator:
        """A generator with the acceptance rule, and the numerics unless others are named.

        Plain decoding is plain whatever the rule: it is what the others' texts are held against.
        """
        strategy = load_plugins().make("proposers", proposer)
        rule = "match" if _is_plain(strategy) else self._verifier
        with warnings.catch_warnings():  # what it says is about to be measured
            warnings.filterwarnings("ignore", message="lookahead with N=")
            return Generator(
                *self._given,
                proposer=strategy,
                verifier=rule,
                numerics=numerics or self._numerics,
                weights=self._weights,
            )

    def _with_baseline(self) -> str:
        taken = self.generators.get(PLAIN)
        name = f"{PLAIN} (fast)" if taken is not None and _is_plain(taken.proposer) else PLAIN
        return self._add(name, self.make(PLAIN, "fast"))

    def _with_reference(self) -> str:
        exact = [name for name, generator in self.generators.items() if generator.numerics.is_bit_exact]
        for name in exact:
            if _is_plain(self.generators[name].proposer):
                return name
        if not exact and (len(self.generators) > 1 or self._numerics == "fast"):
            return self.baseline
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


def _is_plain(proposer: Proposer) -> bool:
    return isinstance(proposer, AutoregressiveProposer)


def _is_ordinary(given: Generator | Proposer) -> bool:
    """Return True if a strategy is plain decoding in fast numerics, or can still be made so."""
    if isinstance(given, Generator):
        return _is_plain(given.proposer) and given.numerics.mode == "fast"
    return _is_plain(given)
