"""The passes of compiled graphs over rows of a paged cache."""

from collections.abc import Sequence

import numpy as np
import torch

from specdec.layout import Layout
from specdec_openvino.conversion.tracing import LOGITS, hidden_name
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.bound_request import BoundRequest
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.graphs import Compiled
from specdec_openvino.engine.pass_inputs import pack
from specdec_openvino.engine.pieces import run_in_pieces

_NUM_BYTES_OF_RAW = 2


class Passes:
    """Runs one backend's passes, by inference requests that are bound to the backend's cache.

    Args:
        filling: the sizes of the passes.
        static: graphs for passes of one size each; ``compiled`` runs the others.
    """

    def __init__(
        self,
        compiled: Compiled,
        blocks: Blocks,
        filling: Filling,
        static: Sequence[Compiled] = (),
    ) -> None:
        self._compiled, self._blocks, self._filling = compiled, blocks, filling
        graphs = *static, compiled  # the last takes all passes
        self._requests = [BoundRequest(graph.model, graph.num_tokens, blocks) for graph in graphs]

    def run(self, layout: Layout) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The logits that a layout wants, (rows, columns, vocab), and its hidden states, (nodes, layers, size), by row.

        The graph has the layout's hidden states among its outputs.
        """
        most, least = self._filling.most_tokens, self._filling.padding.least_width
        num_logits = len(layout.num_nodes) * len(layout.columns)
        if most is not None and max(num_logits, sum(max(least, each) for each in layout.num_nodes)) > most:
            return run_in_pieces(layout, most, least, self._run)
        return self._run(layout)

    def _run(self, layout: Layout) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Run a layout in one pass."""
        tokens = self._filling.tokens(layout.num_nodes, bool(layout.num_prefix))
        for row, (length, num_tokens) in enumerate(zip(layout.lengths, tokens, strict=True), layout.first):
            self._blocks.reserve(row, length + num_tokens)
        rows = self._blocks.rows[layout.first :][: len(layout.lengths)]
        packed = pack(layout, rows, self._blocks.size, tokens, self._filling.padding.least_width)
        request = next(request for request in self._requests if request.takes(packed))
        request.run(packed.inputs)
        # A copy, since the next pass writes to the same memory; by numpy, because torch's threads are slow to wake
        # after the engine's have run.
        shape = len(rows), len(layout.columns), -1
        logits = torch.from_numpy(request.output(LOGITS)[: shape[0] * shape[1]].reshape(shape).copy())
        states = [self._states(request, layer) for layer in layout.hidden]
        hidden = packed.unpack(states, layout) if states else []
        return logits, [row.view(self._compiled.state_dtype) for row in hidden]

    def _states(self, request: BoundRequest, layer: int) -> np.ndarray:
        """A layer's states of all tokens, (tokens, size), in the request's memory; those of 16 bits as integers."""
        states = request.output(hidden_name(self.number_of(layer)))
        return (states if states.itemsize > _NUM_BYTES_OF_RAW else states.view(np.int16))[:, 0]

    @property
    def hidden(self) -> frozenset[int]:
        """The numbers of the hidden states that passes can give."""
        return self._compiled.hidden

    @property
    def num_states(self) -> int:
        """The number of hidden states that the model has; 0 for an export."""
        return self._compiled.num_states

    def number_of(self, layer: int) -> int:
        """The number of a layer's hidden state; negative layers count from the last."""
        return layer % self._compiled.num_states

    def unbind(self) -> None:
        """Unbind the cache's memory; the next pass binds it again."""
        for request in self._requests:
            request.unbind()
