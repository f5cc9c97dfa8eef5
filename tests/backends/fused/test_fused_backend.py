"""Fused layers: whose layers they can be, that passes are the model's own, and that mistakes in them are found."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch

from specdec import Generator, ModelError
from specdec.backends.fused import backend as module
from specdec.backends.fused.backend import FusedBackend
from specdec.backends.fused.layer import LayerKernels
from specdec.backends.fused.parts import Heads, LinearWeights, Norm, Slots
from specdec.backends.static import StaticBackend
from specdec.masks.dense import DenseCompiler
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.target import Target
from specdec.testing import check_backend
from specdec.tree import DraftTree
from tests.laws.test_backend_laws import plain_of
from tests.support import families, fused_kernels
from tests.support.examined import examined, examined_target

SMALL = families.SMALL
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (
        "GraniteConfig",
        {**SMALL, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
         "attention_multiplier": 0.4},
    ),
    "smollm3": ("SmolLM3Config", {**SMALL, "no_rope_layers": [1, 0], "layer_types": ["full_attention"] * 2}),
    "phi3-part": ("Phi3Config", {**SMALL, "sliding_window": None, "partial_rotary_factor": 0.5}),
}  # fmt: skip
FUSED = {
    **{
        name: families.TREES[name]
        for name in ("llama", "mistral-window", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2")
    },
    **MORE,
}


class OnCpu(FusedBackend):
    """Fused layers by torch."""

    made: LayerKernels = fused_kernels

    @classmethod
    def _serves(cls, device: torch.device) -> bool:
        return True

    @classmethod
    def _kernels(cls) -> LayerKernels:
        return cls.made


def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random model whose norms and biases matter."""
    model = families.make(*FUSED[name])
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    families.scale_to_unit_spread(model)
    return model.to(dtype)


def loaded(name: str, dtype: torch.dtype = torch.float32) -> Any:
    return examined(OnCpu.load(model_of(name, dtype), SlotTableCompiler()))


def dtypes() -> Iterator[Any]:
    """Yield each family in float32, and in bfloat16 by day those whose layers differ most."""
    for name in FUSED:
        yield name, torch.float32
        marks = [] if name in {"llama", "gemma3", "granite"} else [pytest.mark.nightly]
        yield pytest.param(name, torch.bfloat16, marks=marks)


@pytest.mark.parametrize(("name", "dtype"), [*dtypes()])
def test_the_self_test_finds_the_models_own_logits(name: str, dtype: torch.dtype) -> None:
    target = examined_target(OnCpu.load(model_of(name, dtype), SlotTableCompiler()))
    assert target.backend.shapes.takes_trees
    assert not target.examination.reason
    if dtype == torch.bfloat16:  # float32's attention by torch has bits of its own for a single node
        assert not target.examination.inexact


@pytest.mark.parametrize("name", ["llama", "gemma3", "granite"])
def test_a_backend_keeps_its_laws_with_them(name: str) -> None:
    backend = loaded(name)
    check_backend(backend, plain_of(backend.model), backend.compiler, 1e-4, seed=3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt2", "GPT2Block has no self_attn"),
        ("mixtral", "MixtralSparseMoeBlock has a gate"),
        ("starcoder2", "Starcoder2MLP has a c_fc"),
        ("cohere2", "Cohere2LayerNorm is not an RMSNorm"),
    ],
)
def test_other_layers_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"can't be fused: .*{reason}; use backend='static'"):
        OnCpu.load(families.make(*families.TREES[name]), SlotTableCompiler())


