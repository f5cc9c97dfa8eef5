"""A compiled graph, and its passes over rows of a paged cache."""

import numpy as np
import openvino as ov
import torch

from specdec import ModelError
from specdec.layout import Layout
from specdec_openvino.attention import describe
from specdec_openvino.blocks import Blocks
from specdec_openvino.kept import Kept
from specdec_openvino.options import OpenVINOOptions

_RAW = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.float32}


class Compiled:
    """A graph compiled for a device, shared by all backends of one model.

    Attributes:
        dtype: of the logits.

    Raises:
        ModelError: for a device that isn't there, and a graph that the device refuses.
    """

    def __init__(self, kept: Kept, options: OpenVINOOptions, dtype: torch.dtype) -> None:
        core = ov.Core()
        if options.device.split(".")[0] not in {name.split(".")[0] for name in core.available_devices}:
            raise ModelError(
                f"OpenVINO has no device {options.device!r} here: it has {', '.join(core.available_devices)}"
            )
        try:
            graph = core.read_model(kept.graph)
            describe(graph, kept.layers)
            self.model = core.compile_model(graph, options.device, options.properties(dtype))
        except RuntimeError as error:
            reason = [line for line in map(str.strip, str(error).splitlines()) if line][-1]
            raise ModelError(f"OpenVINO can't compile the model for {options.device}: {reason}") from error
        self.dtype = dtype
        self.cache_dtype = options.of_cache(dtype)
        self.cache_shapes = [
            self._cache_shape(f"{kind}.{number}") for number in range(len(kept.layers)) for kind in ("keys", "values")
        ]

    def _cache_shape(self, name: str) -> tuple[int, int, int]:
        shape = self.model.input(name).get_partial_shape()
        return shape[1].get_length(), shape[2].get_length(), shape[3].get_length()

    def blocks(self) -> Blocks:
        """An empty cache."""
        return Blocks(self.cache_shapes, self.cache_dtype)


class Passes:
    """One backend's passes: a request to the compiled graph, bound to the backend's cache."""

    def __init__(self, compiled: Compiled, blocks: Blocks) -> None:
        self._compiled, self._blocks = compiled, blocks
        self._request = compiled.model.create_infer_request()
        self._generation = -1

    def logits(self, layout: Layout) -> torch.Tensor:
        """The logits that a layout wants, (rows, columns, vocab)."""
        rows = self._blocks.rows[layout.first :][: len(layout.lengths)]
        for number, (length, num_nodes) in enumerate(zip(layout.lengths, layout.num_nodes, strict=True), layout.first):
            self._blocks.reserve(number, length + num_nodes)
        self._bind_caches()
        begins = np.cumsum([0, *layout.num_nodes], dtype=np.int32)
        is_node = np.arange(layout.width) < np.array(layout.num_nodes)[:, None]
        columns = np.minimum(np.array(layout.columns), np.array(layout.num_nodes)[:, None] - 1) + begins[:-1, None]
        tables = [
            row.blocks[: -(-(length + nodes) // self._blocks.size)]
            for row, length, nodes in zip(rows, layout.lengths, layout.num_nodes, strict=True)
        ]
        seen = [_seen(layout, row) for row in range(len(rows))]
        self._set("input_ids", layout.input_ids.numpy()[is_node][None])
        self._set("position_ids", layout.positions.numpy()[is_node][None])
        self._set("columns", columns.reshape(-1).astype(np.int64))
        self._set("past_lens", np.array(layout.lengths, np.int32))
        self._set("subsequence_begins", begins)
        self._set("block_indices", np.array([block for table in tables for block in table], np.int32))
        self._set("block_indices_begins", np.cumsum([0, *map(len, tables)], dtype=np.int32))
        self._set(
            "max_context_len", np.array(max(map(sum, zip(layout.lengths, layout.num_nodes, strict=True))), np.int32)
        )
        self._set("qq_bias", np.concatenate(seen))
        self._set("qq_bias_begins", np.cumsum([0, *map(len, seen)], dtype=np.int32))
        self._request.infer()
        output = self._request.get_output_tensor(0)
        logits = torch.from_numpy(output.data.view(np.int16 if output.element_type.size == 2 else output.data.dtype))
        dtype = {ov.Type.bf16: torch.bfloat16, ov.Type.f16: torch.float16, ov.Type.f32: torch.float32}[
            output.element_type
        ]
        # A copy, since the next pass writes into the same memory.
        return logits.view(dtype).reshape(len(rows), len(layout.columns), -1).clone()

    def _set(self, name: str, value: np.ndarray) -> None:
        self._request.set_tensor(name, ov.Tensor(value))  # which copies

    def _bind_caches(self) -> None:
        if self._generation == self._blocks.generation:
            return
        for index, cache in enumerate(self._blocks.caches()):
            name = f"{('keys', 'values')[index % 2]}.{index // 2}"
            raw = cache.view(_RAW[cache.dtype]).numpy()
            kind = self._compiled.model.input(name).get_element_type()
            self._request.set_tensor(name, ov.Tensor(raw, ov.Shape(list(cache.shape)), kind))
        self._generation = self._blocks.generation


def _seen(layout: Layout, row: int) -> np.ndarray:
    """The nodes that each node of a row sees, flat and of bytes; empty for a chain."""
    num_nodes, length = layout.num_nodes[row], layout.lengths[row]
    nothing = np.zeros(0, np.uint8)
    if num_nodes == 1 or not layout.masks:
        return nothing
    visible = layout.visible(next(iter(layout.masks)))[row, :num_nodes, length : length + num_nodes].numpy()
    is_chain = bool(visible[-1].all()) and visible.sum() == num_nodes * (num_nodes + 1) // 2
    return nothing if is_chain else visible.astype(np.uint8).reshape(-1)
