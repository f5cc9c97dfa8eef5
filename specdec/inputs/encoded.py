"""The output of an encoder as a prompt's inputs, for the decoder of an encoder-decoder model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from specdec.errors import RequestError, plural
from specdec.inputs.base import Mark, PassPart, PromptInputs, digest_of
from specdec.models.encoder_decoders import EncoderOutput, output_of

ENCODER_OUTPUT, IDS_MASK, IDS_POSITIONS = "encoder_outputs", "decoder_attention_mask", "decoder_position_ids"


@dataclass(frozen=True, eq=False)
class EncodedPrompt(PromptInputs):
    """The output of an encoder for a prompt; the prompt's tokens are the decoder's.

    Attributes:
        encoder: the output, with the keys and values that the decoder has computed of it.
        view: of the model.
    """

    num_tokens: int
    encoder: EncoderOutput
    view: Any = None

    @cached_property
    def num_bytes(self) -> int:  # type: ignore[override]  # read only
        return 0 if self.view is None else int(self.view.bytes_of(self.encoder))

    @cached_property
    def marks(self) -> tuple[Mark, ...]:  # type: ignore[override]  # read only
        tensors = [self.encoder.output.last_hidden_state]
        return (Mark(0, digest_of(tensors if self.encoder.mask is None else [*tensors, self.encoder.mask])),)

    def for_draft_model(self, model: Any) -> "EncodedPrompt | None":
        if getattr(model, "state_size", None) is None:  # of text alone
            return None
        return replace(self, encoder=EncoderOutput(self.encoder.output, self.encoder.mask), view=model)

    def is_read_at(self, position: int) -> bool:
        return True

    @classmethod
    def arguments(cls, parts: Sequence[PassPart], positions: torch.Tensor) -> Mapping[str, Any]:
        assert all(isinstance(part.inputs, cls) for part in parts), "each row of a decoder has an encoder's output"
        return {"encoder": [part.inputs.encoder for part in parts if isinstance(part.inputs, cls)]}


def mask_of_ids(given: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the mask that belongs to the ids of a call of ``generate``, and not to an encoder's input."""
    found: torch.Tensor | None = given.get("attention_mask" if given.get(ENCODER_OUTPUT) is None else IDS_MASK)
    return found


def encoded_rows(
    view: Any, texts: Sequence[Sequence[int]], paddings: Sequence[int], given: Mapping[str, Any]
) -> list[EncodedPrompt]:
    """Return the inputs of each row of a call of ``generate``.

    Args:
        view: of the model.
        texts: by row, the decoder's prompt without padding.
        paddings: by row, the number of padding tokens.
        given: the arguments of the model's first pass, as ``generate`` prepares them.

    Raises:
        RequestError: for an output that doesn't fit the rows, or that the decoder can't read row by row.
    """
    output, mask, positions = given[ENCODER_OUTPUT], given.get("attention_mask"), given.get(IDS_POSITIONS)
    if not hasattr(output, "last_hidden_state"):
        output = output_of(output[0] if isinstance(output, tuple | list) else output)
    num_rows = len(output.last_hidden_state)
    if num_rows != len(texts):
        raise RequestError(f"{ENCODER_OUTPUT} has {plural(num_rows, 'row')}, the decoder's prompt {len(texts)}")
    if view.pad is not None and any(view.pad in text for text in texts):
        raise RequestError(
            f"{type(view.whole).__name__} counts no position for the padding token {view.pad} within a decoder's "
            "prompt: leave it out"
        )
    for number, (text, num_padding) in enumerate(zip(texts, paddings, strict=True)):
        if positions is not None and positions[number, num_padding:].tolist() != [*range(len(text))]:
            raise RequestError(f"{IDS_POSITIONS} must count each row's tokens from 0: leave it out")
    return [
        EncodedPrompt(
            len(text), EncoderOutput(_row_of(output, row), None if mask is None else mask[row : row + 1]), view
        )
        for row, text in enumerate(texts)
    ]


def _row_of(output: Any, row: int) -> Any:
    """Return one row of an encoder's output, without what it computed on the way."""
    tensors = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    return type(output)(**{name: value[row : row + 1] for name, value in tensors.items()})
