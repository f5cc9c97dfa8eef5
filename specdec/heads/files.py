"""The files of a head's folder: its configuration and tensors; nothing in a file is executed."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from specdec.errors import ModelError, memory_ran_out
from specdec.heads.kinds import check_kind
from specdec.heads.logits_map import LogitsMap
from specdec.heads.settings import check_settings, understood

# Files of tensors, by pattern; those of the first pattern that has any are read.
FILES = "*.safetensors", "pytorch_model*.bin"
_MOST_NAMES = 3  # in an error


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """The weights that a head shares with its target.

    Attributes:
        embeddings: (vocab, hidden), the input embeddings.
        output: returns the output matrix, (vocab, hidden), for heads without one of their own.
        num_layers: number of the target's layers.
        logits_map: returns the target's map from products with that matrix to its logits.
        output_bias: returns the bias of that matrix, (vocab,), None if there is none.
        embeddings_scale: returns what the target's own module multiplies the embeddings with.
    """

    embeddings: torch.Tensor
    output: Callable[[], torch.Tensor]
    num_layers: int
    logits_map: Callable[[], LogitsMap] = LogitsMap
    output_bias: Callable[[], torch.Tensor | None] = lambda: None
    embeddings_scale: Callable[[], float] = lambda: 1.0


def read_config(folder: Path, remedy: str) -> dict[str, Any]:
    """Return the settings of a folder's ``config.json``.

    Raises:
        ModelError: it can't be read; with the remedy.
    """
    _check_exists(folder, remedy)
    try:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable config.json ({error}): {remedy}") from error
    return settings


def write_folder(folder: Path, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> None:
    """Write a head's tensors, numbers with a fraction in bfloat16, and its configuration.

    Args:
        folder: created if it doesn't exist.
        tensors: by the names in the file.
        settings: of ``config.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        name: tensor.detach().cpu().to(torch.bfloat16 if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def check_folder(
    folder: Path, remedy: str, strategies: Collection[str], has_norms: bool = True, read: Collection[str] = ()
) -> None:
    """Refuse a folder without a readable ``config.json`` or any tensors, as reading the head would, but at once.

    ``strategies`` are as for ``check_kind``, ``has_norms`` and ``read`` as for ``check_settings``.

    Raises:
        ModelError: with the remedy.
    """
    settings = read_config(folder, remedy)
    with understood(folder, remedy):
        check_kind(folder, settings, remedy, strategies)
        files = files_of_tensors(folder, FILES, remedy)
        check_kind(folder, settings, remedy, strategies, _names_in(files))
        check_settings(folder, settings, remedy, has_norms, read)


def _names_in(files: Sequence[Path]) -> list[str]:
    """Return the names of the tensors in safetensors files; a damaged one is left to the reader."""
    names = list[str]()
    for file in files:
        with suppress(SafetensorError, OSError), safe_open(file, framework="pt") as opened:
            names += opened.keys()
    return names


def files_of_tensors(folder: Path, patterns: Sequence[str], remedy: str) -> list[Path]:
    """Return a folder's files of the first pattern that has any.

    Raises:
        ModelError: there are none; with the remedy.
    """
    _check_exists(folder, remedy)
    files = next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])
    if not files:
        raise ModelError(f"{folder} has neither model.safetensors nor {patterns[-1].replace('*', '')}: {remedy}")
    return files


def _check_exists(folder: Path, remedy: str) -> None:
    if not folder.is_dir():
        raise ModelError(f"there is no folder {folder}: {remedy}")


