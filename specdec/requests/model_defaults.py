"""The defaults that a model's own generation config sets."""

from dataclasses import dataclass, field
from typing import Any, Self

from specdec.settings import with_effect

_SUPPRESSED = "suppress_tokens", "begin_suppress_tokens"


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """The settings that are taken from a model's generation config."""

    eos_token_ids: tuple[int, ...] = ()
    suppressed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, vocab_size: int) -> Self:
        """Read the model's generation config, if it has one; as in transformers, it alone names the ends of text."""
        config = getattr(model, "generation_config", None)
        if config is None:
            return cls()
        eos = config.eos_token_id
        eos_token_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        suppressed = {name: value for name in _SUPPRESSED if (value := getattr(config, name, None))}
        # A configuration class's default end-of-text may not exist in a smaller vocabulary.
        return cls(tuple(token for token in eos_token_ids if token < vocab_size), suppressed)


def ignored_defaults(model: Any) -> tuple[str, ...]:
    """Return a note with the settings of the model's generation config that are ignored; empty if there are none."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return ()
    ignored = {name: value for name, value in with_effect(config).items() if name not in ("eos_token_id", *_SUPPRESSED)}
    found = [f"{name}={value!r}" for name, value in ignored.items()]
    note = f"ignored in the model's generation config: {', '.join(found)}; pass generation_config to apply it"
    return (note,) if found else ()
