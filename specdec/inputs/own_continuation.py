"""A model's own continuation of a prompt with inputs: the reference for reading such prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from specdec.inputs.encoded import ENCODER_OUTPUT
from specdec.models.notes import lock_of

ENCODED = "mm_encoder_outputs"
_NUM_TOKENS = 3
GREEDY = {"do_sample": False, "num_beams": 1, "max_length": None, "min_length": 0, "min_new_tokens": None}
_OF_THE_CALL = "use_cache", "logits_to_keep", "cache_position"  # and the cache


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCall:
    """A call of ``generate`` as it was prepared.

    Attributes:
        input_ids: (rows, tokens).
        given: the arguments of the model's first pass.
    """

    model: Any
    input_ids: torch.Tensor
    given: Mapping[str, Any]

    @property
    def names(self) -> str:
        """The names of the inputs; of those that are encoded before the prompt, "image" and "video"."""
        given = self._inputs()
        encoded = given.pop(ENCODED, {})
        return ", ".join(sorted({*given, *(name for name, output in encoded.items() if output is not None)}))

    def continuation(self, row: int) -> tuple[list[int], torch.Tensor]:
        """Return a row's next tokens by ``generate``, and their logits, ``(tokens, vocab)``."""
        from transformers.generation import GenerationMixin  # imports transformers, which takes seconds

        given = self._inputs()
        is_encoded = ENCODER_OUTPUT in given  # which Whisper's own ``generate`` doesn't take
        generate = partial(GenerationMixin.generate, self.model) if is_encoded else self.model.generate
        with lock_of(self.model), torch.no_grad():
            output = generate(
                **{"decoder_input_ids" if is_encoded else "input_ids": self.input_ids},
                **given,
                max_new_tokens=_NUM_TOKENS,
                **GREEDY,
                output_logits=True,
                return_dict_in_generate=True,
            )
        logits = torch.stack([step[row] for step in output.logits])
        return output.sequences[row, self.input_ids.shape[1] :].tolist(), logits

    def _inputs(self) -> dict[str, Any]:
        """Return what was given besides ids, without what ``generate`` adds."""
        from specdec.models.architecture import CACHE_ARGUMENTS  # imports transformers, which takes seconds

        added = *CACHE_ARGUMENTS, *_OF_THE_CALL
        return {name: value for name, value in self.given.items() if value is not None and name not in added}