def read_tensors(folder: Path, patterns: Sequence[str], remedy: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder's files, on the CPU.

    Args:
        folder: the head's.
        patterns: of files, as safetensors or as pickles of plain tensors; see ``files_of_tensors``.
        remedy: of the errors.

    Raises:
        ModelError: there are none, or they hold something else than tensors.
    """
    tensors = dict[str, torch.Tensor]()
    for file in files_of_tensors(folder, patterns, remedy):
        try:
            loaded = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
        except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
            if said := memory_ran_out(error):
                raise ModelError(f"{file} can't be read: {said}") from error
            reason = str(error).partition(". ")[0]  # torch's has three more sentences
            raise ModelError(
                f"{file} is damaged or no file of tensors ({reason}): copy the head's folder again"
            ) from error
        except Exception as error:  # whatever a malicious pickle brings up; torch advises to load it unsafely
            raise ModelError(f"{file} holds something other than tensors: {remedy}") from error
        if not isinstance(loaded, dict) or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
        ):
            raise ModelError(f"{file} holds something other than tensors: {remedy}")
        tensors |= loaded
    return tensors


def layer_settings(settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the fields of a ``PairHeadConfig`` that describe the layer; sizes that a file may lack are the tensors'.

    Args:
        settings: of a ``LlamaConfig``.
        tensors: by the official names.
    """
    num_heads = settings["num_attention_heads"]
    rope = dict(settings.get("rope_parameters") or settings.get("rope_scaling") or {})
    kind = rope.setdefault("rope_type", rope.get("type", "default"))  # "type" is the older spelling
    if kind == "mrope":  # of images: a text's three positions are equal
        rope["rope_type"] = "default"
    return {
        "intermediate_size": len(tensors["midlayer.mlp.gate_proj.weight"]),
        "num_attention_heads": num_heads,
        "num_key_value_heads": settings.get("num_key_value_heads", num_heads),
        "head_dim": len(tensors["midlayer.self_attn.q_proj.weight"]) // num_heads,
        "vocab_size": settings["vocab_size"],
        "rms_norm_eps": settings.get("rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_theta": settings.get("rope_theta", 10000.0), **rope},
        "max_position_embeddings": settings.get("max_position_embeddings", 2048),
        "qkv_bias": "midlayer.self_attn.q_proj.bias" in tensors,
        "o_bias": "midlayer.self_attn.o_proj.bias" in tensors,
        "qk_norm": "midlayer.self_attn.q_norm.weight" in tensors,
    }


def check_target(folder: Path, vocab_size: int, hidden_size: int, target: TargetWeights, remedy: str) -> None:
    """Refuse a head that was trained for a target of other sizes.

    Raises:
        ModelError: with what was found and needed.
    """
    vocab, hidden = target.embeddings.shape
    found = {"vocabulary": (vocab_size, vocab), "hidden size": (hidden_size, hidden)}
    differs = [f"{name} {own} (the target has {needed})" for name, (own, needed) in found.items() if own != needed]
    if differs:
        raise ModelError(f"the head in {folder} was trained for another model, of {', '.join(differs)}: {remedy}")


def head_embeddings(
    folder: Path, own: torch.Tensor | None, needed: tuple[int, int], target: TargetWeights, remedy: str
) -> torch.Tensor:
    """Return a head's own embeddings, or the target's if it has none, on the target's device.

    Raises:
        ModelError: its own ones have another shape than is needed.
    """
    if own is None:
        return target.embeddings
    if own.shape != needed:
        raise ModelError(
            f"the head in {folder} has embeddings of shape {tuple(own.shape)} (needed: {needed}): {remedy}"
        )
    return own.to(target.embeddings.device)


def first_of(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def load_tensors(
    folder: Path,
    module: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    remedy: str,
    optional: Collection[str] = (),
) -> None:
    """Load tensors into a module; ``optional`` are those that may be missing.

    Raises:
        ModelError: tensors are missing, unknown, or of other shapes.
    """
    expected = module.state_dict()
    missing = sorted(expected.keys() - tensors.keys() - set(optional))
    extra = sorted(tensors.keys() - expected.keys())
    if missing or extra:
        raise ModelError(
            f"the head in {folder} lacks {first_of(missing) or 'nothing'}; unknown tensors: "
            f"{first_of(extra) or 'none'}; {remedy}"
        )
    wrong = [
        f"{name} {tuple(tensors[name].shape)} (needed: {tuple(each.shape)})"
        for name, each in expected.items()
        if name in tensors and tensors[name].shape != each.shape
    ]
    if wrong:
        raise ModelError(f"the head in {folder} has tensors of other shapes: {first_of(wrong)}: {remedy}")
    module.load_state_dict(dict(tensors), strict=False)
