"""Encoder-decoder models: the view of their decoder, and the outputs of their encoder."""

from dataclasses import dataclass, field
from typing import Any

import torch

from specdec.errors import ModelError
from specdec.models.notes import notes_of

KeysAndValues = tuple[torch.Tensor, torch.Tensor]  # of a layer, (1, heads, states, size)


@dataclass(eq=False)
class EncoderOutput:
    """The output of an encoder for one prompt.

    Attributes:
        output: in the class of the encoder, with one row.
        mask: the mask that the encoder's input had, (1, tokens); None if it had none.
        layers: each decoder layer's keys and values, without padding; empty until a pass needs them.
    """

    output: Any
    mask: torch.Tensor | None = None
    layers: list[KeysAndValues] = field(default_factory=list)


def decoder_of(given: Any) -> Any:
    """Return the view of an encoder-decoder model, made at the first call; any other model as it is.

    Raises:
        ModelError: for a model without a head, with the remedy.
    """
    model, config = given, getattr(given, "config", None)
    if not isinstance(given, torch.nn.Module) or not getattr(config, "is_encoder_decoder", False):
        return given
    if model.get_output_embeddings() is None:
        raise ModelError(
            f"{type(model).__name__} has no language-model head: load it with AutoModelForSeq2SeqLM or "
            "AutoModelForSpeechSeq2Seq"
        )
    from specdec.models.decoder_view import DecoderView

    notes = notes_of(model)
    view = notes.decoder_view
    if view is None or not view.is_of(model):
        notes.decoder_view = view = DecoderView(model)
    return view


def whole_of(model: Any) -> Any | None:
    """Return the encoder-decoder model of a view; None for any other model."""
    return getattr(model, "whole", None)


def has_one_vocabulary(model: Any) -> bool:
    """Return True for an encoder-decoder model whose encoder and decoder have vocabularies of one size."""
    if not model.config.is_encoder_decoder or model.main_input_name != "input_ids":
        return False
    sides = model.get_encoder(), model.get_decoder()
    one, other = (len(side.get_input_embeddings().weight) for side in sides)
    return one == other


def output_of(states: torch.Tensor) -> Any:
    """Return an encoder's states, (rows, states, size), as a decoder's model takes them."""
    from transformers.modeling_outputs import BaseModelOutput

    output = BaseModelOutput(last_hidden_state=states)
    output.attention_mask = output.router_logits = None  # which Moonshine and NLLB-MoE read
    return output
