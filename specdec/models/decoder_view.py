"""An encoder-decoder model, seen as the causal model that its decoder is.

``DecoderView`` has the forward, configuration and modules of a model with a decoder alone, so backends, probes and
strategies drive it like any other. It calls the model's own forward with the output of an encoder. In passes without
one, as in the self-test, the output is fixed random numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from specdec.models.architecture import cache_argument
from specdec.models.cross_states import CrossStack
from specdec.models.decoder_positions import DecoderPositions
from specdec.models.encoder_decoders import EncoderOutput, KeysAndValues, output_of
from specdec.models.notes import share_lock

_SEED = 2402
# Where a configuration of both sides has a decoder's own.
_OF_DECODER = {
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "max_target_positions": "max_position_embeddings",
    "max_decoder_position_embeddings": "max_position_embeddings",  # LED
    "max_text_positions": "max_position_embeddings",  # SpeechT5
}
_NUM_BLANK = 64  # states of an encoder whose configuration doesn't say how many it has


class DecoderView(PreTrainedModel):  # type: ignore[misc]  # transformers is untyped here
    """The decoder and head of an encoder-decoder model, which shares them and isn't changed.

    Attributes:
        pad: the id that mustn't be in a prompt, since the decoder counts no position for it; None if there is none.
    """

    def __init__(self, model: Any) -> None:
        torch.nn.Module.__init__(self)  # PreTrainedModel's own would write to the configuration
        self._whole = (model,)  # not a part, so that the encoder is left alone
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.config, self.training = config_of_decoder(model), False
        self._cache_argument = cache_argument(model)
        self._positions = DecoderPositions(self.decoder)
        self.pad = self._positions.pad
        # Its states come and go, and aren't part of what the model computes.
        self._specdec_cross = CrossStack(self._read, _takes_mask(self.decoder))
        self._specdec_blank = _blank_of(model)
        share_lock(model, self)

    @property
    def whole(self) -> Any:
        """The encoder-decoder model."""
        return self._whole[0]

    @property
    def state_size(self) -> int:
        """The size of an encoder's states as the decoder reads them."""
        return int(self._specdec_blank.output.last_hidden_state.shape[-1])

    @property
    def generation_config(self) -> GenerationConfig:
        """That of the whole model."""
        found: GenerationConfig = self.whole.generation_config
        return found

    def is_of(self, model: Any) -> bool:
        """Return True if the model's decoder and head are those of the view."""
        return model.get_decoder() is self.decoder and model.get_output_embeddings() is self.head

    def bytes_of(self, prompt: EncoderOutput) -> int:
        """Return the bytes of an encoder's states, and of the decoder's keys and values of them."""
        [num_states] = self._specdec_cross.of([self._specdec_blank]).num_states
        of_blank = sum(keys.nbytes + values.nbytes for keys, values in self._specdec_blank.layers)
        states = prompt.output.last_hidden_state
        return int(states.nbytes) + of_blank // num_states * int(states.shape[1])

    def get_decoder(self) -> torch.nn.Module:
        """Return the decoder."""
        found: torch.nn.Module = self.decoder
        return found

    def get_input_embeddings(self) -> torch.nn.Module:
        """Return the decoder's embeddings."""
        found: torch.nn.Module = self.decoder.get_input_embeddings()
        return found

    def get_output_embeddings(self) -> torch.nn.Module:
        """Return the head."""
        found: torch.nn.Module = self.head
        return found

    def forward(  # noqa: PLR0913, PLR0917 - the arguments are transformers'
        self,
        input_ids: torch.Tensor,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool = True,
        output_hidden_states: bool | None = None,
        encoder: Sequence[EncoderOutput] | None = None,
    ) -> CausalLMOutputWithPast:
        """Run the decoder.

        Args:
            input_ids, position_ids: (rows, width).
            attention_mask: (rows, 1, width, slots), or by kind of layer; None for the model's own.
            cache: of the decoder's own keys and values.
            encoder: by row, what the encoder computed; None for fixed random numbers.
        """
        cross = self._specdec_cross.of(encoder or [self._specdec_blank] * len(input_ids))
        mask = cross.mask_of(input_ids.shape[1])
        more: dict[str, Any] = {} if mask is None else {"encoder_attention_mask": mask}
        with ExitStack() as hooks:
            if position_ids is not None:
                attention_mask = self._positions.corrected(attention_mask, position_ids)
                more |= self._positions.arguments(position_ids)
                hooks.enter_context(self._positions.looked_up(input_ids, position_ids))
            hooks.enter_context(_with_arguments(self.decoder, more))
            hooks.enter_context(_with_columns(self.head, logits_to_keep))
            output = self._run(
                input_ids,
                self._shaped(len(input_ids), max(cross.num_states)),
                EncoderDecoderCache(DynamicCache() if cache is None else cache, cross.cache),
                decoder_attention_mask=attention_mask,
                **({"output_hidden_states": True} if output_hidden_states else {}),
            )
        return CausalLMOutputWithPast(logits=output.logits, hidden_states=output.decoder_hidden_states)

    def _run(self, ids: torch.Tensor, output: Any, cache: EncoderDecoderCache, **more: Any) -> Any:
        named = {self._cache_argument: cache, "use_cache": True, "return_dict": True}
        return self.whole(encoder_outputs=output, decoder_input_ids=ids, **named, **more)

    def _shaped(self, num_rows: int, num_states: int) -> Any:
        """Return an encoder's output of some shape, from which no keys and values are computed."""
        states = self._specdec_blank.output.last_hidden_state[:1, :1]
        return output_of(states.expand(num_rows, num_states, -1))

    def _read(self, prompt: EncoderOutput) -> list[KeysAndValues]:
        """Return what the decoder's layers read of a prompt; runs them for one token."""
        passed: dict[str, Any] = {}

        def note(_: torch.nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            passed.update(given)

        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        cache, handle = EncoderDecoderCache(DynamicCache(), DynamicCache()), None
        masks = {} if prompt.mask is None else {"attention_mask": prompt.mask}
        try:
            handle = self.decoder.register_forward_pre_hook(note, with_kwargs=True)
            self._run(token, prompt.output, cache, **masks)
        finally:
            if handle is not None:
                handle.remove()
        mask = passed.get("encoder_attention_mask")
        layers = [(layer.keys, layer.values) for layer in cache.cross_attention_cache.layers]
        if mask is None or bool(mask.all()):
            return layers
        seen = mask[0].nonzero().flatten()
        return [(keys[:, :, seen], values[:, :, seen]) for keys, values in layers]


def config_of_decoder(model: Any) -> Any:
    """Return a configuration of an encoder-decoder model's decoder, which shares all values with the model's own."""
    own = getattr(model.get_decoder(), "config", model.config)
    theirs = {name: own.attribute_map.get(other, other) for other, name in _OF_DECODER.items() if hasattr(own, other)}
    if not theirs and not own.is_encoder_decoder:
        return own
    attributes = {
        "__module__": __name__,
        "attribute_map": {**type(own).attribute_map, **theirs},
        "is_encoder_decoder": property(lambda _: False),
    }
    shared: Any = object.__new__(type(f"Decoder{type(own).__name__}", (type(own),), attributes))
    object.__setattr__(shared, "__dict__", vars(own))
    return shared


def _takes_mask(decoder: torch.nn.Module) -> bool:
    return "encoder_attention_mask" in signature(decoder.forward).parameters


def _blank_of(model: Any) -> EncoderOutput:
    """Return the output of an encoder as fixed random numbers."""
    config = getattr(model.get_encoder(), "config", model.config).get_text_config()
    num_states = getattr(config, "max_source_positions", None) or _NUM_BLANK
    states = torch.randn(1, num_states, config.hidden_size, generator=torch.Generator().manual_seed(_SEED))
    return EncoderOutput(output_of(states.to(model.device, model.dtype)))


@contextmanager
def _with_arguments(decoder: torch.nn.Module, more: dict[str, Any]) -> Iterator[None]:
    """Temporarily pass some arguments to a decoder, besides those that the model passes."""
    if not more:
        yield
        return
    handle = decoder.register_forward_pre_hook(lambda _, args, given: (args, given | more), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _with_columns(head: torch.nn.Module, columns: int | torch.Tensor) -> Iterator[None]:
    """Temporarily compute the head's logits for some columns alone: an index of them, or the number of last ones."""
    if isinstance(columns, int) and columns == 0:
        yield
        return
    kept = slice(-columns, None) if isinstance(columns, int) else columns
    handle = head.register_forward_pre_hook(lambda _, given: (given[0][:, kept], *given[1:]))
    try:
        yield
    finally:
        handle.remove()
