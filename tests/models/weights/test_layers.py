"""Layers that are plain products, and groups of them that are given the same rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec import Generator
from specdec.models.weights.layers import given_the_same_rows, product_layers
from specdec.models.weights.onednn import OneDNNKernel
from specdec.models.weights.packing import pack
from tests.support import families
from tests.support.plain import decode_model


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", [{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}]),
        ("gpt2", []),
        ("opt", [{"q_proj", "k_proj", "v_proj"}]),
    ],
)
def test_groups_of_a_family(family: str, expected: list[set[str]]) -> None:
    model = families.make(*families.TREES[family])
    layers = [layer for layer in product_layers(model) if not layer.is_transposed]
    groups = given_the_same_rows(model, layers)
    num_layers = model.config.num_hidden_layers
    assert [{layer.name.rpartition(".")[2] for layer in group} for group in groups] == expected * num_layers
    for group in groups:
        assert len({layer.name.rpartition(".")[0] for layer in group}) == 1


class Model(torch.nn.Module):
    """Two layers, called in some way."""

    device = torch.device("cpu")

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.call = call

    def forward(self, ids: torch.Tensor, use_cache: bool) -> Any:
        return self.call(SimpleNamespace(first=self.first, second=self.second), torch.ones(1, 4))


@pytest.mark.parametrize(
    ("call", "is_group"),
    [
        (lambda m, x: m.first(x) + m.second(x), True),
        (lambda m, x: m.second(m.first(x)), False),
        (lambda m, x: m.first(x) + m.second(x.clone()), False),
        (lambda m, x: m.first(x) + m.second(x.add_(1.0)), False),
        (lambda m, x: m.first(x) + m.second(x) + m.first(x), False),
        (lambda m, x: m.first(x), False),
        (lambda m, x: m.missing(x), False),
    ],
    ids=["same", "one behind the other", "a copy", "written between", "called twice", "not called", "raises"],
)
def test_the_same_rows_are_the_very_same_and_unchanged(call: Any, is_group: bool) -> None:
    model = Model(call)
    groups = given_the_same_rows(model, list(product_layers(model)))  # type: ignore[arg-type]  # it has what is needed
    assert [[layer.name for layer in group] for group in groups] == ([["first", "second"]] if is_group else [])
    assert not model.first._forward_pre_hooks


def clamp_several(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    """Write to the rows, but not in a pass of one token, as the pass is that groups are found by."""
    (rows,) = given
    if rows.shape[1] > 1:
        rows.clamp_(-0.1, 0.1)


class Wrapper(torch.nn.Module):
    """A layer within another, as adapters wrap it."""

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.base_layer = base

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.base_layer(rows)


def hooked(where: str) -> tuple[Any, Any]:
    """Return a Llama with a hook somewhere in its last attention, and the hook's handle."""
    model = families.make(*families.TREES["llama"])
    attention = model.model.layers[-1].self_attn
    if where == "wrapper":
        attention.k_proj = Wrapper(attention.k_proj)
        return model, attention.k_proj.register_forward_pre_hook(clamp_several)
    if where == "everywhere":
        hook = lambda module, given: clamp_several(module, given) if module is attention.k_proj else None  # noqa: E731
        return model, torch.nn.modules.module.register_module_forward_pre_hook(hook)
    if where == "behind the first":
        return model, attention.q_proj.register_forward_hook(lambda module, given, _: clamp_several(module, given))
    return model, getattr(attention, where).register_forward_pre_hook(clamp_several)


HOOKED = ["q_proj", "k_proj", "v_proj", "wrapper", "everywhere", "behind the first"]


@pytest.mark.parametrize("where", HOOKED)
def test_layers_with_a_hook_between_them_are_no_group(where: str) -> None:
    model, handle = hooked(where)
    try:
        groups = given_the_same_rows(model, list(product_layers(model)))
    finally:
        handle.remove()
    num_layers = model.config.num_hidden_layers
    expected = 0 if where == "everywhere" else 2 * num_layers - 1
    assert len(groups) == expected
    assert not any(
        "k_proj" in layer.name and f"layers.{num_layers - 1}." in layer.name for group in groups for layer in group
    )


@pytest.mark.parametrize("where", HOOKED)
def test_packed_layers_with_a_hook_between_them_compute_what_stock_ones_do(where: str) -> None:
    model, handle = hooked(where)
    ids = torch.tensor([[5, 9, 3, 7]])
    try:
        with torch.inference_mode():
            expected = model(ids).logits
        layers = [layer for layer in product_layers(model) if not layer.is_looked_up]
        joined = given_the_same_rows(model, layers)
        pack(OneDNNKernel(), [*joined, *([layer] for layer in layers if not any(layer in group for group in joined))])
        with torch.inference_mode():
            found = model(ids).logits
    finally:
        handle.remove()
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def clamp(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    given[0].clamp_(-0.1, 0.1)


@pytest.mark.parametrize("where", ["q_proj", "k_proj", "v_proj"])
def test_a_hook_that_comes_after_packing_is_seen_at_the_next_call(where: str) -> None:
    model, stock = (families.make(*families.TREES["llama"]) for _ in range(2))
    stock.load_state_dict(model.state_dict())
    getattr(stock.model.layers[-1].self_attn, where).register_forward_pre_hook(clamp)
    with Generator(model, weights="packed", proposer="autoregressive") as generator:
        generator.generate([5, 9, 3, 7], max_new_tokens=12, eos_token_id=())
        getattr(model.model.layers[-1].self_attn, where).register_forward_pre_hook(clamp)
        found = generator.generate([5, 9, 3, 7], max_new_tokens=12, eos_token_id=()).token_ids
    assert list(found) == decode_model(stock, [5, 9, 3, 7], 12, None, eos=())


def test_a_hook_around_all_of_them_stands_between_none() -> None:
    model = families.make(*families.TREES["llama"])
    attention = model.model.layers[-1].self_attn
    attention.register_forward_pre_hook(lambda *_: None)
    assert len(given_the_same_rows(model, list(product_layers(model)))) == 2 * model.config.num_hidden_layers


def test_what_is_no_plain_product_is_left_out() -> None:
    class Router(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows).softmax(-1)

    class Named(torch.nn.Linear):
        pass

    patched = torch.nn.Linear(4, 4)
    patched.forward = lambda rows: rows  # type: ignore[method-assign]  # as hooks of offloading do
    model = torch.nn.ModuleDict(
        {"router": Router(4, 4), "named": Named(4, 4), "patched": patched, "plain": torch.nn.Linear(4, 4)}
    )
    assert [layer.name for layer in product_layers(model)] == ["named", "plain"]
    shared = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(4, 4), "head": torch.nn.Linear(4, 4)})
    shared["head"].weight = shared["embedding"].weight
    assert [(layer.name, layer.is_looked_up) for layer in product_layers(shared)] == [("head", True)]
