"""Reading block drafters: z-lab's folders (DFlash), DeepSpec's (DSpark) and ``speculators``' (both).

    | key | z-lab | DeepSpec | speculators |
    |---|---|---|---|
    | architecture or kind | DFlashDraftModel | Qwen3DSparkModel | dflash, dspark |
    | a slot predicts | its own position | the next | the next with sample_from_anchor |
    | target layers | target_layer_ids, outputs of layers | likewise, -1 the embeddings | hidden states' numbers |
    | a window's slots | causal unless is_causal or causal is false | full | unless sliding_window_non_causal |

z-lab's keys lie in ``dflash_config`` or at the top.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec.errors import ModelError
from specdec.heads.block_head import BlockHead
from specdec.heads.config import BlockConfig
from specdec.heads.files import (
    FILES,
    TargetWeights,
    check_target,
    head_embeddings,
    layer_settings,
    load_tensors,
    read_config,
    read_tensors,
)
from specdec.heads.kinds import check_kind
from specdec.heads.settings import check_layers, check_settings, check_tensors, refuse, understood

REMEDY = "give the folder of a block drafter (DFlash or DSpark) that was trained for this model"
# Keys that are read here, where other heads refuse some of their values; those of z-lab in either of two places.
_OWN = "final_logit_softcapping", "input_embedding_scale", "is_causal", "output_multiplier"
KEYS = frozenset(
    {*_OWN, *(f"dflash_config.{key}" for key in _OWN), "layer_types", "transformer_layer_config.layer_types"}
)
_KINDS = {"DFlashDraftModel": "dflash", "Qwen3DSparkModel": "dspark"}
_WINDOW = "sliding_attention"


def read_block_head(folder: Path, target: TargetWeights, dtype: torch.dtype) -> BlockHead:
    """Read a block drafter from its folder, for a target, on the target's device.

    Raises:
        ModelError: the folder holds no such drafter, one that computes otherwise, or one of another target.
    """
    settings = read_config(folder, REMEDY)
    tensors = {_name(name): tensor for name, tensor in read_tensors(folder, FILES, REMEDY).items()}
    with understood(folder, REMEDY):
        check_kind(folder, settings, REMEDY, {"dflash", "dspark"}, tensors)
        check_settings(folder, settings, REMEDY, read=KEYS)
        check_tensors(folder, settings, tensors, REMEDY)
        config = _config_of(folder, settings, tensors, target)
        check_layers(folder, settings, config.layer_ids, REMEDY)
        check_target(folder, config.vocab_size, config.target_hidden_size, target, REMEDY)
        if not all(0 <= layer <= target.num_layers for layer in config.layer_ids):
            raise ModelError(
                f"the head in {folder} reads layers {list(config.layer_ids)}, and the target has {target.num_layers}: "
                f"{REMEDY}"
            )
        shape = config.vocab_size, config.hidden_size
        embeddings = head_embeddings(folder, tensors.pop("embed_tokens.weight", None), shape, target, REMEDY)
        own = tensors.pop("lm_head.weight", None)
        output = _output_of(folder, own, config, target).to(embeddings.device, dtype)
        head = BlockHead(config, embeddings, output, embeddings.device, dtype)
        if own is None:  # the target's own scale and soft cap aren't applied: the folder has those of the drafter
            head.logits_map = replace(head.logits_map, bias=target.output_bias())
    is_drafted = tensors.pop("t2d", None)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("confidence_head.")}
    load_tensors(folder, head, tensors, REMEDY, {"d2t"} if config.draft_vocab_size == config.vocab_size else ())
    _check_vocabulary(folder, head, is_drafted)
    return head.eval().requires_grad_(False)


def _check_vocabulary(folder: Path, head: BlockHead, is_drafted: torch.Tensor | None) -> None:
    ids = head.target_ids.sort().values
    if ids[0] < 0 or ids[-1] >= head.config.vocab_size:
        raise ModelError(f"the head in {folder} maps draft tokens beyond the vocabulary (d2t are offsets): {REMEDY}")
    if (ids.diff() == 0).any():
        raise ModelError(f"the head in {folder} maps two draft tokens to one of the target's (d2t): {REMEDY}")
    if is_drafted is not None and not is_drafted.nonzero().flatten().equal(ids.to(is_drafted.device)):
        raise ModelError(f"the head in {folder} has other tokens in t2d than in d2t: {REMEDY}")


def _name(name: str) -> str:
    return name.removeprefix("model.").removeprefix("logit_head.")


def _kind_of(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return "dflash" or "dspark"; raises ModelError for another kind."""
    named = [str(name) for name in settings.get("architectures") or ()]
    kind = settings.get("speculators_model_type") or next((_KINDS[name] for name in named if name in _KINDS), None)
    if kind not in _KINDS.values():
        found = kind or (named and named[0]) or "no kind"
        raise ModelError(f"{folder} has {found} where DFlash's and DSpark's folders are read: {REMEDY}")
    return str(kind)


