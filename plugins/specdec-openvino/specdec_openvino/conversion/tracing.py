"""Converts a transformers model to an OpenVINO graph with a paged cache, by tracing the model's own forward."""

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import openvino as ov
import torch
from openvino._offline_transformations import apply_moc_transformations
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from transformers import PreTrainedModel
from transformers.utils import logging
from transformers.utils.logging import tqdm

from specdec import ModelError
from specdec.errors import in_one_line
from specdec.models import name_of, shapes_of, why_fixed, without_autocast
from specdec.models.notes import lock_of
from specdec.models.weights import packed_weights, unpack
from specdec_openvino.conversion import attention
from specdec_openvino.conversion.attention import ROWS, LayerShape, Tracing
from specdec_openvino.conversion.widening import widen

LOGITS = "logits"
FIRST = "input_ids", "position_ids", "columns"
_NUM_TRACED = 3  # tokens of the pass that is traced
CONVERTING = threading.Lock()  # operations of torch and attentions of transformers are registered for the whole process


@dataclass(frozen=True, slots=True)
class Converted:
    """A graph whose constants are in the memory of the model's tensors.

    Attributes:
        layers: the attention layers in the order of the graph's caches ``keys.0``, ``values.0``, ``keys.1``, …
        model: the traced model: the given one, or a copy of it without packed weights.
    """

    graph: ov.Model
    layers: tuple[LayerShape, ...]
    model: PreTrainedModel


def hidden_name(layer: int) -> str:
    """Return the name of the output with a layer's hidden states; 0 for the embeddings."""
    return f"hidden.{layer}"


def _pass_of(model: PreTrainedModel, tracing: Tracing) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function, of tensors only, for the logits of some tokens of a pass and its hidden states.

    Tokens are rows of one position each, (tokens, 1), so that transposing heads and tokens copies nothing.
    """

    def run(input_ids: torch.Tensor, position_ids: torch.Tensor, columns: torch.Tensor, *rest: Any) -> Any:
        tracing.layers.clear()
        tracing.caches, tracing.rows = rest[: -len(ROWS)], rest[-len(ROWS) :]
        head = model.get_output_embeddings()
        wanted = head.register_forward_pre_hook(lambda _, given: (given[0].index_select(0, columns), *given[1:]))
        try:
            output = model(
                input_ids, position_ids=position_ids, attention_mask=None, use_cache=False, output_hidden_states=True
            )
        finally:
            wanted.remove()
        return tuple(states.float() for states in (output.logits, *output.hidden_states))

    return run


def convert_checked(model: PreTrainedModel) -> Converted:
    """Convert a model if its attention is one that paged attention supports.

    Raises:
        ModelError: if it isn't, or the model can't be converted, with the reason.
    """
    windows = {
        None if window is None else (window.kind, window.size) for window in shapes_of(model, ()).attention.values()
    }
    if any(window is not None and window[0] == "chunked" for window in windows):
        raise refusal(model, "it has chunked attention, which paged attention doesn't support")
    if reason := why_fixed(model):
        raise refusal(model, reason)
    with tqdm(total=1, desc="converting to OpenVINO, once", leave=False):
        converted = convert(model)
    if {layer.window for layer in converted.layers} != {0 if window is None else window[1] for window in windows}:
        raise refusal(model, "its windows are made by its own masks, which paged attention doesn't read")
    return converted


def convert(model: PreTrainedModel) -> Converted:
    """Trace a model and translate it, without changing the model.

    Raises:
        ModelError: if the model can't be traced or translated, with the first operation that fails.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise refusal(model, "its forward takes no position_ids")
    if packed_weights(model):  # another generator's, whose kernels no graph has
        model = deepcopy(model)
        unpack(model)
    tracing = Tracing()
    num_layers = model.config.get_text_config().num_hidden_layers
    with CONVERTING:
        library = attention.define()
        try:
            with lock_of(model), _traced(model, tracing), torch.no_grad(), without_autocast():
                graph = translated(_pass_of(model, tracing), _example(num_layers))
            widen(graph)
            _name(graph, tracing.layers, num_layers)
        except Exception as error:  # modelling code and translators may raise any error
            raise refusal(model, _reason(error)) from error
        finally:
            library._destroy()
    return Converted(graph, tuple(tracing.layers), model)


