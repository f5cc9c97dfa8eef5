"""The options of a comparison."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdec.errors import RequestError, describe
from specdec.models.weights.modes import checked_weights
from specdec.numerics import Mode, checked_mode
from specdec.plugins.registry import load_plugins
from specdec.requests.options import RequestOptions
from specdec.settings import Settings

MAX_NEW_TOKENS = 64  # long enough for repetitions, short enough for a comparison to end in minutes


class ComparisonKeywords(RequestOptions, total=False):
    """The keyword arguments of comparisons, for type checkers and editors: ``ComparisonOptions``, and settings."""

    verifier: Any
    numerics: Mode
    weights: str
    backend: str
    repeats: int
    warm: bool
    chat: bool | None


class ComparisonOptions(BaseModel):
    """The checked options of a comparison.

    Attributes:
        verifier, numerics, weights, backend: as for ``Generator``; a generator among the strategies keeps its own.
        repeats: how often each strategy decodes each prompt.
        seed: seed of the order of runs and of sampling; repeat r samples with ``seed_of_sample(seed, r)``.
        warm: adds a row for each strategy that learns across requests. Its memory is filled by an uncounted pass over
            the prompts and kept between repeats; all other strategies start each repeat with an empty memory.
        chat: True sends all texts through the tokenizer's chat template, False none; None only instructions, if there
            is a template.
        decoding: settings of ``Generator.generate``; ``max_new_tokens`` is always set, by default to 64.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    verifier: Any = "match"
    numerics: Mode = "auto"
    weights: str = "auto"
    backend: str = "auto"
    repeats: int = Field(default=3, ge=1, strict=True)
    seed: int = 0
    warm: bool = False
    chat: bool | None = None
    decoding: Settings

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Self:
        """Check options before a model is loaded; names that aren't a comparison's are settings.

        Raises:
            SpecdecError: an option is invalid.
        """
        for name in ("logits_processor", "stopping_criteria"):
            if name in given:
                raise RequestError(f"a comparison can't have {name}: its requests would share the objects")
        own = {name: value for name, value in given.items() if name in cls.model_fields and name != "decoding"}
        settings = {name: value for name, value in given.items() if name not in own}
        seed = own.get("seed", cls.model_fields["seed"].default)
        checked_mode(own.get("numerics", "auto"))
        try:
            made = cls(**own, decoding=Settings.make({"max_new_tokens": MAX_NEW_TOKENS, "seed": seed, **settings}))
        except ValidationError as error:
            raise RequestError(f"options refused: {describe(error, cls)}") from None
        registry = load_plugins()
        registry.make("verifiers", made.verifier)
        checked_weights(made.weights, registry.kernels())
        if made.backend != "auto":
            registry.backend(made.backend)
        return made

    @property
    def stages(self) -> dict[str, Any]:
        """Verifier, numerics, weights and backend, as ``Generator`` takes them."""
        return {name: getattr(self, name) for name in ("verifier", "numerics", "weights", "backend")}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of every run, as keywords: those that were given, but not the seed, which is the run's own."""
        return {name: getattr(self.decoding, name) for name in self.decoding.model_fields_set - {"seed"}}
