"""A model's input embeddings and output rows, for strategies that compute with them, such as trained heads.

torch models have them in modules. For a model that another engine runs they are mapped into memory from the safetensors
files of its folder, so only the rows that are read take memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.errors import ModelError, in_one_line
from specdec.models.weights.tensor import PackedWeight


def embeddings_of(model: object) -> torch.Tensor:
    """Return the input embeddings, ``(vocab, hidden)``, as stored, without a model's own scaling. Read-only.

    Args:
        model: a transformers model, or an object with its ``config`` and the ``folder`` that it was read from.

    Raises:
        ModelError: if there are none, or they are quantised.
    """
    return _matrix_of(model, "get_input_embeddings")


def embeddings_scale_of(model: Any) -> float:
    """Return what a model's own module multiplies its embeddings with, as Gemma 3's does; see ``embeddings_of``."""
    whole: Any = model if isinstance(model, torch.nn.Module) else empty_model(model.config)
    module = whole.get_input_embeddings()
    return float(getattr(module, "scalar_embed_scale", None) or getattr(module, "embed_scale", None) or 1.0)


def output_rows_of(model: object, ids: Sequence[int]) -> torch.Tensor:
    """Return the output matrix's rows for some tokens, ``(tokens, hidden)``, without bias; see ``embeddings_of``."""
    weight = _matrix_of(model, "get_output_embeddings")
    return weight[torch.tensor(ids, dtype=torch.long, device=weight.device)]


def output_bias_of(model: Any) -> torch.Tensor | None:
    """Return the output matrix's bias, ``(vocab,)``, or None if it has none; see ``embeddings_of``."""
    if isinstance(model, torch.nn.Module):
        bias = getattr(getattr(model, "get_output_embeddings", lambda: None)(), "bias", None)
        return None if bias is None else bias.detach()
    empty = empty_model(model.config)
    head = empty.get_output_embeddings()
    if getattr(head, "bias", None) is None:
        return None
    name = next(name for name, module in empty.named_modules() if module is head)
    files = _Files(Path(model.folder), tuple(head.bias.shape))
    return files.read(files.key_of(f"{name}.bias", besides=""))


def _matrix_of(model: object, getter: str) -> torch.Tensor:
    if not isinstance(model, torch.nn.Module):
        return _stored(model, getter)
    found = getattr(model, getter, lambda: None)()
    weight = getattr(found, "weight", None)
    if isinstance(weight, PackedWeight):
        return weight.unpacked()
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.dim() != 2:
        kind = "embeddings" if getter == "get_input_embeddings" else "output matrix"
        raise ModelError(
            f"{type(model).__name__} has no {kind} of floating-point numbers: load it without quantisation"
        )
    return weight.detach()


def _stored(model: Any, getter: str) -> torch.Tensor:
    """Return a matrix of a checkpoint's folder, mapped into memory."""
    folder, config = getattr(model, "folder", None), getattr(model, "config", None)
    if folder is None or config is None:
        raise ModelError(f"{type(model).__name__} has no embeddings: give a transformers model, or the folder of one")
    embedding, head = _described(config)
    files = _Files(Path(folder), embedding.shape)
    key = files.key_of(embedding.name, besides="")
    if getter == "get_output_embeddings" and head is not None:
        key = files.key_of(head.name, besides=key)
    return files.read(key)


@dataclass(frozen=True, slots=True)
class _Matrix:
    name: str
    shape: tuple[int, ...]


def empty_model(config: Any) -> Any:
    """Return a model of a configuration, without weights, on the meta device.

    Raises:
        ModelError: it can't be built.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:  # modelling code
        raise ModelError(f"can't build the model to find the names of its tensors: {in_one_line(error)}") from error


def _described(config: Any) -> tuple[_Matrix, _Matrix | None]:
    """Return a model's embeddings and its output matrix; None for an output matrix tied to the embeddings."""
    model = empty_model(config)
    names = {module: name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    described = [_Matrix(f"{names[each]}.weight", tuple(each.weight.shape)) for each in (embedding, head)]
    return described[0], None if head.weight is embedding.weight else described[1]


class _Files:
    """The matrices of one shape in a folder's safetensors files."""

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        from safetensors import safe_open

        self._folder, self._open, self._path_of = folder, safe_open, dict[str, Path]()
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                keys = [key for key in file.keys() if tuple(file.get_slice(key).get_shape()) == shape]  # noqa: SIM118
                self._path_of.update(dict.fromkeys(keys, path))

    def key_of(self, name: str, besides: str) -> str:
        """Return the key of a matrix in the files, which may lack the prefix of the module that contains the layers.

        A matrix that transformers has renamed is found if no other matrix except ``besides`` has its shape.
        """
        others = [key for key in self._path_of if key != besides]
        for keys in (
            [key for key in others if key == name],
            [key for key in others if name.endswith(f".{key}") or key.endswith(f".{name}")],
            others,
        ):
            if len(keys) == 1:
                return keys[0]
        raise ModelError(f"the files of {self._folder} have no tensor {name}: give the folder of a whole checkpoint")

    def read(self, key: str) -> torch.Tensor:
        """Return a matrix, mapped into memory."""
        with self._open(self._path_of[key], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(key)
        return tensor
