"""Separates a converted graph from its weights, which stay in the model's memory, and joins them again."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch

from specdec import ModelError
from specdec_openvino.conversion.attention import describe
from specdec_openvino.conversion.external_weights import Weights, extract_constants, insert_constants
from specdec_openvino.conversion.files import Conversion, Facts, digest
from specdec_openvino.conversion.tracing import Converted
from specdec_openvino.conversion.widening import mark_decompressions


def separate_weights(converted: Converted, weights: Weights, **facts: Any) -> tuple[Conversion, dict[str, np.ndarray]]:
    """Return a conversion without its weights, and the weights that it reads.

    Args:
        weights: of the converted model, in its memory.
        facts: further facts of the conversion.

    Raises:
        ModelError: if the system's folder of temporary files has no room for a few megabytes.
    """
    met, own = extract_constants(converted.graph, weights)
    by_memory = {(weights[name].ctypes.data, weights[name].nbytes): name for name in met}
    tied, baked = dict[str, str](), dict[str, str]()
    for name in weights.keys() - met:
        other = by_memory.get((weights[name].ctypes.data, weights[name].nbytes))
        if other is None:
            baked[name] = digest(weights[name])
        else:
            tied[name] = other
    described = Facts(converted.layers, converted.model.dtype, baked=baked, tied=tied, **facts)
    graph, constants = serialized(converted.graph)
    if torch.finfo(converted.model.dtype).bits < torch.finfo(torch.float32).bits:
        graph = mark_decompressions(graph)
    return Conversion(described, graph, constants, own), {name: weights[name] for name in met}


def joined(core: ov.Core, device: str, conversion: Conversion, weights: Weights) -> ov.Model:
    """Return a conversion's graph with its weights, whose memory must exist as long as the graph."""
    core.get_property(device, "FULL_DEVICE_NAME")  # loads the device's plug-in, which defines paged attention
    graph = core.read_model(conversion.graph, ov.Tensor(np.frombuffer(conversion.constants, np.uint8)))
    insert_constants(graph, {**weights, **conversion.own})
    describe(graph, conversion.facts.layers)
    return graph


def serialized(graph: ov.Model) -> tuple[bytes, bytes]:
    """Return OpenVINO's two files of a graph: itself, and its constants.

    Raises:
        ModelError: if the system's folder of temporary files has no room for them.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "graph.xml")
            ov.save_model(graph, path, compress_to_fp16=False)
            return path.read_bytes(), path.with_suffix(".bin").read_bytes()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"the converted model can't be written to {tempfile.gettempdir()}: {error}") from error
