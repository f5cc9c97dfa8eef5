"""Reads the parts of a decoder layer by the names of its attributes; unknown ones are refused."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.nn import functional

from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Matrix, ModuleProduct, Norm
from specdec.errors import ModelError

_KNOWN = {
    "": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
         "post_feedforward_layernorm"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"},
    "mlp": {"gate_proj", "up_proj", "gate_up_proj", "down_proj", "act_fn", "activation_fn"},
}  # fmt: skip
_PLAIN: tuple[type, ...] = (torch.nn.Parameter,)  # types of weights that kernels may read
_LLAMAS = "post_attention_layernorm"  # whose name says what it follows, and which is what the MLP reads
_ACTIVATIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Activation.GELU: functional.gelu,
}


class LayerReader:
    """Reads the parts of one layer. Matrices are read anew in each pass, the forms of norms and activations once.

    Attributes:
        layer: of transformers.
        number: among the model's layers.
        act: the MLP's activation, as the model computes it.
        activation: the same, known by what it computes.
        multiplying_modules: the modules that multiply by themselves.
        residual_factor: of what attention and the MLP add.
        is_rotated: False for layers without positions.

    Raises:
        ModelError: if the layer has parts of other names or kinds.
    """

    def __init__(self, layer: torch.nn.Module, number: int) -> None:
        self.layer, self.number = layer, number
        self._attention, self._mlp = _child(layer, "self_attn"), _child(layer, "mlp")
        for name, module in (("", layer), ("self_attn", self._attention), ("mlp", self._mlp)):
            _refuse_unknown(module, _KNOWN[name])
        self._norms: dict[str, NormReader] = {}
        self._size = int(self._attention.head_dim)
        self.act, self.activation = _activation_of(self._mlp)
        self.residual_factor = float(getattr(layer, "residual_multiplier", 1.0))
        self.is_rotated = bool(getattr(self._attention, "use_rope", True))
        self.scaling = float(self._attention.scaling)
        self.softcap = getattr(self._attention, "attn_logit_softcapping", None)
        _, after, _, after_mlp = self.norms()
        if self.residual_factor != 1.0 and (after or after_mlp):
            raise ModelError("its residual factor beside norms of what is added")
        matrices = [*self.inputs(), self.output(), *self.mlp()]
        self.multiplying_modules = [each.module for each in matrices if isinstance(each, ModuleProduct)]
        self._num_heads = self.output().num_inputs // self._size
        num_all = sum(matrix.num_outputs for matrix in self.inputs()) // self._size
        self._num_groups = (num_all - self._num_heads) // 2
        self.heads()

    @property
    def sinks(self) -> torch.Tensor | None:
        return getattr(self._attention, "sinks", None)

    def norms(self) -> tuple[Norm | None, Norm | None, Norm | None, Norm | None]:
        """Return the norms before attention, after it, before the MLP and after it."""
        has_both = hasattr(self.layer, "post_feedforward_layernorm")
        after, before_mlp = ("post_attention_layernorm", "pre_feedforward_layernorm") if has_both else ("", _LLAMAS)
        return (
            self._norm(self.layer, "input_layernorm"),
            self._norm(self.layer, after),
            self._norm(self.layer, before_mlp),
            self._norm(self.layer, "post_feedforward_layernorm"),
        )

    def inputs(self) -> list[Matrix]:
        """Return the matrices whose outputs, side by side, are queries, keys and values."""
        if hasattr(self._attention, "qkv_proj"):
            return [matrix_of(self._attention.qkv_proj)]
        return _alike([matrix_of(getattr(self._attention, name)) for name in ("q_proj", "k_proj", "v_proj")])

    def output(self) -> Matrix:
        """Return the matrix of attention's output."""
        return matrix_of(self._attention.o_proj)

    def mlp(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return the matrices of the gate, of what it multiplies, and of the output."""
        down = matrix_of(self._mlp.down_proj)
        if not hasattr(self._mlp, "gate_up_proj"):
            gate, up = _alike([matrix_of(self._mlp.gate_proj), matrix_of(self._mlp.up_proj)])
            return gate, up, down
        both = matrix_of(self._mlp.gate_up_proj)
        if isinstance(both, ModuleProduct):
            raise ModelError(f"its gate_up_proj has two matrices in one {type(both.module).__name__}")
        biases = (None, None) if both.bias is None else both.bias.chunk(2)
        gate, up = (LinearWeights(*parts) for parts in zip(both.weight.chunk(2), biases, strict=True))
        return gate, up, down

    def heads(self) -> Heads:
        """Return the numbers of heads, and norms of single heads."""
        q_norm, k_norm = (None, None) if self.wide_norms() else self._head_norms()
        return Heads(self._num_heads, self._num_groups, self._size, q_norm, k_norm)

    def wide_norms(self) -> tuple[Norm, ...]:
        """Return the norms of all queries and of all keys, if they are normed together."""
        q_norm, k_norm = self._head_norms()
        if q_norm is None or k_norm is None or len(q_norm.weight) == self._size:
            return ()
        return q_norm, k_norm

    def _head_norms(self) -> tuple[Norm | None, Norm | None]:
        q_norm, k_norm = self._norm(self._attention, "q_norm"), self._norm(self._attention, "k_norm")
        if (q_norm is None) != (k_norm is None) or (q_norm and k_norm and q_norm.eps != k_norm.eps):
            raise ModelError("its queries and keys are normed in different ways")
        return q_norm, k_norm

    def _norm(self, parent: torch.nn.Module, name: str) -> Norm | None:
        module = getattr(parent, name, None) if name else None
        if module is None:
            return None
        if name not in self._norms:
            self._norms[name] = NormReader(module)
        return self._norms[name].read()


class NormReader:
    """Reads an RMSNorm: its weight anew in each pass, its form once.

    Raises:
        ModelError: if the module is something else.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module: Any = module
        self._eps = float(getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or 0.0)
        if not isinstance(getattr(module, "weight", None), torch.Tensor) or not self._eps or list(module.children()):
            raise ModelError(f"a {type(module).__name__} is not an RMSNorm")
        self._form = _form_of(self._module, self._eps)

    def read(self) -> Norm:
        return Norm(self._module.weight, self._eps, *self._form)


def _child(module: torch.nn.Module, name: str) -> Any:
    child = getattr(module, name, None)
    if not isinstance(child, torch.nn.Module):
        raise ModelError(f"its {type(module).__name__} has no {name}")
    return child


def _refuse_unknown(module: torch.nn.Module, known: set[str]) -> None:
    """Refuse a module with other children or weights of its own; dropout is off."""
    if module.training:
        raise ModelError(f"its {type(module).__name__} is in training mode")
    for name, child in module.named_children():
        if name not in known and not isinstance(child, torch.nn.Dropout | torch.nn.Identity):
            raise ModelError(f"its {type(module).__name__} has a {name}")
    for name, _ in module.named_parameters(recurse=False):
        if name != "sinks":
            raise ModelError(f"its {type(module).__name__} has a weight {name}")


def matrix_of(linear: torch.nn.Module) -> Matrix:
    """Return a plain linear layer's matrix, or another one's product.

    Raises:
        ModelError: for modules that aren't linear layers.
    """
    weight: Any = getattr(linear, "weight", None)
    if type(linear) is torch.nn.Linear and type(weight) in _PLAIN and weight.stride(1) == 1:
        return LinearWeights(weight, linear.bias)
    sizes = getattr(linear, "in_features", None), getattr(linear, "out_features", None)
    if not all(isinstance(size, int) for size in sizes):
        raise ModelError(f"a {type(linear).__name__} is not a linear layer")
    return ModuleProduct(linear, *sizes)  # type: ignore[arg-type]  # tested above


def _alike(matrices: list[Matrix]) -> list[Matrix]:
    kinds = {(each.bias is None, each.weight.stride(0)) for each in matrices if isinstance(each, LinearWeights)}
    if len(kinds) > 1:
        raise ModelError("its matrices of the same inputs differ in kind")
    return matrices


def _activation_of(mlp: Any) -> tuple[Any, Activation]:
    """Return the activation of an MLP, and its kind by what it computes."""
    act = getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", None)
    weight = next(chain(mlp.parameters(), mlp.buffers()))
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    x = torch.linspace(-4, 4, 129, device=weight.device, dtype=dtype)
    for kind, function in _ACTIVATIONS.items():
        if act is not None and torch.equal(act(x), function(x)):
            return act, kind
    raise ModelError(f"its activation {type(act).__name__} is none of {', '.join(each.name for each in Activation)}")


@torch.no_grad()
def _form_of(module: Any, eps: float) -> tuple[float, bool]:
    """Return the offset of an RMSNorm's weight, and whether it is multiplied before rounding, as far as can be seen."""
    weight = module.weight
    x = torch.linspace(-1, 1, len(weight) * 8, device=weight.device).view(8, -1).sin().mul(3).to(weight.dtype)
    expected = module(x).float()

    def error(offset: float, is_late: bool) -> float:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        by = weight.float() + offset
        made = scaled * by if is_late else (scaled.to(x.dtype).float() * by)
        return float((made.to(x.dtype).float() - expected).abs().sum())

    forms = [(0.0, False), (0.0, True), (1.0, True), (1.0, False)]
    best = min(forms, key=lambda form: error(*form))
    if not error(*best) <= 4 * torch.finfo(x.dtype).eps * float(expected.abs().sum()):
        raise ModelError(f"a {type(module).__name__} is not an RMSNorm")
    return best