class Adapted(torch.nn.Module):
    """A linear layer with an adapter of rank one."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.base = linear
        self.down, self.up = torch.nn.Linear(self.in_features, 1), torch.nn.Linear(1, self.out_features)

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", ["llama", "granite", "olmo2", "phi3-part"])
def test_linear_layers_of_other_kinds_multiply_by_themselves(name: str) -> None:
    torch.manual_seed(0)
    model = model_of(name)
    for layer in model.model.layers:
        for parent, child in (("self_attn", "v_proj"), ("self_attn", "qkv_proj"), ("self_attn", "o_proj"),
                              ("mlp", "up_proj"), ("mlp", "down_proj")):  # fmt: skip
            if linear := getattr(module := getattr(layer, parent), child, None):
                setattr(module, child, Adapted(linear).eval())
    model.lm_head = Adapted(model.lm_head).eval()
    backend = examined(OnCpu.load(model, SlotTableCompiler()))
    check_backend(backend, plain_of(model), backend.compiler, 1e-4, seed=1)


def test_altered_layers_are_refused() -> None:
    model = model_of("llama")
    model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj).eval()
    with pytest.raises(ModelError, match="a Sequential is not a linear layer"):
        OnCpu.load(model, SlotTableCompiler())
    phi = model_of("phi3-part")
    phi.model.layers[0].mlp.gate_up_proj = Adapted(phi.model.layers[0].mlp.gate_up_proj).eval()
    with pytest.raises(ModelError, match="its gate_up_proj has two matrices in one Adapted"):
        OnCpu.load(phi, SlotTableCompiler())
    with pytest.raises(ModelError, match="need masks of a fixed shape"):
        OnCpu.load(model_of("llama"), DenseCompiler())


def test_the_model_has_its_own_layers_between_passes() -> None:
    model = model_of("llama")
    before = [*model.modules()]
    backend = examined(OnCpu.load(model, SlotTableCompiler()))
    check_backend(backend, plain_of(model), backend.compiler, 1e-4, seed=1)
    assert [*model.modules()] == before
    with suppress(ZeroDivisionError), backend.in_model():
        assert [*model.modules()] != before
        raise ZeroDivisionError
    assert [*model.modules()] == before


def test_changed_weights_and_layers_are_seen_by_the_next_request() -> None:
    model = model_of("llama")
    backend = examined(OnCpu.load(model, SlotTableCompiler()))
    check_backend(backend, plain_of(model), backend.compiler, 1e-4, seed=1)
    layers = model.model.layers
    layers[0].mlp.down_proj.weight = torch.nn.Parameter(-layers[0].mlp.down_proj.weight.detach())  # in place
    layers[1].self_attn.q_proj = torch.nn.Linear(32, 32, bias=False)  # another module
    check_backend(backend, plain_of(model), backend.compiler, 1e-4, seed=1)
    layers[1].mlp = deepcopy(layers[0].mlp)  # another parent
    check_backend(backend, plain_of(model), backend.compiler, 1e-4, seed=1)


def test_hidden_states_are_those_of_the_layers_that_run() -> None:
    model = model_of("llama")
    backend = examined(OnCpu.load(model, SlotTableCompiler()))
    target = Target(backend, backend.compiler)

    def states() -> torch.Tensor:
        row = target.open(16)
        output = target.forward(target.compile({row: DraftTree(5)}, hidden=(1, 2))).rows[row]
        target.release(row)
        return output.hidden([0], (1, 2)).clone()

    fused = states()
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    torch.testing.assert_close(states(), fused)
    handle.remove()
    torch.testing.assert_close(states(), fused)


class Mistaken:
    """The kernels by torch, one of them with a mistake."""

    def __init__(self, **mistaken: Callable[..., None]) -> None:
        self._mistaken = mistaken

    def __getattr__(self, name: str) -> Any:
        return self._mistaken.get(name) or getattr(fused_kernels, name)


def another_row(qkv: torch.Tensor, heads: Heads, angles: Any, to: Slots, query: torch.Tensor) -> None:
    """The last node's keys and values go to the slot before its own."""
    slots = to.slots.clone()
    slots[:, -1] -= int(slots.shape[1] > 1)
    fused_kernels.place(qkv, heads, angles, Slots(to.rows, slots, to.keys, to.values), query)


def half_rotated(qkv: torch.Tensor, heads: Heads, angles: Any, to: Slots, query: torch.Tensor) -> None:
    cos, sin = (each.clone() for each in angles)
    cos[:, -1], sin[:, -1] = 1.0, 0.0
    fused_kernels.place(qkv, heads, (cos, sin), to, query)


def added_twice(
    x: torch.Tensor, matrix: LinearWeights, residual: torch.Tensor, out: torch.Tensor, factor: float = 1.0
) -> None:
    fused_kernels.add_product(x, matrix, residual * 2, out, factor)


