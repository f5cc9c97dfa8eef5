"""The defaults that a model's own generation config sets."""

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Settings from a model's generation config, with a note that lists the ignored settings."""

    eos_token_ids: tuple[int, ...] = ()
    suppressed: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Any, vocab_size: int) -> Self:
        """Read the model's generation config, if it has one."""
        config = getattr(model, "generation_config", None)
        if config is None:
            return cls()
        eos = config.eos_token_id if config.eos_token_id is not None else model.config.get_text_config().eos_token_id
        eos_token_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        names = ("suppress_tokens", "begin_suppress_tokens")
        suppressed = {name: value for name in names if (value := getattr(config, name, None))}
        ignored = (
            "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
            "no_repeat_ngram_size", "max_length", "max_new_tokens", "num_beams", "forced_eos_token_id", "penalty_alpha",
        )  # fmt: skip
        found = [f"{name}={getattr(config, name)!r}" for name in ignored if getattr(config, name, None) is not None]
        note = f"ignored in the model's generation config: {', '.join(found)}; pass generation_config to apply it"
        # A configuration class's default end-of-text may not exist in a smaller vocabulary.
        return cls(tuple(token for token in eos_token_ids if token < vocab_size), suppressed, (note,) if found else ())
