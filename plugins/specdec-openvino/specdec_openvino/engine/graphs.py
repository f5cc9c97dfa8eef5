"""Compiled graphs, and a model's graphs, which its backends share."""

import threading
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

import openvino as ov
import torch
from openvino import opset13 as ops

from specdec import ModelError
from specdec.errors import memory_ran_out
from specdec_openvino.conversion.external_weights import Weights
from specdec_openvino.conversion.files import Conversion
from specdec_openvino.conversion.weight_separation import joined
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.retention import RetainedInForks
from specdec_openvino.options import OpenVINOOptions, openvino_type

# Inputs with a number for each row, or one more: their sizes in a pass over one row.
_ONE_ROW = {"past_lens": 1, "subsequence_begins": 2, "block_indices_begins": 2, "qq_bias_begins": 2}


class Compiled(RetainedInForks):
    """A graph compiled for a device.

    Args:
        weights: of the graph, which reads them as long as it exists.
        hidden: the hidden states that are outputs as well, by number.
        num_tokens: of each pass, which has one row then; 0 for passes of any shape.

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
        core, layers, dtype = ov.Core(), conversion.facts.layers, conversion.facts.dtype
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
            reason = memory_ran_out(error) or _reason(error)
            raise ModelError(f"OpenVINO can't compile the model for {options.device}: {reason}") from error
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
