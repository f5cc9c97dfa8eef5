"""A trained head's passes by OpenVINO."""

from abc import abstractmethod
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import openvino as ov
import torch

from specdec.heads import (
    BlockHead,
    BlockRunner,
    Continuations,
    HeadRunner,
    HeadRunners,
    KeyValues,
    Noise,
    PairHead,
    Pairs,
    runner_by_torch,
)
from specdec_openvino.heads.graph import BlockShape, HeadError, HeadGraph, HeadShape
from specdec_openvino.options import OpenVINOOptions, openvino_type

_FEWEST_SLOTS = 256
_ROWS = 4, 8
_BYTES_OF_RAW = 2
_GRAIN = 32768  # numbers up to which torch computes an operation in one thread
_HIDDEN = np.float32(-1e30)  # a score that softmax makes zero; not infinite, since a padded row sees nothing


class OpenVINORunners(HeadRunners):
    """Runners by OpenVINO on a CPU; by torch on other devices, or for a head that can't be compiled."""

    def __init__(self, options: OpenVINOOptions) -> None:
        self._options = options

    def runner(self, head: PairHead | BlockHead, num_tokens: int | None, may_quantize: bool) -> HeadRunner:
        if self._options.device == "CPU":
            with suppress(HeadError):
                kind: type[GraphRunner] = OpenVINOBlockRunner if isinstance(head, BlockHead) else OpenVINORunner
                return kind(head, num_tokens, self._options, may_quantize)
        return runner_by_torch(head, num_tokens)


