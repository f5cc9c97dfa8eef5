"""Reads multi-token-prediction modules from the target's own checkpoint, of which transformers doesn't load them.

The decoder layer is that of the target's family in transformers: a model of one layer is made of the target's
configuration, and the module's tensors are loaded as that layer's, with transformers' own conversions.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from specdec.errors import ModelError, in_one_line
from specdec.heads.files import first_of
from specdec.heads.mtp import MtpHead, MtpParts
from specdec.heads.settings import refuse

_FAMILIES = "DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5 and MiMo"
_REMEDY = f"give the folder or hub name of an original checkpoint with modules, such as those of {_FAMILIES}"


class CheckpointLayout(NamedTuple):
    """The names of a module's tensors in a checkpoint.

    Attributes:
        layer: prefix of the decoder layer's tensors.
        embedding_norm, hidden_norm, projection, norm: names of the other tensors, without ``.weight``.
        shared: prefixes of copies of the target's embeddings and output matrix, which aren't read.
        hidden_first: see ``MtpHead``.
    """

    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    shared: tuple[str, ...] = ()
    hidden_first: bool = False


def layouts(num_layers: int) -> tuple[CheckpointLayout, ...]:
    """Return the known layouts of the first module of a target with ``num_layers`` layers."""
    qwen, mimo = "mtp.", "model.mtp_layers.0."
    after = f"model.layers.{num_layers}."  # DeepSeek-V3, GLM-4.5
    return (
        CheckpointLayout(
            "mtp.layers.0.",
            f"{qwen}pre_fc_norm_embedding",
            f"{qwen}pre_fc_norm_hidden",
            f"{qwen}fc",
            f"{qwen}norm",
        ),
        CheckpointLayout(
            after,
            f"{after}enorm",
            f"{after}hnorm",
            f"{after}eh_proj",
            f"{after}shared_head.norm",
            (f"{after}embed_tokens.", f"{after}shared_head.head."),
        ),
        CheckpointLayout(
            mimo,
            f"{mimo}token_layernorm",
            f"{mimo}hidden_layernorm",
            f"{mimo}input_proj",
            f"{mimo}final_layernorm",
            hidden_first=True,
        ),
    )


def read_mtp(model: Any, embeddings: torch.Tensor, lm_head: torch.Tensor, dtype: torch.dtype) -> MtpHead:
    """Read the first module of a target's checkpoint, onto the device of the target's embeddings.

    Args:
        model: the target: a transformers model, or an object with its ``config`` and the ``folder`` that it was read
            from.
        embeddings: (vocab, hidden), the target's.
        lm_head: (draft vocab, hidden), the target's output rows of the first ids.
        dtype: of the module.

    Raises:
        ModelError: the checkpoint is unknown, has no module or a damaged one; with what was found and needed.
    """
    config, folder = _text_config(model), _folder_of(model)
    try:
        paths = {name: path for path in sorted(folder.glob("*.safetensors")) for name in _names(path)}
        found = [each for each in layouts(config.num_hidden_layers) if f"{each.projection}.weight" in paths]
        if not found:
            raise ModelError(f"the checkpoint in {folder} has no multi-token-prediction modules: {_REMEDY}")
        tensors = dict(_tensors(paths, found[0]))
    except (SafetensorError, OSError) as error:
        raise ModelError(f"a file of {folder} is damaged ({error}): copy the checkpoint again") from error
    _check(folder, tensors)
    if getattr(config, "mtp_use_dedicated_embeddings", False):
        refuse(folder, "mtp_use_dedicated_embeddings", True, _REMEDY)
    try:
        one = _one_layer(config)
        return _assembled(found[0], tensors, _empty(model, one), one, embeddings, lm_head, dtype)
    except (KeyError, ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise ModelError(
            f"the multi-token-prediction module in {folder} isn't one layer of its model ({in_one_line(error)}): "
            f"{_REMEDY}"
        ) from error


def _text_config(model: Any) -> Any:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise ModelError(f"{type(model).__name__} has no multi-token-prediction modules: give a transformers model")
    return config.get_text_config(decoder=True)


def _folder_of(model: Any) -> Path:
    """Return the folder of the target's checkpoint, in the hub's cache if it was loaded by a hub name."""
    place = getattr(model, "folder", None) or getattr(model.config, "name_or_path", "")
    if place and Path(place).is_dir():
        return Path(place)
    if place:
        from huggingface_hub import snapshot_download

        revision = getattr(model.config, "_commit_hash", None)
        try:
            return Path(snapshot_download(str(place), revision=revision, local_files_only=True))
        except (OSError, ValueError):
            pass
    raise ModelError(
        "multi-token-prediction modules are read from the target's checkpoint, and this model's is unknown"
        f"{f' (there is no folder {place})' if place else ''}: load the model by its folder or hub name"
    )


def _names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _tensors(paths: Mapping[str, Path], layout: CheckpointLayout) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a module by name."""
    own = {f"{name}.weight" for name in layout[1:5]}
    wanted = own | {name for name in paths if name.startswith(layout.layer) and not name.startswith(layout.shared)}
    for path in sorted({paths[name] for name in wanted & paths.keys()}):
        with safe_open(path, framework="pt") as file:
            for name in sorted(wanted & set(file.keys())):
                yield name, file.get_tensor(name)


