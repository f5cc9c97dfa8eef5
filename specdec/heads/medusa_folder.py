"""Folders of Medusa's heads.

Two layouts are read, as safetensors or as ``.pt`` and ``.bin`` files of plain tensors:

- the official one: ``{h}.{l}.linear.weight`` and ``.bias`` of block l of head h, and ``{h}.{num_layers}.weight``, the
  head's output matrix;
- vLLM's: ``blocks.{h}.layers.{l}.weight`` and ``.bias``, ``lm_heads.{h}.weight`` or one ``lm_head.weight`` for all
  heads, and ``token_map``, the target's ids of a reduced draft vocabulary.

Without output matrices, all heads share the target's. Heads and blocks are counted from the tensors: published
configurations say two heads where there are five. Nothing else is needed from them, but another activation and
quantised tensors are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specdec.errors import ModelError
from specdec.heads.files import (
    TargetWeights,
    check_target,
    files_of_tensors,
    first_of,
    read_config,
    read_tensors,
)
from specdec.heads.kinds import check_kind
from specdec.heads.logits_map import LogitsMap
from specdec.heads.medusa import MedusaWeights, ResBlock
from specdec.heads.settings import check_settings, understood

_REMEDY = "give the folder of Medusa heads that were trained for this model"
# Others that a head's configuration has are of its target, or of attention, which these heads haven't.
_CHECKED = "hidden_act", "hidden_activation", "quantization_config", "compression_config"
_FILES = "*.safetensors", "pytorch_model*.bin", "medusa_lm_head.pt"
_PREFIX = re.compile(r"(model\.)?(medusa_heads?\.)?")
_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)|blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_OUTPUT = re.compile(r"(\d+)\.\d+\.weight|lm_heads\.(\d+)\.weight")

Tensors = Mapping[str, torch.Tensor]


@dataclass(slots=True)
class _Parts:
    """The tensors of a folder by their place.

    Attributes:
        blocks: by head, block, and ``weight`` or ``bias``.
        outputs: output matrices by head.
        shared: the output matrix of all heads.
        token_map: the target's ids of a reduced vocabulary.
        unknown: names of all other tensors.
    """

    blocks: dict[tuple[int, int, str], torch.Tensor] = field(default_factory=dict)
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    shared: torch.Tensor | None = None
    token_map: torch.Tensor | None = None
    unknown: list[str] = field(default_factory=list)

    @property
    def num_heads(self) -> int:
        return len({head for head, _, _ in self.blocks})

    @property
    def num_blocks(self) -> int:
        """Of each head."""
        return len({block for _, block, _ in self.blocks})


def check_medusa_heads(folder: Path) -> None:
    """Refuse a folder without files of tensors, or with settings of other heads.

    Raises:
        ModelError: with the remedy.
    """
    settings = {}
    if (folder / "config.json").is_file():
        settings = read_config(folder, _REMEDY)
    with understood(folder, _REMEDY):
        check_kind(folder, settings, _REMEDY, {"medusa"})
        check_settings(folder, {key: settings[key] for key in _CHECKED if key in settings}, _REMEDY)
    files_of_tensors(folder, _FILES, _REMEDY)


def read_medusa_heads(folder: Path, target: TargetWeights, dtype: torch.dtype) -> MedusaWeights:
    """Read heads from their folder, for a target, on the target's device.

    Raises:
        ModelError: the folder holds no Medusa heads, or those of another target; with what was found and needed.
    """
    check_medusa_heads(folder)
    tensors = read_tensors(folder, _FILES, _REMEDY)
    check_kind(folder, {}, _REMEDY, {"medusa"}, tensors)
    parts = _parts_of(tensors)
    _check_names(folder, parts)
    _check_blocks(folder, parts, target)
    target_ids = _target_ids(folder, parts, target)
    outputs = _outputs(folder, parts, target_ids, target)
    device = target.embeddings.device
    placed = {place: tensor.to(device, dtype) for place, tensor in parts.blocks.items()}
    blocks = [
        [
            ResBlock(placed[head, block, "weight"], placed.get((head, block, "bias")))
            for block in range(parts.num_blocks)
        ]
        for head in range(parts.num_heads)
    ]
    is_shared = not parts.outputs and parts.shared is None
    return MedusaWeights(
        blocks,
        [output.to(device, dtype) for output in outputs],
        target_ids.to(device),
        target.logits_map().of_tokens(target_ids) if is_shared else LogitsMap(),
    )


def _parts_of(tensors: Tensors) -> _Parts:
    parts = _Parts()
    for full_name, tensor in tensors.items():
        name = _PREFIX.sub("", full_name, count=1)
        if match := _BLOCK.fullmatch(name):
            head, block, kind = (group for group in match.groups() if group is not None)
            parts.blocks[int(head), int(block), kind] = tensor
        elif match := _OUTPUT.fullmatch(name):
            parts.outputs[int(match[1] or match[2])] = tensor
        elif name == "lm_head.weight":
            parts.shared = tensor
        elif name == "token_map":
            parts.token_map = tensor
        else:
            parts.unknown.append(full_name)
    if parts.outputs.keys() == {0} and parts.num_heads > 1:  # vLLM's name of a shared one, too
        parts.shared = parts.outputs.pop(0)
    return parts


def _check_names(folder: Path, parts: _Parts) -> None:
    heads, blocks = range(max(1, parts.num_heads)), range(max(1, parts.num_blocks))
    weights = {(head, block, "weight"): f"{head}.{block}.linear.weight" for head in heads for block in blocks}
    missing = [name for place, name in weights.items() if place not in parts.blocks]
    if parts.outputs:
        missing += [f"{head}.{len(blocks)}.weight" for head in heads if head not in parts.outputs]
    extra = [f"{head}.{len(blocks)}.weight" for head in parts.outputs if head not in heads] + parts.unknown
    if missing or extra:
        raise ModelError(
            f"the Medusa heads in {folder} lack {first_of(missing) or 'nothing'}; unknown tensors: "
            f"{first_of(extra) or 'none'}; {_REMEDY}"
        )


def _check_blocks(folder: Path, parts: _Parts, target: TargetWeights) -> None:
    """Refuse blocks of another hidden size than the target's, or of different sizes."""
    vocab, hidden = target.embeddings.shape
    sizes = [size for tensor in parts.blocks.values() for size in tensor.shape]
    check_target(folder, vocab, next((size for size in sizes if size != hidden), hidden), target, _REMEDY)
    wrong = [
        f"{head}.{block}.linear.{kind} {tuple(tensor.shape)}"
        for (head, block, kind), tensor in parts.blocks.items()
        if tensor.dim() != (1 if kind == "bias" else 2)
    ]
    if wrong:
        raise ModelError(f"the Medusa heads in {folder} have tensors of other shapes: {first_of(wrong)}: {_REMEDY}")


