"""Compiled graphs, and their passes over rows of a paged cache."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakValueDictionary

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops

from specdec import ModelError
from specdec.errors import is_out_of_memory
from specdec.layout import Layout
from specdec_openvino.conversion.external_weights import Weights
from specdec_openvino.conversion.files import Conversion
from specdec_openvino.conversion.tracing import LOGITS, hidden_name
from specdec_openvino.conversion.weight_separation import joined
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.bound_request import BoundRequest
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.pass_inputs import pack
from specdec_openvino.engine.retention import RetainedInForks
from specdec_openvino.engine.static_graphs import StaticGraphs
from specdec_openvino.options import OpenVINOOptions, openvino_type

_NUM_BYTES_OF_RAW = 2
# Inputs with a number for each row, or one more: their sizes in a pass over one row.
_ONE_ROW = {"past_lens": 1, "subsequence_begins": 2, "block_indices_begins": 2, "qq_bias_begins": 2}


class Compiled(RetainedInForks):
    """A graph compiled for a device.

    Args:
        weights: of the graph, which reads them as long as it exists.
        hidden: the hidden states that are outputs as well, by number.
        num_tokens: of each pass, which has one row then; 0 for passes of any shape.

    Attributes:
        seconds: that it took to compile.

    Raises:
        ModelError: if the device can't compile the graph.
    """

    def __init__(
        self,
        conversion: Conversion,
        weights: Weights,
        options: OpenVINOOptions,
        hidden: frozenset[int],
        num_tokens: int = 0,
    ) -> None:
        super().__init__()
        began, core = time.perf_counter(), ov.Core()
        layers, dtype = conversion.facts.layers, conversion.facts.dtype
        self._memory, self.hidden, self.num_tokens = (conversion, weights), hidden, num_tokens
        try:
            graph = joined(core, options.device, conversion, weights)
            self.num_states = len(graph.get_results()) - 1  # hidden states, of the embeddings first
            self.state_dtype = options.of_arithmetic(dtype)
            for number, result in enumerate(graph.get_results()[1:]):
                if number not in hidden:
                    graph.remove_result(result)
                elif self.state_dtype != torch.float32:
                    narrow(result, openvino_type(self.state_dtype))
            if num_tokens:
                fix_shapes(graph, num_tokens)
            self.model = core.compile_model(graph, options.device, options.properties(dtype))
        except (RuntimeError, MemoryError) as error:
            reason = "memory ran out; free some, or use backend='hf'" if is_out_of_memory(error) else _reason(error)
            raise ModelError(f"OpenVINO can't compile the model for {options.device}: {reason}") from error
        self.seconds = time.perf_counter() - began
        self.cache_dtype = options.of_cache(dtype)
        self.cache_shapes = [
            self._cache_shape(f"{kind}.{number}") for number in range(len(layers)) for kind in ("keys", "values")
        ]

    def _cache_shape(self, name: str) -> tuple[int, int, int]:
        shape = self.model.input(name).get_partial_shape()
        return shape[1].get_length(), shape[2].get_length(), shape[3].get_length()

    def blocks(self) -> Blocks:
        """Return an empty cache."""
        return Blocks(self.cache_shapes, self.cache_dtype)


class Graphs:
    """A conversion with a model's weights, and the graphs compiled from it.

    The last compiled graph for passes of any shape is retained; others are freed when no backend uses them.

    Args:
        let_go: called after a graph was compiled, which then has its own copy of most weights.
    """

    def __init__(self, conversion: Conversion, weights: Weights, let_go: Callable[[], object] = lambda: None) -> None:
        self.conversion, self.weights = conversion, weights
        self.let_go = let_go
        self._lock = threading.Lock()
        self._compiled: WeakValueDictionary[Hashable, Compiled] = WeakValueDictionary()
        self._last: Compiled | None = None

    def compiled(self, options: OpenVINOOptions, hidden: frozenset[int], num_tokens: int = 0) -> Compiled:
        """The compiled graph with some hidden states, the same one for all backends; see ``Compiled``."""
        options = options.model_copy(update={"static_sizes": 0})  # which changes no graph
        question = options, options.num_threads, hidden, num_tokens
        with self._lock:
            compiled = self._compiled.get(question)
            if compiled is None:
                if not num_tokens:
                    self._last = None  # two at once would hold the matrices twice
                compiled = Compiled(self.conversion, self.weights, options, hidden, num_tokens)
                self._compiled[question] = compiled
                self.let_go()
            if not num_tokens:
                self._last = compiled
            return compiled

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are stored, tied ones once."""
        stored = [*self.weights.values(), *self.conversion.own.values()]
        return sum({each.ctypes.data: each.nbytes for each in stored}.values())


