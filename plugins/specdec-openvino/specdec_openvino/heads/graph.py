"""The graph of a trained head's pass: attention to cached and own pairs, the layer, and the choice of the top-k.

Rotation and embeddings are inputs, since the host looks them up in tables. All sizes but the head's own are dynamic.
"""

from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from torch.nn.functional import linear

from specdec.errors import in_one_line
from specdec.heads import BlockConfig, BlockHead, KeyValues, LayerInputs, PairHead, PairHeadConfig, Product, fused
from specdec.models import without_autocast
from specdec_openvino.conversion.external_weights import bytes_of, extract_constants, insert_constants
from specdec_openvino.conversion.tracing import CONVERTING, translated
from specdec_openvino.conversion.weight_separation import serialized
from specdec_openvino.conversion.widening import mark_decompressions
from specdec_openvino.engine.graphs import narrow
from specdec_openvino.engine.retention import RetainedInForks
from specdec_openvino.options import OpenVINOOptions, openvino_type

_MOST = torch.iinfo(torch.int8).max
OUTPUTS = "next_features", "new_keys", "new_values", "log_probs", "draft_ids"  # no ids of the whole vocabulary


class HeadGraph(RetainedInForks):
    """A head's graph, compiled for a device.

    Args:
        head: its weights.
        kind: of its passes' shapes.
        num_tokens: the number of tokens that a pass returns after each pair; None for the whole draft vocabulary.
        is_quantized: matrices are stored in 8 bits, with a scale for each output: half the memory to read.

    Raises:
        HeadError: if the head can't be converted or compiled.
    """

    def __init__(
        self,
        head: PairHead | BlockHead,
        kind: "type[HeadShape]",
        num_tokens: int | None,
        options: OpenVINOOptions,
        is_quantized: bool,
    ) -> None:
        super().__init__()
        self.dtype = head.fc.weight.dtype
        try:
            graph, weights = _converted(head, kind, num_tokens, is_quantized)
            _, own = extract_constants(graph, weights)
            described, constants = serialized(graph)
            if self.dtype != torch.float32 and not is_quantized:  # a mark on 8 bits has them widened
                described = mark_decompressions(described)
            # The graph's constants are in the memory of these two.
            self._constants, self._weights = np.frombuffer(constants, np.uint8), {**weights, **own}
            graph = (core := ov.Core()).read_model(described, ov.Tensor(self._constants))
            insert_constants(graph, self._weights)
            self.model = core.compile_model(graph, options.device, options.properties(self.dtype))
        except Exception as error:  # translators and devices may raise any error
            raise HeadError(in_one_line(error)) from error