def _target_ids(folder: Path, parts: _Parts, target: TargetWeights) -> torch.Tensor:
    """Return the target's ids of the draft vocabulary."""
    vocab = len(target.embeddings)
    ids = parts.token_map
    if ids is None:
        return torch.arange(vocab)
    is_valid = ids.dim() == 1 and len(ids) > 0 and not ids.is_floating_point() and len({*ids.tolist()}) == len(ids)
    if not is_valid or ids.min() < 0 or ids.max() >= vocab:
        raise ModelError(
            f"the Medusa heads in {folder} have a token_map that isn't a list of different ids below {vocab}: {_REMEDY}"
        )
    return ids.long()


def _outputs(folder: Path, parts: _Parts, target_ids: torch.Tensor, target: TargetWeights) -> list[torch.Tensor]:
    """Return the output matrices over the draft vocabulary: one for each head, or a single one."""
    vocab, hidden = target.embeddings.shape
    if parts.outputs:
        found = [parts.outputs[head] for head in range(parts.num_heads)]
    else:
        found = [target.output()[target_ids.to(target.embeddings.device)] if parts.shared is None else parts.shared]
    for output in found:
        if output.dim() != 2 or output.shape[1] != hidden or len(output) not in (len(target_ids), vocab):
            raise ModelError(
                f"the Medusa heads in {folder} have an output matrix of shape {tuple(output.shape)} (needed: "
                f"{(len(target_ids), hidden)}): {_REMEDY}"
            )
    return [output if len(output) == len(target_ids) else output[target_ids.to(output.device)] for output in found]