class GraphRunner(HeadRunner):
    """Runs a head as a compiled graph.

    A pass of another shape than the one before takes longer, and the first of a shape makes kernels, for milliseconds.
    So the passes of a draft have one shape, unless it begins with more than four pairs: rows are padded, and both
    states and features have rows, of which one has zeros.

    Prompts are read by passes too. After a pass of OpenVINO's threads, each operation for which torch wakes its own
    waits for milliseconds, so inputs are filled in parts for which it doesn't.

    Args:
        is_quantized: as of ``HeadGraph``.

    Raises:
        HeadError: if the head can't be converted or compiled.
    """

    head: Any
    _kind: ClassVar[type[HeadShape]]

    def __init__(self, head: Any, num_tokens: int | None, options: OpenVINOOptions, is_quantized: bool = False) -> None:
        super().__init__(head, num_tokens)
        self._num_chosen = None if self.returns_all else self._most_chosen()
        graph = HeadGraph(head, self._kind, self._num_chosen, options, is_quantized)
        self._graph, self._request = graph, graph.model.create_infer_request()
        self._ids, self._embeddings = self._known_ids(), _raw(head.embeddings.detach())
        self._shape = self._kind(0, 0, 0, 0, False)
        self._inputs: dict[str, np.ndarray] = {}  # the request reads these arrays
        self._outputs: dict[str, np.ndarray] = {}  # and writes to these in each pass
        self._cache: KeyValues | None = None  # bound to the request
        self._slots: list[np.ndarray] = []
        self._cos = self._sin = np.zeros((0, head.config.head_dim), np.float32)

    def num_slots(self, count: int) -> int:
        """Return the least of 256, 384, 512, 768, … that is enough."""
        size = _FEWEST_SLOTS
        while size < count:
            size *= 2
        return size * 3 // 4 if size > _FEWEST_SLOTS and size * 3 // 4 >= count else size

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        (requests, count), num_wanted = pairs.tokens.shape, self._num_wanted(pairs)
        self._bind(cache)
        self._reshape(requests, count, num_wanted, has_noise=noise is not None)
        self._fill(pairs)
        if noise is not None:
            self._inputs["scale"][...], self._inputs["noise"][...] = noise.scale.numpy(), noise.noise.numpy()
        self._request.infer(share_outputs=True)  # otherwise all outputs are copied into a dictionary
        for slots, name in zip(self._slots, ("new_keys", "new_values"), strict=True):
            new = self._outputs[name]
            for row, start in enumerate(pairs.starts.tolist()):
                slots[row, :, start : start + count] = new[row, :, :count]
        log_probs, features = (self._outputs[name][:, :num_wanted].copy() for name in ("log_probs", "next_features"))
        if self.returns_all:
            tokens = np.broadcast_to(self._ids, log_probs.shape)
        else:
            draft_ids = self._outputs["draft_ids"][:, :num_wanted]
            tokens = self._ids.take(draft_ids, mode="clip")  # of logits that are NaN too
        return Continuations(tokens, log_probs, torch.from_numpy(features))

    def _reshape(self, requests: int, count: int, num_wanted: int, has_noise: bool) -> None:
        """Give the request inputs and outputs of a shape that has room for a pass, if they have another one."""
        rows = next((size for size in _ROWS if size >= count), -(-count // _ROWS[-1]) * _ROWS[-1])
        num_slots = self._slots[0].shape[2]
        shape = self._kind(requests, rows, max(num_wanted, self._shape.wanted), num_slots, has_noise)
        if shape == self._shape:
            return
        self._shape, self._inputs = shape, shape.inputs(self.head.config)
        self._outputs = shape.outputs(self.head, self._num_chosen, self._slots[0].dtype)
        for name, values in (self._inputs | self._outputs).items():
            is_cached = name in {"new_keys", "new_values"}
            tensor = self._of_cache(values) if is_cached else ov.Tensor(values, shared_memory=True)
            self._request.set_tensor(name, tensor)

    @abstractmethod
    def _most_chosen(self) -> int:
        """Return the number of tokens that a pass chooses after each wanted pair."""

    @abstractmethod
    def _known_ids(self) -> np.ndarray:
        """Return what ``run`` returns for each draft id, (draft vocab,)."""

    @abstractmethod
    def _num_wanted(self, pairs: Pairs) -> int:
        """Return the number of pairs of each request whose continuation is returned."""

    @abstractmethod
    def _fill(self, pairs: Pairs) -> None:
        """Write a pass's pairs to the inputs."""

    def _rotation(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines, (requests, n, head_dim)."""
        if (most := int(positions.max())) >= len(self._cos):
            known = torch.arange(self.num_slots(most + 1))
            self._cos, self._sin = (each[0, 0].numpy() for each in self.head.rotary.at(known[None], torch.float32))
        return self._cos[positions], self._sin[positions]

    def _bind(self, cache: KeyValues) -> None:
        """Let the request read keys and values where they are."""
        if cache is self._cache:
            return
        self._cache, self._slots = cache, [_raw(each) for each in cache]
        for name, slots in zip(("keys", "values"), self._slots, strict=True):
            self._request.set_tensor(name, self._of_cache(slots))

    def _of_cache(self, raw: np.ndarray) -> ov.Tensor:
        """Return memory as a tensor of the cache's type."""
        return ov.Tensor(raw, ov.Shape(list(raw.shape)), openvino_type(self._graph.dtype))


class OpenVINORunner(GraphRunner):
    """Runs an EAGLE head."""

    _kind = HeadShape

    def __init__(
        self, head: PairHead, num_tokens: int | None, options: OpenVINOOptions, is_quantized: bool = False
    ) -> None:
        super().__init__(head, num_tokens, options, is_quantized)
        self.num_reads = max(_ROWS[-1], _GRAIN // head.config.hidden_size // _ROWS[-1] * _ROWS[-1])

    def _most_chosen(self) -> int:
        return self.num_tokens

    def _known_ids(self) -> np.ndarray:
        ids: np.ndarray = self.head.target_ids.numpy()
        return ids

    def _num_wanted(self, pairs: Pairs) -> int:
        return int(pairs.wanted.shape[1])

    def _fill(self, pairs: Pairs) -> None:
        """Write a pass's pairs to the inputs. No pair attends to the rows after them, but NaN there would spread."""
        inputs, count = self._inputs, pairs.tokens.shape[1]
        inputs["embedded"][:, :count] = _float32(self._embeddings[pairs.tokens], self.head.embeddings.dtype)
        given, other = ("states", "features") if pairs.fuses else ("features", "states")
        inputs[given][:, :count] = _float32(_raw(pairs.features), pairs.features.dtype)
        inputs[given][:, count:] = 0
        inputs[other][...] = 0
        inputs["cos"][:, 0, :count], inputs["sin"][:, 0, :count] = self._rotation(pairs.positions)
        wanted = pairs.wanted
        inputs["wanted"][:, : wanted.shape[1]] = wanted
        _show(inputs["bias"], pairs, wanted, self._shape.slots, self.head.config.sliding_window)


class OpenVINOBlockRunner(GraphRunner, BlockRunner):
    """Runs a block drafter; the Markov head's products are torch's, too small for its threads."""

    _kind = BlockShape

    def _prepared(self, head: BlockHead) -> BlockHead:
        return head  # whose matrices are the graph's

    def _most_chosen(self) -> int:
        return self._num_kept

    def _known_ids(self) -> np.ndarray:
        return np.arange(len(self._target_ids))

    def _num_wanted(self, pairs: Pairs) -> int:
        return self.num_drafted

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        found = super().run(pairs, cache, noise)
        return found._replace(features=found.features.to(self.head.fc.weight.dtype))

    def _fill(self, pairs: Pairs) -> None:
        assert pairs.last is not None, "a block lies after a last pair"
        inputs, count, rows, slots = self._inputs, pairs.tokens.shape[1], self._shape.rows, self._shape.slots
        block, config = self._block_of(pairs, pairs.last), self.head.config
        embedded = _float32(self._embeddings[block.tokens], self.head.embeddings.dtype)
        inputs["embedded"][...] = embedded * np.float32(config.embedding_scale)
        inputs["states"][:, :count] = _float32(_raw(pairs.features), pairs.features.dtype)
        inputs["states"][:, count:] = 0
        for part, positions in ((slice(count), pairs.positions), (slice(rows, None), block.positions)):
            inputs["cos"][:, 0, part], inputs["sin"][:, 0, part] = self._rotation(positions)
        inputs["bias"][...] = _HIDDEN
        for place, limits in enumerate(dict.fromkeys(config.limits)):
            bias = np.where(self._visible(block, *limits), np.float32(0), _HIDDEN)
            for row, (start, stop) in enumerate(zip(pairs.starts.tolist(), block.starts.tolist(), strict=True)):
                of_row, known = inputs["bias"][row, place], bias[min(row, len(bias) - 1)]
                of_row[:, :start] = known[:, :start]
                of_row[:, slots : slots + stop - start] = known[:, start:stop]
                of_row[:, slots + rows :] = known[:, stop : stop + self.block_size]


def _raw(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's memory; of 16 bits as integers, since numpy has no bfloat16."""
    return (tensor if tensor.itemsize > _BYTES_OF_RAW else tensor.view(torch.int16)).numpy()


def _float32(raw: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the numbers in a tensor's memory, widened by numpy, in one thread."""
    if dtype == torch.bfloat16:
        widened: np.ndarray = (raw.astype(np.int32) << 16).view(np.float32)
        return widened
    return raw.view(np.float16).astype(np.float32) if dtype == torch.float16 else raw


def _show(bias: np.ndarray, pairs: Pairs, wanted: np.ndarray, num_slots: int, window: int | None) -> None:
    """Set the bias of each wanted pair for all slots and then the pass's rows.

    The pass's own slots have no keys yet, so they are hidden among the slots.
    """
    count = pairs.tokens.shape[1]
    bias[...] = _HIDDEN
    for row, start in enumerate(pairs.starts.tolist()):
        of_row = bias[row, 0, : wanted.shape[1]]
        earlier, own = of_row[:, :num_slots], of_row[:, num_slots : num_slots + count]
        if pairs.visible is None:
            earlier[:, :start] = 0
            own[np.arange(count) <= wanted[row][:, None]] = 0
        else:
            earlier[pairs.visible[row]] = 0
            own[...] = earlier[:, start : start + count]
            earlier[:, start : start + count] = _HIDDEN
        if window is not None:
            slots = np.concatenate((np.arange(num_slots), start + np.arange(count)))
            too_early = slots <= pairs.positions[row, wanted[row]][:, None] - window
            of_row[:, : len(slots)][too_early] = _HIDDEN
