"""Facts from a model's configuration: positions, kinds of attention, and known reasons against it."""

import inspect
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from specdec.errors import ModelError, plural
from specdec.layout import Shapes, Window
from specdec.models.encoder_decoders import whole_of
from specdec.models.modalities import masks_by_types
from specdec.models.position_limit import position_limit
from specdec.models.weights.layers import is_quantised

# The self-test also walks shorter texts, but finds fewer mistakes in them.
_LEAST_POSITIONS = 11
_WINDOWED: dict[str, Literal["sliding", "chunked"]] = {"sliding_attention": "sliding", "chunked_attention": "chunked"}
_KEEP_NOTHING = {"moe", "mlp"}
_COMPRESSED = (
    "attention to blocks of tokens that are compressed as they fill, from which a rejected draft can't be removed"
)
_SELECTED = "sparse attention: an indexer selects each query's keys in the pass, by keys that don't include drafts"
_FOREIGN = {
    "linear_attention": "a recurrent state, from which a rejected draft can't be removed",
    "hybrid": "a recurrent or convolutional state besides attention, from which a rejected draft can't be removed",
    "conv": "a convolution over the tokens in cache order, in which a tree's branches are mixed",
    "indexed_attention": _SELECTED,
    "minimax_m3_sparse": _SELECTED,
    "compressed_sparse_attention": _COMPRESSED,
    "heavily_compressed_attention": _COMPRESSED,
    "reference_sliding_attention": "a window over generated tokens only, which depends on where the prompt ended",
    "window_attention": "attention within separate windows in both directions, which isn't causal",
}
_FOREIGN["hybrid_sliding"] = _FOREIGN["hybrid"]
# Kinds of layers with a state, and the kind of attention in the same layer, if any.
STATES = {"conv": "", "linear_attention": "", "hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
RECURRENT = STATES.keys() - {"conv"}
# A wide pass ignores a state. The self-test might miss that of a convolution: few tokens of a pass depend on it.
READS_BEGINNINGS_ONLY = {
    "recurrent_gemma": "its code ignores the convolution's state in passes over several tokens",
    **dict.fromkeys(
        ("falcon_mamba", "jamba", "mamba", "zamba"), "its code ignores the scan's state in passes over several tokens"
    ),
}
# Their layers write their states into a container of their own, which no checkpoint can be put into.
_OWN_CONTAINERS = {
    "rwkv": "the list of tensors that its forward takes as `state`",
    "xlstm": "an xLSTMCache, which has no calls for a layer's state",
}
# transformers has renamed it in 5.24; models whose code is in a hub's repository keep the older name.
CACHE_ARGUMENTS = "cache", "past_key_values"


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the forward's argument for the key-value cache.

    Raises:
        ModelError: if the forward has none, or one for recurrent states that can't be kept at checkpoints.
    """
    kind = getattr(getattr(model, "config", None), "model_type", "")  # a single layer has no configuration
    if container := _OWN_CONTAINERS.get(kind):
        raise ModelError(
            f"{name_of(model)} writes its recurrent states into {container}; a rejected draft couldn't be removed: "
            "decode it with its own generate(), or use a model whose states are in transformers' cache, such as Mamba"
        )
    parameters = inspect.signature(model.forward).parameters
    for name in CACHE_ARGUMENTS:
        if name in parameters:
            return name
    raise ModelError(f"{name_of(model)} has a forward without a key-value cache: use another model")


def shapes_of(model: PreTrainedModel, widths: tuple[int, ...], takes_states: bool = False) -> Shapes:
    """Return the shapes from a model's configuration, assuming that it supports trees.

    Args:
        takes_states: the backend keeps recurrent and convolutional states.

    Raises:
        ModelError: for a model that isn't supported, with the reason.
    """
    name, config = name_of(model), model.config.get_text_config()
    if model.config.is_encoder_decoder:
        raise ModelError(
            f"{name} is an encoder-decoder model: pass what specdec.models.encoder_decoders.decoder_of(model) returns"
        )
    if any(map(_drops_out, model.modules())):
        raise ModelError(f"{name} is in training mode, in which dropout changes its logits: call model.eval()")
    attention = attention_kinds(config, name, takes_states)
    cache_argument(model)  # refuses a model that has none
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{name} has no language-model head: load it with AutoModelForCausalLM")
    limit = position_limit(config)
    if limit is not None and limit < _LEAST_POSITIONS:
        raise ModelError(
            f"{name} has {plural(limit, 'position')}, too few to try it out: specdec needs {_LEAST_POSITIONS}"
        )
    return Shapes(
        vocab_size=_num_outputs(head),
        max_positions=limit,
        takes_trees=True,
        attention=attention,
        dtype=model.dtype,
        device=model.device,
        widths=widths,
        num_layers=config.num_hidden_layers,
        has_causal_mask=not masks_by_types(model),
    )


def _num_outputs(head: torch.nn.Module) -> int:
    """Return the number of a head's logits; a quantised weight may have any shape."""
    counted: Any = head
    return int(counted.out_features if is_quantised(head) else counted.weight.shape[0])


def _drops_out(module: torch.nn.Module) -> bool:
    """Return True for a module in training mode that may apply dropout, unlike a single matrix."""
    is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
    return module.training and (is_dropout or any(True for _ in module.children()))


def state_kinds(config: Any) -> list[str]:
    """Return the kinds of layer in a text configuration that have recurrent or convolutional states."""
    return sorted(STATES.keys() & set(getattr(config, "layer_types", None) or ()))


def attention_kinds(config: Any, name: str, takes_states: bool = False) -> dict[str, Window | None]:
    """Return the kinds of attention layer in a text configuration, each with its window or None.

    Layers without state that see one token at a time, such as Nemotron-H's experts, aren't listed.

    Args:
        takes_states: leave out layers with recurrent and convolutional states as well.

    Raises:
        ModelError: for layers with another state than keys and values.
    """
    sizes = {
        "sliding": getattr(config, "sliding_window", None),
        "chunked": getattr(config, "attention_chunk_size", None),
    }
    kinds = set(getattr(config, "layer_types", None) or ()) - _KEEP_NOTHING
    if not kinds:
        is_windowed = sizes["sliding"] is not None and getattr(config, "use_sliding_window", True)
        kinds = {"sliding_attention" if is_windowed else "full_attention"}
    if takes_states:
        kinds = {STATES.get(kind, kind) for kind in kinds} - {""}
    foreign = sorted(kinds - {"full_attention", *_WINDOWED})
    if foreign:
        reasons = "; ".join(f"{kind} ({_FOREIGN.get(kind, 'unknown to specdec')})" for kind in foreign)
        remedy = "a model with attention layers only" if set(foreign) - STATES.keys() else "backend='hf'"
        raise ModelError(f"{name} is unsupported because of its layers of kind {reasons}: use {remedy}")
    windows: dict[str, Window | None] = {"full_attention": None} if "full_attention" in kinds else {}
    for kind in sorted(kinds - {"full_attention"}):
        size = sizes[_WINDOWED[kind]]
        if size is None:
            raise ModelError(f"{name} has {kind} layers, but its configuration has no size of their window")
        windows[kind] = Window(_WINDOWED[kind], size)
    return windows


def name_of(model: PreTrainedModel) -> str:
    """Return the model's class and family, for messages."""
    whole = whole_of(model) or model  # a decoder's view
    return f"{type(whole).__name__} ({whole.config.model_type})"
