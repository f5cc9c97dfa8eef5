"""The layers of a model that are plain matrix products, and the groups of them that receive the same rows."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.nn.modules import module as modules_of_torch

from specdec.models.weights.tensor import PackedWeight

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_LEAST_BYTES = 2  # per number in a plain matrix


@dataclass(frozen=True, slots=True)
class ProductLayer:
    """A layer that only multiplies by its weight.

    Attributes:
        name: the layer's name in the model.
        is_looked_up: the weight is shared with another kind of layer, such as an embedding.
        is_transposed: the weight is ``(inputs, outputs)``.
    """

    name: str
    module: torch.nn.Module
    is_looked_up: bool
    is_transposed: bool

    @property
    def weight(self) -> torch.nn.Parameter:
        """The parameter, which may be packed."""
        return self.module.weight  # type: ignore[return-value]  # transformers is untyped here

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias, if any."""
        return self.module.bias  # type: ignore[return-value]  # torch's modules have anything

    @property
    def matrix(self) -> torch.Tensor:
        """The weight as an ordinary tensor, ``(outputs, inputs)``."""
        weight = self.weight
        dense = weight.unpacked() if isinstance(weight, PackedWeight) else weight.detach()
        return dense.T if self.is_transposed else dense


def is_quantised(module: torch.nn.Module) -> bool:
    """Return True for a linear layer without a plain matrix: with short numbers, several tensors or a tensor class."""
    is_linear = isinstance(module, torch.nn.Linear) or (
        hasattr(module, "in_features") and not any(True for _ in module.children())  # adapters have layers inside
    )
    weight: Any = getattr(module, "weight", None)
    is_one = type(weight) in {torch.nn.Parameter, PackedWeight} or is_sharded_tensor(weight)
    return is_linear and not (is_one and weight.is_floating_point() and weight.element_size() >= _LEAST_BYTES)


def is_sharded_tensor(tensor: object) -> TypeGuard["DTensor"]:
    """Return True for a ``DTensor``, a tensor that is sharded over processes.

    Its module, which takes half a second to import, isn't imported: if it wasn't imported before, no tensor is one.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_sharded(model: torch.nn.Module) -> bool:
    """Return True for a model whose matrices are sharded over processes."""
    return any(map(is_sharded_tensor, model.parameters()))


def is_hooked_part(module: torch.nn.Module) -> bool:
    """Return True for a layer of a joined matrix that has hooks, which may write to the rows.

    In inference mode torch doesn't record writes, so a change of the rows after the joined product isn't detected.
    """
    weight = getattr(module, "weight", None)
    is_part = isinstance(weight, PackedWeight) and weight.matrix.is_part
    return is_part and bool(module._forward_pre_hooks or module._forward_hooks)


def rounds_rows(module: torch.nn.Module) -> bool:
    """Return True for a linear layer that may round its input: quantised, or packed by a lossy kernel."""
    weight = getattr(module, "weight", None)
    kernel = weight.matrix.kernel if isinstance(weight, PackedWeight) else None
    return is_quantised(module) or (kernel is not None and bool(kernel.lossy))


def product_layers(model: torch.nn.Module) -> Iterator[ProductLayer]:
    """Yield the product layers with floating-point weights, one for each weight."""
    from transformers.pytorch_utils import Conv1D

    plain = {torch.nn.Linear.forward, Conv1D.forward}
    found: dict[int, tuple[str, torch.nn.Module]] = {}
    looked_up: set[int] = set()
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            is_product = type(module).forward in plain and "forward" not in vars(module)
            is_plain = not is_quantised(module) and parameter.is_floating_point()
            if is_product and is_plain and parameter is module.weight:
                found.setdefault(id(parameter), (name, module))
            elif parameter.dim() > 1:
                looked_up.add(id(parameter))
    for key, (name, module) in found.items():
        yield ProductLayer(name, module, key in looked_up, isinstance(module, Conv1D))


@torch.inference_mode()
def given_the_same_rows(model: torch.nn.Module, layers: Sequence[ProductLayer]) -> list[list[ProductLayer]]:
    """Return the groups of layers that receive the same tensor in a pass, in the order of calls; runs one token.

    A layer isn't in a group if it isn't called exactly once, if its rows change before the group's last call, or if
    there is a hook between it and the others, which may write to the rows in some passes.
    """
    hooked = {name for name, module in model.named_modules() if _is_hooked(module)}
    calls = _calls(model, layers)
    num_calls = Counter(layer.name for _, _, layer in calls)
    groups: dict[int, list[tuple[torch.Tensor, ProductLayer]]] = {}
    for rows, copied, layer in calls:
        groups.setdefault(id(rows), []).append((copied, layer))
    found = [[layer for _, layer in group] for group in groups.values() if len(group) > 1 and _are_unchanged(group)]
    return [
        group
        for group in found
        if all(num_calls[layer.name] == 1 for layer in group) and not hooked & _between([layer.name for layer in group])
    ]


def _are_unchanged(group: Sequence[tuple[torch.Tensor, ProductLayer]]) -> bool:
    """Return True if the rows were the same in each call."""
    return all(torch.equal(copied, group[0][0]) for copied, _ in group)


def _calls(
    model: torch.nn.Module, layers: Sequence[ProductLayer]
) -> list[tuple[torch.Tensor, torch.Tensor, ProductLayer]]:
    """Run a model for a token; return the rows that each layer was given, and a copy of them; nothing if it fails."""
    calls: list[tuple[torch.Tensor, torch.Tensor, ProductLayer]] = []
    of_module = {layer.module: layer for layer in layers}

    def watch(module: torch.nn.Module, given: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        (rows,) = given or named.values()
        calls.append((rows, rows.clone(), of_module[module]))

    handles = [layer.module.register_forward_pre_hook(watch, with_kwargs=True) for layer in layers]
    try:
        model(torch.ones(1, 1, dtype=torch.long, device=next(model.parameters()).device), use_cache=False)
    except Exception:  # third-party modelling code: who drives the model finds out what is wrong with it
        return []
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _is_hooked(module: torch.nn.Module) -> bool:
    everywhere = modules_of_torch._global_forward_pre_hooks or modules_of_torch._global_forward_hooks
    return bool(everywhere or module._forward_pre_hooks or module._forward_hooks)


def _between(names: Sequence[str]) -> set[str]:
    """Return the names of some layers, and of the modules that contain some of them but not all."""
    around = [set(accumulate(name.split("."), "{}.{}".format)) for name in names]
    return around[0].union(*around) - around[0].intersection(*around)