class HeadShape(NamedTuple):
    """The sizes of a pass that the head doesn't determine.

    Attributes:
        requests, rows: padded pairs of each request.
        wanted: pairs of each request whose continuation is returned.
        slots: of the cache.
        has_noise: the logits are changed before candidates are chosen.
    """

    requests: int
    rows: int
    wanted: int
    slots: int
    has_noise: bool

    @classmethod
    def examples(cls, config: Any) -> "tuple[HeadShape, HeadShape]":
        """Return two shapes whose dynamic sizes all differ; the first is traced."""
        return cls(2, 3, 2, 5, has_noise=True), cls(3, 4, 3, 6, has_noise=False)

    def inputs(self, config: Any) -> dict[str, np.ndarray]:
        """Return zeros for each input besides the cache, with which ``scale`` and ``noise`` change nothing.

        Pairs have either the target's states or features; the other input is zero. ``bias`` is added to the scores of
        the wanted pairs, for all slots and then for the pass's own rows.
        """
        pairs, rotation = (self.requests, self.rows), (self.requests, 1, self.rows, config.head_dim)
        changed = self.requests if self.has_noise else 1
        shapes = {
            "embedded": (*pairs, config.hidden_size),
            "states": (*pairs, config.states_size),
            "features": (*pairs, config.hidden_size),
            "cos": rotation,
            "sin": rotation,
            "bias": (self.requests, 1, self.wanted, self.slots + self.rows),
            "noise": (changed, 1, config.draft_vocab_size if self.has_noise else 1),
        }
        return {
            **{name: np.zeros(shape, np.float32) for name, shape in shapes.items()},
            "scale": np.ones((changed, 1, 1), np.float32),
            "wanted": np.zeros((self.requests, self.wanted), np.int64),
        }

    def outputs(self, head: PairHead | BlockHead, num_tokens: int | None, of_cache: np.dtype) -> dict[str, np.ndarray]:
        """Return room for each output, with keys and values in numbers of the type ``of_cache``.

        Args:
            num_tokens: as of ``HeadGraph``.
        """
        config, wanted = head.config, (self.requests, self.wanted)
        of_pairs = self.requests, head.no_key_values().keys.shape[1], self.rows, config.head_dim
        num_scored = config.draft_vocab_size if num_tokens is None else num_tokens
        outputs = {
            "next_features": np.zeros((*wanted, config.hidden_size), np.float32),
            "new_keys": np.zeros(of_pairs, of_cache),
            "new_values": np.zeros(of_pairs, of_cache),
            "log_probs": np.zeros((*wanted, num_scored), np.float32),
        }
        return outputs if num_tokens is None else {**outputs, "draft_ids": np.zeros((*wanted, num_tokens), np.int64)}

    @staticmethod
    def run(head: Any, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The pass, as it is traced: returns next features, new keys and values, and logits of the wanted pairs."""
        config, wanted = head.config, given["wanted"]
        found = head.enter_embedded(
            given["embedded"], head.fuse(given["states"]) + given["features"], given["cos"], given["sin"]
        )
        index = wanted[:, None, :, None].expand(-1, config.num_attention_heads, -1, config.head_dim)
        cache = KeyValues(given["keys"], given["values"])
        attended = _attended(config, found._replace(query=found.query.gather(2, index)), cache, given["bias"])
        residual = found.residual.gather(1, wanted[..., None].expand(-1, -1, config.hidden_size))
        out = head.leave(residual, attended)
        return head.next_features(out), found.key, found.value, head.logits(out)


class BlockShape(HeadShape):
    """The sizes of a block drafter's pass, whose rows are the context's; those of the block come after them."""

    __slots__ = ()

    @classmethod
    def examples(cls, config: BlockConfig) -> tuple[HeadShape, HeadShape]:
        return cls(2, 3, config.num_drafted, 5, has_noise=True), cls(3, 4, config.num_drafted, 6, has_noise=False)

    def inputs(self, config: BlockConfig) -> dict[str, np.ndarray]:
        """Return them, with a ``bias`` of the block's rows for each of the layers' different limits."""
        size, changed = config.block_size, self.requests if self.has_noise else 1
        rotation = self.requests, 1, self.rows + size, config.head_dim
        shapes = {
            "embedded": (self.requests, size, config.hidden_size),
            "states": (self.requests, self.rows, config.states_size),
            "cos": rotation,
            "sin": rotation,
            "bias": (self.requests, len({*config.limits}), size, self.slots + self.rows + size),
            "noise": (changed, self.wanted, config.draft_vocab_size) if self.has_noise else (1, 1, 1),
        }
        zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        return {**zeros, "scale": np.ones((changed, 1, 1), np.float32)}

    @staticmethod
    def run(head: BlockHead, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        config, new = head.config, list[KeyValues]()
        size, different = config.block_size, [*dict.fromkeys(config.limits)]

        def attend(number: int, inputs: LayerInputs) -> torch.Tensor:
            new.append(KeyValues(inputs.key[:, :, :-size], inputs.value[:, :, :-size]))
            cache, place = KeyValues(given["keys"], given["values"]), different.index(config.limits[number])
            of_block = inputs._replace(query=inputs.query[:, :, -size:])
            return _attended(config, of_block, head.layer_of(cache, number), given["bias"][:, place : place + 1])

        context = head.context_rows(given["states"])
        final = head.final_states(given["embedded"], given["cos"], given["sin"], attend, context)
        final = final[:, size - config.num_drafted :]
        return final, *(torch.cat(each, 1) for each in zip(*new, strict=True)), head.logits(final)


class HeadError(Exception):
    """A head that OpenVINO doesn't run."""


def _converted(
    head: PairHead | BlockHead, kind: type[HeadShape], num_tokens: int | None, is_quantized: bool
) -> tuple[ov.Model, dict[str, np.ndarray]]:
    """Return a head's graph, and the bytes of the matrices that are constants in it."""
    matrices = list[torch.Tensor]()

    def prepare(matrix: torch.Tensor) -> Product:
        matrix, scales = _quantized(matrix.detach()) if is_quantized else (matrix.detach(), None)
        matrices.append(matrix)
        return lambda rows: linear(rows, matrix.float() if scales is None else matrix.float() * scales)

    traced, other = (_example(head, shape) for shape in kind.examples(head.config))

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(traced, inputs, strict=True))
        *others, logits = kind.run(joined, given)
        logits = logits * given["scale"] + given["noise"]
        normalizer = logits.logsumexp(-1, keepdim=True)
        if num_tokens is None:
            return *others, logits - normalizer
        best, draft_ids = logits.topk(num_tokens)
        return *others, best - normalizer, draft_ids

    with CONVERTING, torch.inference_mode(False), torch.no_grad(), without_autocast():
        joined = head.fused(prepare) if isinstance(head, BlockHead) else fused(head, prepare)
        graph = translated(run, tuple(traced.values()))
    _set_types(graph, traced, other, openvino_type(head.fc.weight.dtype))
    return graph, {str(number): bytes_of(matrix) for number, matrix in enumerate(matrices)}