class Passes:
    """Runs one backend's passes, by inference requests that are bound to the backend's cache.

    Args:
        filling: the sizes of the passes.
        static: graphs for passes of one size each; ``compiled`` runs the others.
        further: compiles more of them.

    Attributes:
        later_sizes: the sizes of passes that got a graph after the first pass.
    """

    def __init__(
        self,
        compiled: Compiled,
        blocks: Blocks,
        filling: Filling,
        static: Sequence[Compiled] = (),
        further: StaticGraphs[Compiled] | None = None,
    ) -> None:
        self._compiled, self._blocks, self._filling, self._further = compiled, blocks, filling, further
        self._graphs = [*static, compiled]  # the last takes all passes
        self._requests = [BoundRequest(graph.model, graph.num_tokens, blocks) for graph in self._graphs]
        self.later_sizes: tuple[int, ...] = ()
        self._num_tokens = 0  # of the last pass, if it had one row and no graph of its size

    def run(self, layout: Layout) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The logits that a layout wants, (rows, columns, vocab), and its hidden states, (nodes, layers, size), by row.

        The graph has the layout's hidden states among its outputs.
        """
        pads_root = layout.trees[0].pads_root if layout.trees else None  # read where the pass has a single token
        tokens = self._filling.tokens(layout.num_nodes, bool(layout.trunks), pads_root)
        for row, (length, num_tokens) in enumerate(zip(layout.lengths, tokens, strict=True), layout.first):
            self._blocks.reserve(row, length + num_tokens)
        rows = self._blocks.rows[layout.first :][: len(layout.lengths)]
        packed = pack(layout, rows, self._blocks.size, tokens, self._filling.padding.least_width)
        request = next(request for request in self._requests if request.takes(packed))
        request.run(packed.inputs)
        self._num_tokens = tokens[0] if len(rows) == 1 and not request.num_tokens else 0
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

    def add_pass_seconds(self, seconds: float) -> int | None:
        """Note the time of the last pass; return a size whose passes have a graph of their own from now on, or None."""
        graph = self._further.add_pass(self._num_tokens, seconds) if self._further is not None else None
        if graph is None:
            return None
        self._graphs.insert(0, graph)
        self._requests.insert(0, BoundRequest(graph.model, graph.num_tokens, self._blocks))
        self.later_sizes += (graph.num_tokens,)
        return graph.num_tokens

    def close(self) -> None:
        """Compile no more graphs; one that is being compiled is freed once it is ready."""
        if self._further is not None:
            self._further.close()

    def wait(self) -> None:
        """Wait for a graph that is being compiled."""
        if self._further is not None:
            self._further.wait()

    def unbind(self) -> None:
        """Unbind the cache's memory; the next pass binds it again."""
        for request in self._requests:
            request.unbind()


def fix_shapes(graph: ov.Model, num_tokens: int) -> None:
    """Give a graph the shapes of passes over ``num_tokens`` tokens of one row; blocks, trees and columns vary.

    The engine then plans each operator once, where it would compare the shapes of all of them in every pass.
    """
    shapes = dict[str, ov.PartialShape]()
    for name in ("input_ids", "position_ids"):
        shapes[name] = graph.input(name).get_partial_shape()
        shapes[name][0] = num_tokens
    graph.reshape({**shapes, **{name: ov.PartialShape([size]) for name, size in _ONE_ROW.items()}})


def narrow(result: ov.Node, kind: ov.Type) -> None:
    """Give an output in the precision of arithmetic.

    The device computes all that leads to an output of float32 in float32, back to the last matrix: with other bits.
    """
    wide = result.input_value(0)
    names = wide.get_tensor().names
    narrow = ops.convert(wide, kind)
    result.input(0).replace_source_output(narrow.output(0))
    wide.get_tensor().set_names(set())
    narrow.output(0).get_tensor().set_names(names)


def _reason(error: Exception) -> str:
    """Return the last line of an OpenVINO error; the others are places in its source."""
    return ([line for line in map(str.strip, str(error).splitlines()) if line] or [type(error).__name__])[-1]
