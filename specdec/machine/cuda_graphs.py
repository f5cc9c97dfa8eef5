"""Passes of fixed shapes as CUDA graphs: a pass is captured once for each shape, and replayed in one launch."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch

from specdec.errors import in_one_line, memory_ran_out
from specdec.machine.number_block import NumberBlock

_MOST_GRAPHS = 64
_LEAST_SLOTS, _SLOTS = 256, 1024

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """The inputs of a pass, by name; those of passes of one shape have the same shapes.

    Attributes:
        numbers: from the host, where they are until the inputs are owned.
        tensors: that are on the device already.
        device: the model's.
    """

    numbers: NumberBlock
    tensors: Mapping[str, torch.Tensor]
    device: torch.device

    def __contains__(self, name: str) -> bool:
        """Return True if there is an input of this name."""
        return name in self.tensors or name in self.numbers

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return an input."""
        return self.tensors[name] if name in self.tensors else self.numbers[name]

    def owned(self) -> "GraphInputs":
        """Return these inputs on the device, in tensors that nothing else writes to."""
        tensors = {name: each.clone() for name, each in self.tensors.items()}
        return GraphInputs(self.numbers.on(self.device), tensors, self.device)

    def copy_(self, other: "GraphInputs") -> None:
        """Copy the inputs of another pass of the same shape into these tensors."""
        self.numbers.copy_(other.numbers)
        for name, each in self.tensors.items():
            each.copy_(other.tensors[name])


Call = Callable[[GraphInputs], Outputs]


class Pool:
    """Memory that graphs share which are never replayed at the same time, and the stream on which they are captured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.handle = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own


class Graph:
    """A captured pass, with inputs and outputs at fixed addresses."""

    def __init__(self, run: Call, inputs: GraphInputs, pool: Pool) -> None:
        self._inputs, stream = inputs.owned(), pool.stream
        with torch.cuda.device(pool.device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run(self._inputs)  # libraries initialise in the first call, which a capture doesn't allow
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            # torch makes a generator's state in a process's first capture: inference mode would spoil it for others.
            # Without a stream of its own, torch captures on the GPU of the process's first capture.
            capture = torch.cuda.graph(self._graph, pool.handle, stream, capture_error_mode="thread_local")
            with torch.inference_mode(False), capture:
                self._outputs = run(self._inputs)

    def __call__(self, inputs: GraphInputs) -> Outputs:
        self._inputs.copy_(inputs)
        self._graph.replay()
        return self._outputs


class Graphs:
    """The graphs of one model's passes, by shape: captured in a shape's second pass and replayed from then on.

    Args:
        device: the model's.

    Attributes:
        captures: False if passes are called instead: on other devices than CUDA's, and for good after a pass that can't
            be captured.
        is_warm: False if passes of the last one's shape will be faster later.
        fault: why passes aren't captured any more, or "".
    """

    def __init__(self, device: torch.device) -> None:
        self.captures, self.is_warm, self.fault, self._device = device.type == "cuda", True, "", device
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._memory: object = None
        self._pool: Pool | None = None
        self._is_short = False  # of memory for graphs

    def forget(self) -> None:
        """Drop all graphs: what they read has moved."""
        self._graphs.clear()
        self._seen.clear()
        self._memory = self._pool = None  # torch refuses a pool whose graphs are all gone
        self.fault, self._is_short = "" if self._is_short else self.fault, False

    def run(self, call: Call, inputs: GraphInputs, shape: Hashable, memory: object) -> Outputs:
        """Return a pass's outputs, which the next pass may overwrite.

        Where a capture runs out of memory, passes are called until ``memory`` has moved.

        Args:
            call: computes the outputs, without waiting for the device. It is not called in a replay.
            inputs: of this pass.
            shape: of all that ``call`` reads but the values in tensors.
            memory: graphs are dropped if this is another object than in the last pass: tensors that ``call`` reads
                besides the inputs.
        """
        if self._memory is not memory:
            self.forget()
            self._memory = memory
        if not self.captures or self._is_short:
            self.is_warm = True
            return call(inputs.owned())
        self.is_warm = shape in self._graphs
        if shape not in self._seen:  # most prompts' last passes run once
            self._seen.add(shape)
            return call(inputs.owned())
        graph = self._graphs.pop(shape, None) or self._captured(call, inputs)
        if graph is None:
            return call(inputs.owned())
        self._graphs[shape] = graph
        if len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)  # the one used longest ago
        return graph(inputs)

    def _captured(self, call: Call, inputs: GraphInputs) -> Graph | None:
        """Return a new graph; None if there is no memory, or the pass waits for the device, as some experts do."""
        try:
            self._pool = self._pool or Pool(self._device)
            return Graph(call, inputs, self._pool)
        except RuntimeError as error:
            memory, short = self._memory, memory_ran_out(error)  # the end of a failed capture raises, too
            self.forget()
            self._memory, self._is_short, self.fault = memory, bool(short), short or in_one_line(error)
            self.captures, self.is_warm = bool(short), True
            return None


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()


def slot_bucket(num_slots: int) -> int:
    """Return the number of slots to read if ``num_slots`` are needed: a power of two, or a multiple of the largest."""
    return max(_LEAST_SLOTS, power_of_two(num_slots)) if num_slots <= _SLOTS else -(-num_slots // _SLOTS) * _SLOTS
