"""A packed weight is the dense matrix to everybody: each operation beside the same on an ordinary parameter."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from specdec.errors import ModelError
from specdec.models.weights.layers import product_layers
from specdec.models.weights.onednn import OneDNNKernel
from specdec.models.weights.packing import pack, packed_weights, unpack

pytestmark = pytest.mark.skipif(
    bool(OneDNNKernel().why_not(torch.float32, torch.device("cpu"))), reason="oneDNN doesn't serve here"
)


class Layers(torch.nn.Module):
    """Layers with and without bias, a transposed one, and one whose weight is an embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(12, 16)
        self.first = torch.nn.Linear(16, 24)
        self.second = torch.nn.Linear(16, 24)
        self.third = Conv1D(16, 24)
        self.head = torch.nn.Linear(16, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids)
        return self.head(self.third(self.first(rows) * self.second(rows)))


class Counted(OneDNNKernel):
    """oneDNN's kernel, and how often it multiplied."""

    def __init__(self) -> None:
        self.count = 0

    def multiply(self, rows, packed, bias):  # type: ignore[no-untyped-def]  # as the contract has it
        self.count += 1
        return super().multiply(rows, packed, bias)


IDS = torch.tensor([[1, 5, 7]])
NAMES = ["first", "second", "third", "head"]


@pytest.fixture
def dense() -> Layers:
    torch.manual_seed(0)
    return Layers().eval()


def packed_like(dense: Layers, joins: bool = False) -> tuple[Layers, Counted]:
    model, kernel = copy.deepcopy(dense), Counted()
    layers = {layer.name: layer for layer in product_layers(model)}
    groups = [[layers[name]] for name in NAMES]
    pack(kernel, [[*groups[0], *groups[1]], *groups[2:]] if joins else groups)
    return model, kernel


def test_every_product_goes_to_the_kernel_and_layers_keep_class_and_parameters(dense: Layers) -> None:
    model = copy.deepcopy(dense)
    parameters, classes = dict(model.named_parameters()), {name: type(module) for name, module in model.named_modules()}
    kernel = Counted()
    pack(kernel, [[layer] for layer in product_layers(model)])
    assert len(packed_weights(model)) == 4
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.requires_grad
    assert {name: type(module) for name, module in model.named_modules()} == classes
    with torch.inference_mode():
        torch.testing.assert_close(model(IDS), dense(IDS))
    assert kernel.count == 4
    assert model.head.weight is model.embedding.weight


