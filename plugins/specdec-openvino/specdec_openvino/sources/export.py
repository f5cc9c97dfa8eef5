"""Folders exported by optimum-intel: their graph with a paged cache, so that it runs specdec's passes.

OpenVINO's own pass replaces attention and its cache. Then inputs get the names and shapes of converted models, and the
head is computed for some tokens only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from specdec import ModelError
from specdec.errors import in_one_line
from specdec_openvino.conversion.attention import ROWS, LayerShape, describe
from specdec_openvino.conversion.external_weights import LEAST_OWN, Checkpoint, Place, extract_constants
from specdec_openvino.conversion.files import Conversion, Facts
from specdec_openvino.conversion.names import name_of_folder
from specdec_openvino.conversion.tracing import FIRST, LOGITS, name_inputs
from specdec_openvino.conversion.weight_separation import serialized
from specdec_openvino.engine.graphs import Graphs
from specdec_openvino.options import OpenVINOOptions
from specdec_openvino.sources.base import ModelFolder, Prove
from specdec_openvino.sources.export_proof import PlainExport

GRAPH, WEIGHTS = "openvino_model.xml", "openvino_model.bin"
_LFS = b"version https://git-lfs"
_AGAIN = "Download it again, or export the model again with optimum-cli export openvino"
_TASK = "export it with optimum-cli export openvino --task text-generation-with-past"
_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_CHECKPOINT = "give the checkpoint that it was exported from"
_PAGED, _WINDOW = "PagedAttentionExtension", 10  # the operation, and the number of its input with the window
_PASSING = {"Convert", "Multiply", "Divide", "Add", "Subtract", "Tanh", "Reshape", "Squeeze", "Unsqueeze"}


def is_export(folder: Path) -> bool:
    """Return True for a folder with an export but no checkpoint."""
    return (folder / GRAPH).is_file() and not any(folder.glob("*.safetensors"))


class Export(ModelFolder):
    """A folder with an exported graph and its weights, which conversions read in place."""

    def state(self, device: str) -> str:
        return name_of_folder(self.source, device, is_export=True)

    def graphs(self, options: OpenVINOOptions, prove: Prove) -> Graphs:
        files = self._files()
        graph = self._read(files)
        places = dict(_places(graph, files))
        weights = files.read(places)
        self._check(graph)
        try:
            layers = _paged(graph)
        except (RuntimeError, ValueError, KeyError) as error:  # a graph of another form
            raise self._refusal(f"its attention can't be paged ({in_one_line(error)}): {_CHECKPOINT}") from error
        met, own = extract_constants(graph, weights)
        facts = Facts(
            tuple(layers), torch.float32, str(self.source.resolve()), {name: places[name] for name in sorted(met)}
        )
        graphs = Graphs(Conversion(facts, *serialized(graph), own), {name: weights[name] for name in met}, files.let_go)
        prove(PlainExport(self._read(files), self.config(), self._name), graphs)
        return graphs

    def _files(self) -> Checkpoint:
        path = self.source / WEIGHTS
        if not path.is_file() or not path.stat().st_size:
            raise self._refusal(f"{WEIGHTS} is missing or empty. {_AGAIN}")
        for file in (self.source / GRAPH, path):
            with file.open("rb") as opened:
                if opened.read(len(_LFS)) == _LFS:
                    raise self._refusal(f"{file.name} is a Git LFS pointer: fetch it with git lfs pull")
        return Checkpoint(self.source, [WEIGHTS])

    def _read(self, files: Checkpoint) -> ov.Model:
        contents = files.file(WEIGHTS)
        try:
            weights = ov.Tensor(contents, ov.Shape([contents.nbytes]), ov.Type.u8)  # in the file's memory
            return ov.Core().read_model((self.source / GRAPH).read_bytes(), weights)
        except RuntimeError as error:
            raise self._refusal(
                f"{GRAPH} isn't a graph that OpenVINO reads with {WEIGHTS}, so one of them is damaged or encrypted. "
                f"{_AGAIN}"
            ) from error

    def _check(self, graph: ov.Model) -> None:
        inputs = {name for each in graph.inputs for name in each.get_names()}
        outputs = [output.get_names() for output in graph.outputs]
        if not any(LOGITS in names for names in outputs):
            raise self._refusal(f"it was exported for another task, since it has no {LOGITS}: {_TASK}")
        if len(outputs) > 1:
            others = sorted(min(names, default="one without a name") for names in outputs if LOGITS not in names)
            raise self._refusal(f"it has outputs besides {LOGITS} ({', '.join(others)}): {_CHECKPOINT}")
        if "beam_idx" not in inputs:
            raise self._refusal(f"it keeps no keys and values between passes: {_TASK}")
        if unknown := sorted(inputs - _INPUTS):
            raise self._refusal(f"it has inputs that specdec doesn't give ({', '.join(unknown)}): {_CHECKPOINT}")
        if "position_ids" not in inputs:
            raise self._refusal(f"it takes no position_ids: {_CHECKPOINT}")

    def _refusal(self, reason: str) -> ModelError:
        return ModelError(f"can't load OpenVINO's export {self._name!r}: {reason}")


def _places(graph: ov.Model, files: Checkpoint) -> Iterator[tuple[str, Place]]:
    """Yield the places of a graph's large constants in the file, whose memory they share, by new names.

    Small ones, such as shapes, stay in the graph, which isn't valid without them.
    """
    contents = files.file(WEIGHTS)
    for node in graph.get_ops():
        if node.get_type_name() == "Constant":
            offset, size = node.data.ctypes.data - contents.ctypes.data, node.data.nbytes
            if size >= LEAST_OWN and 0 <= offset <= contents.nbytes - size:
                yield f"{WEIGHTS}.{offset}.{size}", Place(WEIGHTS, offset, size)


def _paged(graph: ov.Model) -> list[LayerShape]:
    """Replace a graph's attention, and give it the inputs and outputs of converted models; return its layers."""
    paged_attention_transformation(graph, allow_qq_bias=True)
    paged = [node for node in graph.get_ops() if node.get_type_name() == _PAGED]
    if not paged:
        raise RuntimeError("it has no scaled dot-product attention")
    numbered = {int(node.input_value(3).get_node().get_friendly_name().rpartition(".")[2]): node for node in paged}
    layers = [_layer(numbered[number]) for number in range(len(numbered))]
    columns = ops.parameter([-1], np.int64, name="columns")
    head = _head(graph)
    wanted = ops.gather(head.input_value(0), columns, ops.constant(0, np.int64))
    head.input(0).replace_source_output(wanted.output(0))
    graph.add_parameters([columns])
    for name in FIRST[:2]:
        _by_rows(graph, name)
    name_inputs(graph, _names(graph), layers)
    (result,) = graph.get_results()
    result.input_value(0).get_tensor().set_names({LOGITS})
    describe(graph, layers)
    return layers