def _config_of(
    folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], target: TargetWeights
) -> BlockConfig:
    kind, layer = _kind_of(folder, settings), settings.get("transformer_layer_config", settings)
    is_speculators = "speculators_model_type" in settings
    own = {**settings, **(settings.get("dflash_config") or {})}
    hidden, joined = tensors["fc.weight"].shape
    target_hidden = settings.get("target_hidden_size") or hidden
    ids = _layer_ids(own, is_speculators, layer["num_hidden_layers"], target.num_layers)
    if len(ids) * target_hidden != joined:
        raise ValueError(f"{len(ids)} layers of {target_hidden} numbers, and fc reads {joined}")
    rank = int(own.get("markov_rank") or 0)
    types = _layer_types(own, layer)
    first = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in tensors.items()}
    markov: Any = str(own.get("markov_head_type") or "vanilla").lower() if rank else None
    return BlockConfig(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        **layer_settings(layer, first),
        draft_vocab_size=settings.get("draft_vocab_size") or layer["vocab_size"],
        layer_ids=ids,
        num_layers=layer["num_hidden_layers"],
        block_size=own["block_size"],
        mask_token_id=own["mask_token_id"],
        predicts_next=_predicts_next(folder, settings, kind),
        is_causal=_causal(own, types),
        windows=tuple(_window(own, layer) if each == _WINDOW else None for each in types),
        has_anchors_window=is_speculators,
        markov=markov,
        markov_rank=rank,
        embedding_scale=own.get("input_embedding_scale")
        or (1.0 if "embed_tokens.weight" in tensors else target.embeddings_scale()),
        logits_scale=own.get("output_multiplier") or 1.0,
        softcap=own.get("final_logit_softcapping") or None,
    )


def _layer_ids(
    own: Mapping[str, Any], is_speculators: bool, num_layers: int, num_target_layers: int
) -> tuple[int, ...]:
    """Return the numbers of the target's hidden states; z-lab's default is spread from the second layer's output."""
    if is_speculators:
        return tuple(own["aux_hidden_state_layer_ids"])
    if (ids := own.get("target_layer_ids")) is not None:
        return tuple(number + 1 for number in ids)
    count = own.get("num_target_layers") or num_target_layers
    if num_layers == 1:
        return (count // 2 + 1,)
    return tuple(round(1 + number * (count - 4) / (num_layers - 1)) + 1 for number in range(num_layers))


def _predicts_next(folder: Path, settings: Mapping[str, Any], kind: str) -> bool:
    """Return whether slots predict the next token; z-lab's and DeepSpec's kinds have one way each."""
    said = settings.get("sample_from_anchor")
    if "speculators_model_type" not in settings:
        if said not in (None, kind == "dspark"):
            refuse(folder, "sample_from_anchor", said, REMEDY)
        return kind == "dspark"
    return bool(settings["sample_from_anchor"] if kind == "dspark" else said)


def _layer_types(own: Mapping[str, Any], layer: Mapping[str, Any]) -> list[str]:
    """Return each layer's type; ``use_swa`` is of all, unless some of the types are windows."""
    types = list(layer.get("layer_types") or ["full_attention"] * layer["num_hidden_layers"])
    if len(types) != layer["num_hidden_layers"] or not {*types} <= {"full_attention", _WINDOW}:
        raise ValueError(f"layer_types {types}")
    if _WINDOW in types and not (own.get("swa_window_size") or layer.get("sliding_window")):
        raise ValueError(f"layer_types {types} without the size of a window")
    return [_WINDOW] * len(types) if own.get("use_swa") and _WINDOW not in types else types


def _causal(own: Mapping[str, Any], types: list[str]) -> tuple[bool, ...]:
    """Return by layer whether it is causal inside a block, as vLLM decides it."""
    if own.get("sliding_window_non_causal"):
        return (False,) * len(types)
    for key in ("is_causal", "causal"):
        if own.get(key) is not None:
            return (bool(own[key]),) * len(types)
    declared = own.get("transformer_layer_config", own).get("layer_types") or ()
    return tuple(each == _WINDOW for each in declared) or (False,) * len(types)


def _window(own: Mapping[str, Any], layer: Mapping[str, Any]) -> int:
    size: int = own.get("swa_window_size") or layer["sliding_window"]
    return size


def _output_of(folder: Path, own: torch.Tensor | None, config: BlockConfig, target: TargetWeights) -> torch.Tensor:
    """Return the output matrix, the head's own or the target's."""
    output = target.output() if own is None else own
    needed = config.draft_vocab_size, config.hidden_size
    if tuple(output.shape) != needed:
        raise ModelError(
            f"the head in {folder} has an output matrix of shape {tuple(output.shape)} (needed: {needed}): {REMEDY}"
        )
    return output
