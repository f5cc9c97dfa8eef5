"""A trained head's passes by OpenVINO."""

from functools import cache as cached

import numpy as np
import openvino as ov
import torch
from torch.nn.functional import embedding

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.eagle3 import Eagle3Head
from specdec_openvino.head_graph import HeadGraph
from specdec_openvino.options import OpenVINOOptions, openvino_type

_FEWEST_SLOTS = 256
_ROWS = 1, 4, 8
_BYTES_OF_RAW = 2
_HIDDEN = np.float32(-1e30)  # a score that softmax makes zero; not infinite, since a padded row may see nothing
_ONE, _ZERO = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)


class OpenVINORunner(HeadRunner):
    """Runs a head as a compiled graph.

    The first pass of a shape makes kernels, for milliseconds, so rows and slots are padded to few different numbers.

    Raises:
        HeadError: if the head can't be converted or compiled.
    """

    def __init__(self, head: Eagle3Head, num_tokens: int, options: OpenVINOOptions) -> None:
        super().__init__(head, num_tokens)
        graph = HeadGraph(head, self.num_tokens, options)
        self._graph, self._request = graph, graph.model.create_infer_request()
        self._target_ids = head.target_ids.numpy()
        self._given: dict[str, np.ndarray] = {}  # the arrays from which the request reads its inputs
        self._no_rows = cached(lambda size, requests: np.zeros((requests, 0, size), np.float32))
        self._cache: KeyValues | None = None  # bound to the request
        self._slots: list[np.ndarray] = []
        self._cos = self._sin = np.zeros((0, head.config.head_dim), np.float32)

    def num_rows(self, count: int) -> int:
        return next((size for size in _ROWS if size >= count), -(-count // _ROWS[-1]) * _ROWS[-1])

    def num_slots(self, count: int) -> int:
        """Return the least of 256, 384, 512, 768, … that is enough."""
        size = _FEWEST_SLOTS
        while size < count:
            size *= 2
        return size * 3 // 4 if size > _FEWEST_SLOTS and size * 3 // 4 >= count else size

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        bias, wanted = _visibility(pairs, cache.keys.shape[2])
        cos, sin = self._rotation(pairs.positions)
        features = pairs.features.float().numpy()
        self._bind(cache)
        self._give("embedded", embedding(torch.from_numpy(pairs.tokens), self.head.embeddings).float().numpy())
        self._give("states", features if pairs.fuses else self._no_rows(self.head.fc.in_features, len(features)))
        self._give("features", self._no_rows(self.head.config.hidden_size, len(features)) if pairs.fuses else features)
        self._give("cos", cos)
        self._give("sin", sin)
        self._give("bias", bias)
        self._give("wanted", wanted)
        self._give("scale", _ONE if noise is None else noise.scale.numpy())
        self._give("noise", _ZERO if noise is None else noise.noise.numpy())
        self._request.infer()
        for slots, name in zip(self._slots, ("new_keys", "new_values"), strict=True):
            new = self._output(name)
            for row, start in enumerate(pairs.starts.tolist()):
                slots[row, :, start : start + new.shape[2]] = new[row].view(slots.dtype)
        tokens = self._target_ids.take(self._output("draft_ids"), mode="clip")  # of logits that are NaN too
        features = torch.from_numpy(self._output("next_features").copy())
        return Continuations(tokens, self._output("log_probs").copy(), features)

    def _rotation(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines, (requests, 1, n, head_dim)."""
        if (most := int(positions.max())) >= len(self._cos):
            known = torch.arange(self.num_slots(most + 1))
            self._cos, self._sin = (each[0, 0].numpy() for each in self.head.rotary.at(known[None], torch.float32))
        return self._cos[positions][:, None], self._sin[positions][:, None]

    def _give(self, name: str, values: np.ndarray) -> None:
        """Let the request read an input, which stays as it is until the pass has ended."""
        if values is not self._given.get(name):
            self._given[name] = values = np.ascontiguousarray(values)
            # An empty array can't be shared.
            self._request.set_tensor(name, ov.Tensor(values, shared_memory=values.size > 0))

    def _bind(self, cache: KeyValues) -> None:
        """Let the request read keys and values where they are."""
        if cache is self._cache:
            return
        self._cache, self._slots = cache, [_raw(each) for each in cache]
        kind = openvino_type(self._graph.dtype)
        for name, slots in zip(("keys", "values"), self._slots, strict=True):
            self._request.set_tensor(name, ov.Tensor(slots, ov.Shape(list(slots.shape)), kind))

    def _output(self, name: str) -> np.ndarray:
        """An output in the request's memory, which the next pass writes to."""
        output: np.ndarray = self._request.get_tensor(name).data
        return output


def _raw(cache: torch.Tensor) -> np.ndarray:
    """A cache's memory; of 16 bits as integers, since numpy has no bfloat16."""
    return (cache if cache.itemsize > _BYTES_OF_RAW else cache.view(torch.int16)).numpy()


def _visibility(pairs: Pairs, num_slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias of each wanted pair for all slots and then the pass's pairs, and the wanted pairs' numbers.

    The pass's own slots have no keys yet, so they are hidden among the slots.
    """
    requests, count = pairs.tokens.shape
    wanted = np.arange(count)[None].repeat(requests, 0) if pairs.last is None else pairs.last[:, None]
    bias = np.full((requests, 1, wanted.shape[1], num_slots + count), _HIDDEN)
    for row, start in enumerate(pairs.starts.tolist()):
        if pairs.visible is None:
            bias[row, 0, :, :start] = 0
            bias[row, 0, :, num_slots:][np.arange(count) <= wanted[row][:, None]] = 0
        else:
            own = slice(start, start + count)
            bias[row, 0, :, :num_slots][pairs.visible[row]] = 0
            bias[row, 0, :, num_slots:] = bias[row, 0, :, own]
            bias[row, 0, :, own] = _HIDDEN
    return bias, wanted
