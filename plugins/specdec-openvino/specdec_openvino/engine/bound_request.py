"""An inference request that reads its inputs and the paged cache where they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
import torch

from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.pass_inputs import Packed

_RAW = {torch.bfloat16: torch.int16, torch.float16: torch.int16}  # types for which numpy has no name, or another


class BoundRequest:
    """An inference request to a compiled graph, bound to a backend's cache.

    Args:
        model: the compiled graph.
        num_tokens: the number of tokens that the graph's shapes are for; 0 for any pass.
        blocks: the cache, which may move to other memory between passes.
    """

    def __init__(self, model: Any, num_tokens: int, blocks: Blocks) -> None:
        self._model, self.num_tokens, self._blocks = model, num_tokens, blocks
        self._places = {name: place for place, port in enumerate(model.outputs) for name in port.names}
        self.request = model.create_infer_request()
        self._inputs: dict[str, np.ndarray] = {}  # the arrays from which the request reads its inputs
        self._generation = -1  # of the cache's memory that is bound

    def unbind(self) -> None:
        """Unbind the cache's memory; the next pass binds it again."""
        self.request = self._model.create_infer_request()
        self._inputs = {}
        self._generation = -1

    def takes(self, packed: Packed) -> bool:
        """Return True if the graph has the shapes of a pass."""
        return not self.num_tokens or packed.begins == [0, self.num_tokens]

    def run(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Run a pass."""
        if self._generation != self._blocks.generation:
            self._bind_caches()
        for name, values in inputs.items():
            self._set_input(name, values)
        self.request.infer(share_outputs=True)  # otherwise all outputs are copied into a dictionary

    def output(self, name: str) -> np.ndarray:
        """An output in the request's memory, which the next pass writes to.

        Raises:
            MemoryError: if the pass ran out of memory, which OpenVINO doesn't report.
        """
        output: np.ndarray = self.request.get_output_tensor(self._places[name]).data
        if not output.size:
            raise MemoryError("OpenVINO's pass has no output")
        return output

    def _set_input(self, name: str, values: np.ndarray) -> None:
        array = self._inputs.get(name)
        if array is not None and array.shape == values.shape:
            array[...] = values
            return
        self._inputs[name] = values = np.array(values, order="C")
        # An empty array can't be shared.
        self.request.set_tensor(name, ov.Tensor(values, shared_memory=values.size > 0))

    def _bind_caches(self) -> None:
        for index, cache in enumerate(self._blocks.caches()):
            name = f"{('keys', 'values')[index % 2]}.{index // 2}"
            raw = cache.view(_RAW.get(cache.dtype, cache.dtype)).numpy()
            kind = self._model.input(name).get_element_type()
            self.request.set_tensor(name, ov.Tensor(raw, ov.Shape(list(cache.shape)), kind))
        self._generation = self._blocks.generation
