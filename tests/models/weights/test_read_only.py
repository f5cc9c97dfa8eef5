"""Every operator that writes, by torch's own list of schemas: on a packed weight it raises, or is as on a plain one."""

import copy
from typing import Any

import pytest
import torch

from specdec.errors import ModelError
from specdec.models.weights.base import Kernel
from specdec.models.weights.layers import product_layers
from specdec.models.weights.onednn import OneDNNKernel
from specdec.models.weights.packing import pack

pytestmark = pytest.mark.skipif(
    bool(OneDNNKernel().why_not(torch.float32, torch.device("cpu"))), reason="oneDNN doesn't serve here"
)

SIZE = 8  # square, so that products and solves of two weights are defined
ALL_SCHEMAS = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
WRITES = [
    schema
    for schema in ALL_SCHEMAS
    if any(
        argument.alias_info is not None and argument.alias_info.is_write and "Tensor" in str(argument.type)
        for argument in schema.arguments
    )
]


class Pair(torch.nn.Module):
    """Two layers whose weights may be packed as one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(SIZE, SIZE, bias=False)
        self.second = torch.nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.first(rows) + self.second(rows)


def pair(joins: bool, kernel: Kernel | None = None) -> tuple[Pair, Pair]:
    """A packed model, and its stock twin."""
    torch.manual_seed(0)
    stock = Pair().eval()
    packed = copy.deepcopy(stock)
    layers = list(product_layers(packed))
    pack(kernel or OneDNNKernel(), [layers] if joins else [[layer] for layer in layers])
    return packed, stock


def arguments(schema: Any, weights: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]] | None:
    """A value for each argument of an operator that writes to ``weights``; None where a type isn't known."""
    args, kwargs = list[Any](), dict[str, Any]()
    for argument in schema.arguments:
        takes_weight = argument.alias_info is not None and argument.alias_info.is_write
        kind, value = str(argument.type), None
        if kind == "Tensor":
            value = weights[0] if takes_weight else torch.full((SIZE, SIZE), 0.5)
        elif kind in {"List[Tensor]", "List[Optional[Tensor]]"}:
            value = [*weights] if takes_weight else [torch.full((SIZE, SIZE), 0.5) for _ in weights]
        elif argument.has_default_value():
            continue
        elif kind == "Optional[Tensor]":
            value = None
        elif kind in {"int", "number", "float", "Scalar", "SymInt"} or kind == "bool":
            value = {"bool": False, "float": 0.5, "number": 2}.get(kind, 1)
        elif kind.startswith("List["):
            value = [1] * (argument.N or 1) if "int" in kind.lower() else [0.5]
        elif kind.startswith("Optional["):
            value = None
        elif kind == "str":
            value = "none"
        else:
            return None
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def overload(schema: Any) -> Any:
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
    return getattr(packet, schema.overload_name or "default")


def outcomes(schemas: list[Any], joins: bool) -> dict[str, list[str]]:
    """The operators by what became of them: ``raised``, ``right``, or ``uncalled`` with these arguments."""
    found: dict[str, list[str]] = {"raised": [], "right": [], "uncalled": []}
    packed, stock = pair(joins)
    for schema in schemas:
        name = f"{schema.name}.{schema.overload_name}"
        before = [weight.detach().clone() for weight in stock.parameters()]
        with torch.no_grad():
            outcome = _try(schema, packed, stock)
            expected = [*stock.parameters()] if outcome == "right" else before
            for weight, reference in zip(packed.parameters(), expected, strict=True):
                assert torch.equal(weight, reference), f"{name} was lost, or changed a weight that it refused"
        found[outcome].append(name)
        if outcome == "right":
            packed, stock = pair(joins)
    rows = torch.ones(1, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(packed(rows), stock(rows))
    return found


def _try(schema: Any, packed: Pair, stock: Pair) -> str:
    given, same = (arguments(schema, list(model.parameters())) for model in (packed, stock))
    if given is None or same is None:
        return "uncalled"
    try:
        torch.manual_seed(1)
        overload(schema)(*given[0], **given[1])
    except ModelError:
        return "raised"
    except Exception:  # arguments of another shape or kind: torch refuses them before it writes
        return "uncalled"
    torch.manual_seed(1)
    overload(schema)(*same[0], **same[1])
    return "right"


def test_every_operator_that_writes_raises_or_is_right() -> None:
    found = outcomes(WRITES, joins=False)
    print({outcome: len(names) for outcome, names in found.items()})
    assert len(found["raised"]) > 1000
    # Those that torch refuses with these arguments are few, and none is an optimizer's.
    assert len(found["uncalled"]) < 0.12 * len(WRITES)
    assert not [name for name in found["uncalled"] if "_foreach_" in name or "_fused_" in name]


def test_joined_weights_are_read_only_too() -> None:
    schemas = [schema for schema in WRITES if "_foreach_" in schema.name or schema.name.endswith("_")]
    found = outcomes(schemas, joins=True)
    assert len(found["raised"]) > 300


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}], ids=["for-loop", "foreach", "fused"])
def test_an_optimizer_step_is_refused_whole(optimizer: type[torch.optim.Optimizer], how: dict[str, bool]) -> None:
    packed, stock = pair(joins=True)
    if "fused" in how and optimizer is torch.optim.RMSprop:
        pytest.skip("torch has no fused RMSprop")
    stepper: Any = optimizer
    steps = stepper(packed.parameters(), lr=0.1, **how)
    packed(torch.ones(1, SIZE)).square().sum().backward()
    with pytest.raises(ModelError, match=r"read-only.*generator\.close\(\)"):
        steps.step()
    for weight, expected in zip(packed.parameters(), stock.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_load_state_dict_and_averages_are_refused() -> None:
    packed, stock = pair(joins=False)
    with pytest.raises(RuntimeError, match=r"generator\.close\(\)"):  # torch's, which quotes ours
        packed.load_state_dict(Pair().state_dict())
    with torch.no_grad(), pytest.raises(ModelError, match="read-only"):
        torch._foreach_lerp_(list(packed.parameters()), list(Pair().parameters()), 0.5)
    with torch.no_grad(), pytest.raises(ModelError, match="read-only"):
        torch.add(torch.ones(SIZE, SIZE), 1.0, out=packed.first.weight)
    averaged = torch.optim.swa_utils.AveragedModel(packed)  # a deep copy, which is an ordinary model
    averaged.update_parameters(stock)
    for weight, expected in zip(averaged.module.parameters(), stock.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_a_tensor_that_takes_a_packed_weights_memory_shares_it() -> None:
    packed, stock = pair(joins=True)
    for model in (packed, stock):
        other = torch.empty(0)
        other.set_(model.first.weight.detach())
        other.mul_(2.0)
    assert torch.equal(packed.first.weight, stock.first.weight)
