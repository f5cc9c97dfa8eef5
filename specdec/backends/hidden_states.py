"""Hidden states of a few layers, collected by forward hooks that are registered for one pass.

transformers' ``output_hidden_states`` collects all layers and leaves its hooks in the model.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel


class HiddenStates:
    """The modules of a model at which hidden states are collected, with transformers' numbers.

    State 0 is the input of the first layer, state k the output of layer k, and the last state the output of the module
    that contains the layers, after its final norm.

    Attributes:
        is_able: False if the model has no single list of layers; use ``output_hidden_states`` then.
        holder, layers: the module that contains the layers, and their list.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        depth = model.config.get_text_config().num_hidden_layers
        decoder = model.get_decoder()
        found = [
            (module, child)
            for module in (model if decoder is None else decoder).modules()
            for child in module.children()
            if isinstance(child, torch.nn.ModuleList) and len(child) == depth
        ]
        self.is_able = len(found) == 1
        self.holder, self.layers = found[0] if self.is_able else (model, torch.nn.ModuleList())

    @contextmanager
    def taken(self, layers: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        """Yield a dictionary that the model's pass in the block fills with the hidden states of some layers."""
        states: dict[int, torch.Tensor] = {}
        with ExitStack() as hooks:
            for layer in layers:
                hooks.callback(self._hook(layer, states).remove)
            yield states

    def _hook(self, layer: int, states: dict[int, torch.Tensor]) -> Any:
        number = layer % (len(self.layers) + 1)

        def entering(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states[layer] = args[0] if args else kwargs["hidden_states"]

        def leaving(_: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            states[layer] = output if isinstance(output, torch.Tensor) else output[0]

        if number == 0:
            return self.layers[0].register_forward_pre_hook(entering, with_kwargs=True)
        module = self.holder if number == len(self.layers) else self.layers[number - 1]
        return module.register_forward_hook(leaving)


def stacked(states: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the states of several layers, (…, size) each, as one tensor, (…, layers, size); empty without layers."""
    return torch.stack(tuple(states), -2) if states else torch.empty(0)