def _layer(node: Any) -> LayerShape:
    facts = {name: int(node.get_rt_info()[name].astype(str)) for name in ("num_k_heads", "k_head_size", "v_head_size")}
    window = int(_value(node.input_value(_WINDOW)))
    return LayerShape(facts["num_k_heads"], facts["k_head_size"], facts["v_head_size"], window)


def _value(output: ov.Output) -> Any:
    """Return the number that an output has in every pass."""
    return ov.Core().compile_model(ov.Model([output], []), "CPU")([])[0].reshape(-1)[0]


def _head(graph: ov.Model) -> ov.Node:
    """Return the product that gives logits."""
    (result,) = graph.get_results()
    node = result.input_value(0).get_node()
    while node.get_type_name() in _PASSING:
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise RuntimeError(f"its logits come from a {node.get_type_name()}")
    return node


def _by_rows(graph: ov.Model, name: str) -> None:
    """Give an input of all tokens in a row, (tokens,), the shape (tokens, 1)."""
    (parameter,) = [each for each in graph.get_parameters() if name in each.output(0).get_names()]
    targets = list(parameter.output(0).get_target_inputs())
    parameter.set_partial_shape(ov.PartialShape([-1, 1]))
    flat = ops.reshape(parameter, ops.constant([-1], np.int64), False)
    for target in targets:
        target.replace_source_output(flat.output(0))


def _names(graph: ov.Model) -> list[str]:
    """Return the names of a graph's inputs in converted models."""
    own = {"key_cache": "keys", "value_cache": "values"}
    names = list[str]()
    for parameter in graph.get_parameters():
        kind, _, number = parameter.get_friendly_name().partition(".")
        names.append(f"{own[kind]}.{number}" if kind in own else kind)
    if unknown := sorted({name for name in names if "." not in name} - {*FIRST, *ROWS}):
        raise RuntimeError(f"it has further inputs: {', '.join(unknown)}")
    return names