def _quantized(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix (outputs, inputs) in 8 bits and its scales (outputs, 1), one for each row."""
    scales = matrix.float().abs().amax(1, keepdim=True) / _MOST
    return (matrix.float() / scales.where(scales > 0, 1.0)).round().to(torch.int8), scales


def _attended(config: PairHeadConfig, found: LayerInputs, cache: KeyValues, bias: torch.Tensor) -> torch.Tensor:
    """Attention to a cache and the pass's own keys; bias is (requests, 1, queries, slots and own rows)."""
    groups, size = config.num_attention_heads // config.num_key_value_heads, config.head_dim
    query = torch.unflatten(found.query, 1, (-1, groups)).flatten(2, 3)  # groups as rows of one head
    scores = torch.cat((query @ cache.keys.transpose(-1, -2), query @ found.key.transpose(-1, -2)), -1) * size**-0.5
    probs = (torch.unflatten(scores, 2, (groups, -1)) + bias[:, :, None]).softmax(-1).flatten(2, 3)
    num_slots = cache.keys.shape[2]
    attended = probs[..., :num_slots] @ cache.values + probs[..., num_slots:] @ found.value
    return torch.unflatten(attended, 2, (groups, -1)).flatten(1, 2)


def _example(head: PairHead | BlockHead, shape: HeadShape) -> dict[str, torch.Tensor]:
    """Return the inputs of a pass by name, in order."""
    _, num_heads, _, size = head.no_key_values().keys.shape
    cache = torch.zeros(shape.requests, num_heads, shape.slots, size)
    inputs = {name: torch.from_numpy(values) for name, values in shape.inputs(head.config).items()}
    return {**inputs, "keys": cache, "values": cache.clone()}


def _set_types(
    graph: ov.Model, traced: dict[str, torch.Tensor], other: dict[str, torch.Tensor], of_cache: ov.Type
) -> None:
    """Name inputs and outputs; keys and values have the type of the cache, so that no pass converts all of them.

    Sizes in which the two examples of inputs differ become dynamic.
    """
    for parameter, (name, example) in zip(graph.get_parameters(), traced.items(), strict=True):
        parameter.output(0).get_tensor().set_names({name})
        sizes = [-1 if size != also else size for size, also in zip(example.shape, other[name].shape, strict=True)]
        parameter.set_partial_shape(ov.PartialShape(sizes))
        parameter.set_element_type(ov.Type.i64 if name == "wanted" else ov.Type.f32)
        if name in {"keys", "values"} and of_cache != ov.Type.f32:
            targets = list(parameter.output(0).get_target_inputs())
            parameter.set_element_type(of_cache)
            wide = ops.convert(parameter, "f32")
            for target in targets:
                target.replace_source_output(wide.output(0))
    for result, name in zip(graph.get_results(), OUTPUTS, strict=False):
        result.input_value(0).get_tensor().set_names({name})
        if name in {"new_keys", "new_values"} and of_cache != ov.Type.f32:
            narrow(result, of_cache)
    graph.validate_nodes_and_infer_types()
