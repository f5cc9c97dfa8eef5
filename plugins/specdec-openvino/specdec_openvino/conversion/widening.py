"""Changes graphs of 16-bit models to float32 types, with 16-bit weights.

The device computes in the requested precision in either case. But it recognises fused operations, such as rotary
embeddings, only in float32; and it stores weights in 16 bits, rather than as a float32 copy, only if the conversion
after each of them is marked as a decompression. OpenVINO itself marks those of float16 weights. It has no function that
marks others, but reads the marks from a graph's file, so they are written there.
"""

from xml.etree import ElementTree

import openvino as ov
from openvino import opset13 as ops

from specdec_openvino.conversion.external_weights import PREFIX

_NARROW = ov.Type.bf16, ov.Type.f16


def widen(graph: ov.Model) -> None:
    """Change the 16-bit types of a graph to float32, except those of its weights."""
    for node in graph.get_ordered_ops():
        is_constant = node.get_type_name() == "Constant"
        if (is_constant or node.get_type_name() == "Convert") and node.get_element_type() in _NARROW:
            targets = list(node.output(0).get_target_inputs())
            wide = ops.convert(node.output(0) if is_constant else node.input_value(0), "f32")
            for target in targets:
                target.replace_source_output(wide.output(0))


def mark_decompressions(graph: bytes) -> bytes:
    """Mark the conversions of weights in a graph's file; the weights may be inputs by ``extract_constants``."""
    tree = ElementTree.ElementTree(ElementTree.fromstring(graph))
    operations = {layer.get("id"): layer for layer in tree.iterfind("layers/layer")}
    for edge in tree.iterfind("edges/edge"):
        source, target = operations[edge.get("from-layer")], operations[edge.get("to-layer")]
        is_weight = source.get("type") == "Const" or source.get("name", "").startswith(PREFIX)
        if is_weight and target.get("type") == "Convert" and target.find("rt_info") is None:
            facts = ElementTree.Element("rt_info")
            ElementTree.SubElement(facts, "attribute", name="decompression", version="0")
            target.insert(1, facts)  # after its data, as OpenVINO writes it
    return ElementTree.tostring(tree.getroot())
