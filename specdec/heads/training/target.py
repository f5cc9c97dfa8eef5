"""The part of a target that heads read: hidden states of some layers, computed batch by batch and never kept."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from specdec.errors import ModelError, plural
from specdec.models.architecture import attention_kinds, name_of, state_kinds

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class States:
    """A target's states of a batch.

    Attributes:
        layers: (rows, length, num_states * hidden), of the chosen layers, low layer first.
        final: (rows, length, hidden), after the final norm.
    """

    layers: torch.Tensor
    final: torch.Tensor


class TargetStates:
    """Runs a target for its hidden states.

    Args:
        model: the target.
        layer_ids: layers as transformers numbers ``hidden_states``: k is the state after k layers.

    Raises:
        ModelError: for a model whose layers aren't found, or that has no layer of such a number.
    """

    def __init__(self, model: "PreTrainedModel", layer_ids: Sequence[int]) -> None:
        self.decoder: Any = model.get_decoder()
        layers = getattr(self.decoder, "layers", None)
        if not isinstance(layers, torch.nn.ModuleList):
            raise ModelError(f"{name_of(model)} doesn't keep its layers in `layers`: heads can't be trained for it")
        self.layers = layers
        if not all(0 <= layer < len(layers) for layer in layer_ids):
            raise ModelError(f"{name_of(model)} has {len(layers)} layers: {list(layer_ids)} can't be read")
        self.model, self.layer_ids = model, list(layer_ids)
        config = model.config.get_text_config()
        if kinds_with_states := state_kinds(config):
            raise ModelError(
                f"{name_of(model)} has layers of kind {' and '.join(kinds_with_states)}, whose states follow one text: "
                "heads can't be trained for it"
            )
        kinds = attention_kinds(config, name_of(model))
        self.window = min((window.size for window in kinds.values() if window), default=None)

    @torch.no_grad()
    def of(
        self, tokens: torch.Tensor, positions: torch.Tensor | None = None, visible: torch.Tensor | None = None
    ) -> States:
        """Return the states of tokens (rows, length).

        Args:
            tokens: (rows, length).
            positions: (rows, length); None for 0, 1, ….
            visible: (rows, length, length), True where a position sees another; None for causal attention.

        Raises:
            ModelError: with ``visible``, for rows longer than the window of some layers.
        """
        mask = None if visible is None else self._mask(visible)
        with self._reading() as found:
            output = self.decoder(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
        final: torch.Tensor = output.last_hidden_state
        layers = [found[layer] for layer in self.layer_ids]
        return States(torch.cat(layers, -1) if layers else final[..., :0], final)

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return the mask that eager attention adds to its scores, (rows, 1, length, length), for all layers alike."""
        if self.window is not None and visible.shape[-1] > self.window:
            raise ModelError(
                f"{name_of(self.model)} has layers with a window of {plural(self.window, 'token')}, and rows of "
                f"{visible.shape[-1]} tokens don't fit into it: pack the text into shorter rows"
            )
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[:, None]

    @contextmanager
    def _reading(self) -> Iterator[dict[int, torch.Tensor]]:
        """Hooks on the layers, which note what each takes."""
        found = dict[int, torch.Tensor]()

        def hook(number: int) -> Any:
            def note(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                found[number] = args[0] if args else kwargs["hidden_states"]

            return note

        handles = [
            self.layers[layer].register_forward_pre_hook(hook(layer), with_kwargs=True) for layer in {*self.layer_ids}
        ]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
