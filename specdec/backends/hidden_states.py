"""Hidden states of a few layers, taken by hooks that exist for one pass.

transformers' ``output_hidden_states`` leaves hooks in the model for good, and passes of hooked models aren't recorded.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel


class HiddenStates:
    """The places in a model where hidden states are taken, numbered as by transformers.

    State 0 enters the first layer, state k leaves layer k, and the last state leaves the module that holds the layers,
    after its norm.

    Attributes:
        is_able: False if the model has no single list of layers: ``output_hidden_states`` serves then.
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
        self._holder, self._layers = found[0] if self.is_able else (model, torch.nn.ModuleList())

    @contextmanager
    def taken(self, layers: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        """Yield a dictionary that a pass of the model in the block fills with the states of some layers."""
        states: dict[int, torch.Tensor] = {}
        with ExitStack() as hooks:
            for layer in layers:
                hooks.callback(self._hook(layer, states).remove)
            yield states

    def _hook(self, layer: int, states: dict[int, torch.Tensor]) -> Any:
        number = layer % (len(self._layers) + 1)

        def entering(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states[layer] = args[0] if args else kwargs["hidden_states"]

        def leaving(_: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            states[layer] = output if isinstance(output, torch.Tensor) else output[0]

        if number == 0:
            return self._layers[0].register_forward_pre_hook(entering, with_kwargs=True)
        module = self._holder if number == len(self._layers) else self._layers[number - 1]
        return module.register_forward_hook(leaving)