def translated(run: Callable[..., Any], example: tuple[torch.Tensor, ...]) -> ov.Model:
    """Convert a function of tensors to a graph, in half the time of ``openvino.convert_model``.

    ``convert_model`` would trace twice, to compare, and script each of the model's modules. A scripted function would
    stay in memory as long as the process, with all weights.
    """
    traced, _ = torch.jit._get_trace_graph(run, example, strict=False)
    frontend = FrontEndManager().load_by_framework("pytorch")
    frontend.add_extension(attention.extension())
    decoder = TorchScriptPythonDecoder(None, traced, alias_db=traced.alias_db())  # the front end holds no reference
    graph: ov.Model = frontend.convert(frontend.load(decoder))
    apply_moc_transformations(graph, cf=False, smart_reshape=True)
    return graph


def _name(graph: ov.Model, layers: list[LayerShape], num_layers: int) -> None:
    """Name a graph's inputs and outputs."""
    names = [*FIRST, *(f"{kind}.{layer}" for layer in range(num_layers) for kind in ("keys", "values")), *ROWS]
    name_inputs(graph, names, layers)
    for output, name in zip(graph.outputs, (LOGITS, *map(hidden_name, range(num_layers + 1))), strict=True):
        output.get_tensor().set_names({name})


def _example(num_layers: int) -> tuple[torch.Tensor, ...]:
    count = _NUM_TRACED
    first = torch.zeros(count, 1, dtype=torch.long), torch.arange(count)[:, None], torch.tensor([0, count - 1])
    caches = [torch.zeros(1, 1, 1, 1) for _ in range(2 * num_layers)]
    rows = {"max_context_len": torch.tensor(1, dtype=torch.int32), "qq_bias": torch.zeros(1, dtype=torch.uint8)}
    return *first, *caches, *(rows.get(name, torch.zeros(1, dtype=torch.int32)) for name in ROWS)


@contextmanager
def _traced(model: PreTrainedModel, tracing: Tracing) -> Iterator[None]:
    """Temporarily set the tracing's attention and loop-free experts, and silence warnings."""
    attention.register(tracing)
    config = model.config.get_text_config()
    before, verbosity = config._attn_implementation, logging.get_verbosity()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    config._attn_implementation = attention.NAME
    logging.set_verbosity_error()  # tracing reads every property, and that of the loss warns
    try:
        for weight in trained:  # torch makes constants only of parameters without gradients
            weight.requires_grad_(False)
        with warnings.catch_warnings(), _batched_experts(model):
            warnings.simplefilter("ignore")  # tracing is deprecated, and warns that each condition becomes fixed
            yield
    finally:
        for weight in trained:
            weight.requires_grad_()
        config._attn_implementation = before
        logging.set_verbosity(verbosity)


def name_inputs(graph: ov.Model, names: list[str], layers: list[LayerShape]) -> None:
    """Name the inputs and set their types and shapes; only the ranks of the example's shapes are kept."""
    shapes: dict[str, tuple[Any, list[int]]] = {
        "input_ids": (ov.Type.i64, [-1, 1]),
        "position_ids": (ov.Type.i64, [-1, 1]),
        "columns": (ov.Type.i64, [-1]),
        "max_context_len": (ov.Type.i32, []),
        "qq_bias": (ov.Type.u8, [-1]),
    }
    for number, layer in enumerate(layers):  # the device chooses the type and the slots of a block
        shapes[f"keys.{number}"] = ov.Type.dynamic, [-1, layer.heads, -1, layer.key_width]
        shapes[f"values.{number}"] = ov.Type.dynamic, [-1, layer.heads, -1, layer.value_width]
    for parameter, name in zip(graph.get_parameters(), names, strict=True):
        kind, shape = shapes.get(name, (ov.Type.i32, [-1]))
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
        parameter.set_element_type(kind)
        parameter.set_partial_shape(ov.PartialShape(shape))
    graph.validate_nodes_and_infer_types()


def _reason(error: Exception) -> str:
    """Return the line of an error with the cause; the first lines of OpenVINO's errors are places in its source."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__
    if isinstance(error, ModelError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines()]
    summary = next((line for line in lines if line.startswith(("-- Conversion is failed for", "-- No conversion"))), "")
    return summary.removeprefix("-- ") or in_one_line(error)


def refusal(model: PreTrainedModel, reason: str) -> ModelError:
    """Return the error for a model that can't be converted."""
    return ModelError(f"{name_of(model)} can't be converted to OpenVINO: {reason}; use backend='hf'")


@contextmanager
def _batched_experts(model: PreTrainedModel) -> Iterator[None]:
    """Temporarily use batched products for experts: ordinary ones depend on which rows chose an expert."""
    before = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)