def _check(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    quantised = [name for name, tensor in tensors.items() if tensor.element_size() < 2 or "_scale" in name]
    if quantised:
        raise ModelError(
            f"the multi-token-prediction module in {folder} is quantised ({quantised[0]}): give a checkpoint in "
            "bfloat16, float16 or float32"
        )


def _one_layer(config: Any) -> Any:
    """Return the configuration of a model of one layer with attention to the whole text, as the modules have it."""
    one = deepcopy(config)
    changes = {
        "num_hidden_layers": 1,
        "vocab_size": 1,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"],
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "first_k_dense_replace": 0,  # the module's layer is like the last ones
        "num_nextn_predict_layers": 0,  # MiMo's own code builds the modules, too
    }
    for name, value in changes.items():
        if getattr(one, name, None) is not None:
            setattr(one, name, value)
    if getattr(one, "mlp_layer_types", None):
        one.mlp_layer_types = one.mlp_layer_types[-1:]
    if hasattr(one, "quantization_config"):
        del one.quantization_config
    one._attn_implementation = "sdpa"
    return one


def _empty(model: Any, config: Any) -> Any:
    """Return a model without weights, of the target's own class if its code isn't in transformers."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config)
        except ValueError:  # a class that transformers doesn't know
            if isinstance(model, torch.nn.Module) and type(model.config) is type(config):
                return type(model)(config)
            raise


def _assembled(
    layout: CheckpointLayout,
    tensors: dict[str, torch.Tensor],
    empty: Any,
    config: Any,
    embeddings: torch.Tensor,
    lm_head: torch.Tensor,
    dtype: torch.dtype,
) -> MtpHead:
    from specdec.models.architecture import cache_argument

    embedding_norm, hidden_norm, projection, norm = (tensors.pop(f"{name}.weight") for name in layout[1:5])
    needed = config.hidden_size, 2 * config.hidden_size
    if projection.shape != needed:
        raise ValueError(f"{layout.projection}.weight has shape {tuple(projection.shape)}, needed: {needed}")
    names = {module: name for name, module in empty.named_modules()}
    decoder = empty.get_decoder()
    state = {f"{names[decoder.layers[0]]}.{name.removeprefix(layout.layer)}": each for name, each in tensors.items()}
    state[f"{names[decoder.norm]}.weight"] = norm
    for unused in (empty.get_input_embeddings(), empty.get_output_embeddings()):
        state[f"{names[unused]}.weight"] = torch.zeros(unused.weight.shape)
    loaded, report = type(empty).from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, output_loading_info=True
    )
    wrong = sorted({*report["missing_keys"], *report["unexpected_keys"]})
    if wrong:
        raise ValueError(f"missing or unknown tensors: {first_of(wrong)}")
    decoder = loaded.eval().requires_grad_(False).to(embeddings.device).get_decoder()
    norms = _with_weight(decoder.norm, embedding_norm), _with_weight(decoder.norm, hidden_norm)
    where: dict[str, Any] = {"device": embeddings.device, "dtype": dtype}
    parts = MtpParts(decoder.layers[0], decoder.norm, decoder.rotary_emb, *norms, projection.to(**where))
    output = lm_head.to(**where)
    return MtpHead(parts, embeddings, output, layout.hidden_first, cache_argument(decoder.layers[0]))


def _with_weight(norm: torch.nn.Module, weight: torch.Tensor) -> torch.nn.Module:
    """Return a norm of the same class with another weight."""
    other, needed = deepcopy(norm), norm.get_parameter("weight")
    if needed.shape != weight.shape:
        raise ValueError(f"a norm has {len(weight)} weights, needed: {len(needed)}")
    other.get_parameter("weight").data = weight.to(needed)
    return other