@pytest.mark.parametrize("name", NAMES)
def test_the_weight_reads_as_the_dense_one(dense: Layers, name: str) -> None:
    model, _ = packed_like(dense)
    weight, expected = getattr(model, name).weight, getattr(dense, name).weight
    assert (weight.shape, weight.dtype, weight.device, weight.numel()) == (
        expected.shape, expected.dtype, expected.device, expected.numel(),
    )  # fmt: skip
    assert torch.equal(weight, expected)
    assert torch.equal(weight[2:4, 1], expected[2:4, 1])
    assert torch.equal(weight.T @ weight, expected.T @ expected)
    assert (weight.detach().numpy() == expected.detach().numpy()).all()
    assert weight.tolist() == expected.tolist()
    assert repr(weight) == f"PackedWeight of\n{expected.detach()!r}"


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda weight: weight.mul_(2.0),
    "an entry": lambda weight: weight.__setitem__((1, 2), 5.0),
    "rows by number": lambda weight: weight.__setitem__(torch.tensor([0, 2]), 0.0),
    "copied": lambda weight: weight.copy_(torch.ones(weight.shape)),
    "data, in place": lambda weight: setattr(weight, "data", weight.data.add_(1.0)),
    "data, an entry": lambda weight: weight.data.__setitem__(0, 3.0),
    "detached": lambda weight: weight.detach().zero_(),
    "initialised": lambda weight: torch.nn.init.constant_(weight, 0.1),
    "a shallow copy": lambda weight: copy.copy(weight).mul_(3.0),
    "several at once": lambda weight: torch._foreach_mul_([torch.ones(2), weight], 2.0),
    "out": lambda weight: torch.neg(torch.ones(weight.shape), out=weight),
}
REAL: dict[str, Callable[[torch.Tensor], object]] = {
    "a view": lambda weight: weight[1:3].fill_(4.0),
    "a transpose": lambda weight: weight.T[0].zero_(),
    "flattened": lambda weight: weight.view(-1)[3:9].fill_(1.0),
    "by its memory": lambda weight: weight.detach().numpy().fill(0.5),
    "data, replaced": lambda weight: setattr(weight, "data", torch.full(weight.shape, 0.25)),
    "another parameter's data": lambda weight: setattr(torch.nn.Parameter(weight.detach() + 0.0), "data", weight.data),
    "by dlpack": lambda weight: torch.from_dlpack(weight.detach()).fill_(0.25),
    "once it is dense": lambda weight: (weight.view(-1), weight.mul_(2.0)),
    "several at once, dense": lambda weight: (weight.view(-1), torch._foreach_add_([weight, torch.ones(1)], 1.0)),
    "an entry, dense": lambda weight: (weight.view(-1), weight.__setitem__((1, 2), 5.0)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", REFUSED.values(), ids=[*REFUSED])
@pytest.mark.parametrize("joins", [False, True])
def test_a_write_is_refused_and_changes_nothing(
    dense: Layers, name: str, write: Callable[[torch.Tensor], object], joins: bool
) -> None:
    model, _ = packed_like(dense, joins)
    with torch.no_grad():
        before = model(IDS)
        with pytest.raises(ModelError, match=r"generator\.close\(\).*weights='stock'"):
            write(getattr(model, name).weight)
        assert torch.equal(getattr(model, name).weight, getattr(dense, name).weight)
        assert torch.equal(model(IDS), before)
        assert len(packed_weights(model)) == 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", REAL.values(), ids=[*REAL])
@pytest.mark.parametrize("joins", [False, True])
def test_what_is_written_through_a_view_or_by_address_is_multiplied(
    dense: Layers, name: str, write: Callable[[torch.Tensor], object], joins: bool
) -> None:
    model, _ = packed_like(dense, joins)
    with torch.no_grad():
        write(getattr(model, name).weight)
        write(getattr(dense, name).weight)
        assert torch.equal(getattr(model, name).weight, getattr(dense, name).weight)
        torch.testing.assert_close(model(IDS), dense(IDS))


def test_reading_packs_nothing_again(dense: Layers) -> None:
    model, _ = packed_like(dense)
    weight = model.first.weight
    packed = weight.matrix._joined
    with torch.no_grad():
        average = torch.zeros(24, 16).lerp_(weight, 0.5).add_(weight)
    assert torch.equal(average, dense.first.weight * 0.5 + dense.first.weight)
    assert weight.matrix._joined is packed


def test_joined_products_are_made_anew_once_rows_are_written(dense: Layers) -> None:
    model, _ = packed_like(dense, joins=True)
    rows = torch.randn(2, 16)
    with torch.no_grad():
        model.first(rows)
        rows.mul_(3.0)
        torch.testing.assert_close(model.second(rows), dense.second(rows))


def test_linear_by_name_and_replacing_by_the_parameters_class(dense: Layers) -> None:
    model, kernel = packed_like(dense)
    rows = torch.randn(2, 16)
    with torch.inference_mode():
        for found in (
            linear(rows, weight=model.first.weight),
            linear(input=rows, weight=model.first.weight, bias=None),
        ):
            torch.testing.assert_close(found, linear(rows, dense.first.weight))
    assert kernel.count == 2
    made = type(model.first.weight)(torch.ones(2, 2), requires_grad=False)
    assert type(made) is torch.nn.Parameter
    assert not made.requires_grad


@pytest.mark.parametrize("joins", [False, True])
def test_a_saved_state_dict_is_the_dense_models(dense: Layers, joins: bool) -> None:
    model, _ = packed_like(dense, joins)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    for name, tensor in torch.load(file).items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, dense.state_dict()[name])


@pytest.mark.parametrize("joins", [False, True])
def test_a_deep_copy_is_an_ordinary_model(dense: Layers, joins: bool) -> None:
    model, _ = packed_like(dense, joins)
    copied = copy.deepcopy(model)
    assert copied.head.weight is copied.embedding.weight
    assert {type(parameter) for parameter in copied.parameters()} == {torch.nn.Parameter}
    assert all(parameter.requires_grad for parameter in copied.parameters())
    with torch.no_grad():
        before = model(IDS)
        assert torch.equal(copied(IDS), dense(IDS))
        for parameter in copied.parameters():
            parameter.zero_()
        assert torch.equal(model(IDS), before)
        assert not copied(IDS).any()


def test_a_pickled_model_is_dense(dense: Layers) -> None:
    model, _ = packed_like(dense)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert {type(parameter) for parameter in loaded.parameters()} == {torch.nn.Parameter}
    assert loaded.head.weight is loaded.embedding.weight
    with torch.inference_mode():
        assert torch.equal(loaded(IDS), dense(IDS))


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("cast", [torch.nn.Module.double, torch.nn.Module.bfloat16, torch.nn.Module.float])
def test_a_cast_model_computes_in_its_new_dtype_and_stays_tied(
    dense: Layers, cast: Callable[[torch.nn.Module], torch.nn.Module], joins: bool
) -> None:
    model, _ = packed_like(dense, joins)
    cast(model)
    cast(dense)
    assert model.head.weight is model.embedding.weight
    assert [each.dtype for each in model.parameters()] == [each.dtype for each in dense.parameters()]
    with torch.inference_mode():
        torch.testing.assert_close(
            model(IDS), dense(IDS), rtol=0.05, atol=0.02 if cast != torch.nn.Module.double else 1e-9
        )


@pytest.mark.parametrize("joins", [False, True])
def test_gradients_are_the_dense_models(dense: Layers, joins: bool) -> None:
    model, _ = packed_like(dense, joins)
    for each in (model, dense):
        each.train()(IDS).square().sum().backward()
    for (name, found), expected in zip(model.named_parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=lambda message, name=name: f"{name}: {message}")


def test_autocast_casts_as_it_does_elsewhere(dense: Layers) -> None:
    model, _ = packed_like(dense)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found, expected = model(IDS), dense(IDS)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


def test_unpacking_gives_the_same_parameters_with_the_same_bits(dense: Layers) -> None:
    model, _ = packed_like(dense, joins=True)
    parameters = dict(model.named_parameters())
    unpack(model)
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert type(parameter) is torch.nn.Parameter
        assert parameter.requires_grad
        assert parameter.is_contiguous()
        assert torch.equal(parameter, dict(dense.named_parameters())[name])


def test_joined_layers_multiply_once_and_only_for_the_very_same_rows(dense: Layers) -> None:
    model, kernel = packed_like(dense, joins=True)
    rows, others = torch.randn(2, 16), torch.randn(2, 16)
    with torch.inference_mode():
        first, second = model.first(rows), model.second(rows)
        assert kernel.count == 1
        for layer, given, found in ((dense.first, rows, first), (dense.second, rows, second)):
            torch.testing.assert_close(found, layer(given))
        torch.testing.assert_close(model.second(others), dense.second(others))
        torch.testing.assert_close(model.second(rows), dense.second(rows))
        torch.testing.assert_close(model.first(others), dense.first(others))
        torch.testing.assert_close(model.first(others), dense.first(others))


def test_a_bias_of_another_layer_is_added_as_given(dense: Layers) -> None:
    model, _ = packed_like(dense, joins=True)
    rows, bias = torch.randn(2, 16), torch.randn(24)
    with torch.inference_mode():
        found = linear(rows, model.second.weight, bias)
        torch.testing.assert_close(found, linear(rows, dense.second.weight, bias))


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (1, 1), (2, 3), (1, 5)])
def test_rows_are_padded_to_a_multiple(dense: Layers, joins: bool, shape: tuple[int, ...]) -> None:
    model, counts = copy.deepcopy(dense), list[int]()

    class Noting(OneDNNKernel):
        def multiply(self, rows, packed, bias):  # type: ignore[no-untyped-def]  # as the contract has it
            counts.append(rows.numel() // rows.shape[-1])
            return super().multiply(rows, packed, bias)

    layers = {layer.name: layer for layer in product_layers(model)}
    groups = [["first", "second"], ["third"]] if joins else [["first"], ["second"], ["third"]]
    multiples = {(48, 16): 4, (24, 16): 4, (16, 24): 2}
    together = [[layers[name] for name in group] for group in groups]
    pack(Noting(), together, lambda _, matrix: multiples[tuple(matrix.shape)])
    rows, wide = torch.randn(*shape, 16), torch.randn(*shape, 24)
    with torch.inference_mode():
        torch.testing.assert_close(model.first(rows), dense.first(rows))
        torch.testing.assert_close(model.second(rows), dense.second(rows))
        torch.testing.assert_close(model.third(wide), dense.third(wide))
    count = rows.numel() // 16
    assert counts == [-(-count // 4) * 4] * (1 if joins else 2) + [-(-count // 2) * 2]