def without_offset(x: torch.Tensor, by: Norm, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    fused_kernels.norm(x, Norm(by.weight, by.eps * 100), out, residual)


def swapped(x: torch.Tensor, gate: LinearWeights, up: LinearWeights, activation: Any, out: torch.Tensor) -> None:
    fused_kernels.gated_product(x, up, gate, activation, out)


def without_bias(x: torch.Tensor, matrices: Sequence[LinearWeights], out: torch.Tensor) -> None:
    fused_kernels.products(x, [LinearWeights(each.weight) for each in matrices], out)


@pytest.mark.usefixtures("no_findings")
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("llama", {"place": another_row}),
        ("llama", {"place": half_rotated}),
        ("llama", {"add_product": added_twice}),
        ("gemma3", {"norm": without_offset}),
        ("llama", {"gated_product": swapped}),
        ("qwen2", {"products": without_bias}),
    ],
    ids=lambda each: each if isinstance(each, str) else next(iter(each.values())).__name__,
)
def test_the_self_test_finds_mistakes_in_a_kernel(
    name: str, mistake: dict[str, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnCpu, "made", Mistaken(**mistake))
    with pytest.raises(ModelError, match="the static backend has no chains of varying length"):
        loaded(name)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models on the CPU be driven as those on a GPU are."""
    monkeypatch.setattr(FusedBackend, "_serves", lambda _: True)
    monkeypatch.setattr(FusedBackend, "_kernels", lambda _: fused_kernels)
    for backend in (FusedBackend, StaticBackend):
        monkeypatch.setattr(backend, "accepts", lambda model: isinstance(model, torch.nn.Module))


def generator_of(model: Any, proposer: str = "autoregressive", backend: str = "auto") -> Generator:
    return Generator(model, backend=backend, mask="slot_table", weights="stock", proposer=proposer)


def text_of(generator: Generator) -> tuple[int, ...]:
    return generator.generate([1, 2, 3, 1, 2, 3], max_new_tokens=24, temperature=0.8, seed=3).token_ids


def test_a_cpu_has_none_of_it() -> None:
    with pytest.raises(ModelError, match="needs Triton and a GPU"):
        Generator(model_of("llama"), backend="fused")


@pytest.mark.usefixtures("on_cpu")
def test_texts_with_drafts_are_plain_decodings() -> None:
    model = model_of("llama")
    proposers = ("autoregressive", "prompt_lookup", "auto", "lookahead:N=3,W=3,G=3")
    assert len({text_of(generator_of(model, proposer, "fused")) for proposer in proposers}) == 1


class Slow(Mistaken):
    """Kernels with one that takes its time."""

    def __getattr__(self, name: str) -> Any:
        time.sleep(1e-3 * (name == "place"))
        return super().__getattr__(name)


def broken(*_: Any) -> None:
    raise RuntimeError("PTX assembly aborted due to errors")


@pytest.mark.usefixtures("on_cpu", "no_findings")
@pytest.mark.parametrize(
    ("name", "kernels", "note"),
    [
        ("llama", fused_kernels, ""),
        ("llama", Slow(), r"static; not with fused: a prompt and 64 steps take \d+ ms, \d+ ms otherwise"),
        ("llama", Mistaken(place=broken), "static; not with fused: .*PTX assembly aborted"),
        ("gpt2", fused_kernels, "static; not with fused: the layers of GPT2LMHeadModel .* can't be fused"),
    ],
)
def test_the_models_own_layers_run_where_fused_ones_fail_or_are_slower(
    name: str, kernels: Any, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FusedBackend, "_kernels", lambda _: kernels)
    if kernels is fused_kernels:
        monkeypatch.setattr(module, "_seconds_of_passes", lambda each: 1.0 - isinstance(each, FusedBackend))
    generator = generator_of(families.make(*families.TREES[name]))
    found = generator.generate([1, 2, 3], max_new_tokens=4)
    assert [*filter(partial(re.search, note), found.notes)] if note else not found.notes
    used = generator._binding.target.backend
    assert type(used) is (StaticBackend if note else FusedBackend)
