"""Strategies made ready to be compared: a generator for each, and plain decoding to measure them by.

Plain decoding is there in two numerics. The baseline's are fast, whatever the others': speed-ups are over it. The
reference's are exact: texts of strategies in exact numerics are held against it. A strategy that is one of the two
serves as it. Otherwise the baseline is added, and so is the reference if a strategy is exact; where there are no
strategies but the baseline, if the numerics asked for are. Without a reference of its own the baseline is it, too.
"""

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
    backend: str = "auto",
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
    if backend != "auto":
        registry.backend(backend)
    return Settings.make({"max_new_tokens": MAX_NEW_TOKENS, "seed": seed, **settings})


class Ready:
    """Generators by name, all with one model, and the names of the two that are plain decoding.

    Args:
        stages: the verifier, numerics, weights and backend, as ``Generator`` takes them.

    Raises:
        SpecdecError: for what can't be made, generators of several models, and names that plain decoding needs.
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
        registry = load_plugins()
        read = {
            name: given if isinstance(given, Generator) else registry.make("proposers", given)
            for name, given in strategies.items()
        }
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
        """A strategy's generator, in the numerics named, else in those asked for; a generator stays as it is.

        Plain decoding is plain whatever the acceptance rule: it is what the others' texts are held against.
        """
        if isinstance(given, Generator):
            return given
        proposer = load_plugins().make("proposers", given)
        with warnings.catch_warnings():  # what it says is about to be measured
            warnings.filterwarnings("ignore", message="lookahead with N=")
            own = {"verifier": "match"} if _is_plain(proposer) else {}
            return Generator(
                self.model,
                self.tokenizer,
                proposer=proposer,
                **{**self._stages, **own, "numerics": numerics or self._numerics},
            )

    def _add_baseline(self) -> str:
        is_taken = _is_plain(self.generators.get(PLAIN))  # by plain decoding in exact numerics
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


def _is_plain(given: Generator | Proposer | None) -> bool:
    return isinstance(given.proposer if isinstance(given, Generator) else given, AutoregressiveProposer)


def _can_be_baseline(given: Generator | Proposer) -> bool:
    """Return True for plain decoding in fast numerics, or without a generator yet, which can still be made so."""
    return _is_plain(given) and (not isinstance(given, Generator) or given.numerics.mode == "fast")
