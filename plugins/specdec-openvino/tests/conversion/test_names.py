"""A conversion for each thing that a model computes besides its weights: scalings, hooks, code, adapters' choice."""

from collections.abc import Callable
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from specdec_openvino.conversion.names import name_of_model
from transformers import PreTrainedModel

from specdec import Generator

Change = Callable[[PreTrainedModel], object]


class Adapter(torch.nn.Module):
    """A linear layer with two low-rank adapters, one of them in use, as PEFT's are: no tensor says which."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.in_use, self.scaling, self.is_disabled = base, "one", {"one": 1.0, "two": 1.0}, False
        generator = torch.Generator().manual_seed(3)
        made = {name: torch.randn(2, base.in_features, generator=generator) for name in self.scaling}
        self.low = torch.nn.ParameterDict(made)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        plain: torch.Tensor = self.base(states)
        if self.is_disabled:
            return plain
        low = self.low[self.in_use]
        return plain + (states @ low.T @ low)[..., : plain.shape[-1]] * self.scaling[self.in_use]


@pytest.fixture
def model(families: ModuleType) -> PreTrainedModel:
    made: PreTrainedModel = families.make("LlamaConfig", {**families.SMALL, "num_key_value_heads": 4})
    for layer in made.model.layers:
        layer.self_attn.o_proj = Adapter(layer.self_attn.o_proj)
    return made.eval()


@pytest.fixture
def plain(families: ModuleType) -> PreTrainedModel:
    made: PreTrainedModel = families.make(*families.TREES["llama"])
    return made


def text_of(model: PreTrainedModel) -> list[int]:
    with Generator(model, backend="openvino", proposer="autoregressive", numerics="fast") as generator:
        return list(generator.generate([5, 9, 2], max_new_tokens=12, eos_token_id=()).token_ids)


def expected_of(model: PreTrainedModel) -> list[int]:
    prompt = torch.tensor([[5, 9, 2]])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, eos_token_id=-1)
    return list(written[0, 3:].tolist())


def adapters(model: PreTrainedModel, **attributes: Any) -> None:
    for layer in model.model.layers:
        vars(layer.self_attn.o_proj).update(attributes)


def test_adapters_that_are_chosen_scaled_and_switched_off(model: PreTrainedModel) -> None:
    texts = set()
    for chosen in ({}, {"in_use": "two"}, {"scaling": {"one": 1.0, "two": -3.0}}, {"is_disabled": True}):
        adapters(model, **chosen)
        assert text_of(model) == expected_of(model)
        texts.add(tuple(expected_of(model)))
    assert len(texts) == 4


def scaling(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 40


def hook(model: PreTrainedModel) -> None:
    model.model.norm.register_forward_pre_hook(lambda _, given: (given[0].flip(-1),))


def own_forward(model: PreTrainedModel) -> None:
    forward = model.model.norm.forward
    model.model.norm.forward = lambda states: forward(states.flip(-1))


def another_method(model: PreTrainedModel) -> None:
    model.model.norm.forward = MethodType(lambda self, states: self.weight * states.flip(-1), model.model.norm)


def activation(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.LeakyReLU(-2.0).eval()


def number_of_an_activation(model: PreTrainedModel) -> None:
    activation(model)
    for layer in model.model.layers:
        layer.mlp.act_fn.negative_slope = 5.0


def epsilon(model: PreTrainedModel) -> None:
    model.model.norm.variance_epsilon = 1e3
    model.model.layers[1].input_layernorm.variance_epsilon = 1e3


@pytest.mark.parametrize(
    "change",
    [scaling, hook, own_forward, number_of_an_activation, epsilon],
)
def test_a_change_to_modules_is_another_conversion(plain: PreTrainedModel, change: Change) -> None:
    before = text_of(plain)
    change(plain)
    assert text_of(plain) == expected_of(plain)
    assert text_of(plain) != before or change is epsilon


@pytest.mark.parametrize("change", [scaling, epsilon, activation])
def test_what_can_be_described_has_a_name_of_its_own(plain: PreTrainedModel, change: Change) -> None:
    names = [name_of_model(plain, "a device"), name_of_model(plain, "another device")]
    change(plain)
    names.append(name_of_model(plain, "a device"))
    if change is activation:
        number_of_an_activation(plain)
        names.append(name_of_model(plain, "a device"))
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("change", [hook, own_forward, another_method])
def test_what_cannot_be_described_has_no_name(plain: PreTrainedModel, change: Change) -> None:
    change(plain)
    assert name_of_model(plain, "a device") == ""


def test_a_model_has_its_name_before_and_after_it_was_driven(plain: PreTrainedModel, tmp_path: Path) -> None:
    before = name_of_model(plain, "a device")
    text_of(plain)
    plain(torch.tensor([[5, 9]]), output_hidden_states=True)
    plain.generation_config.temperature = 0.3
    assert name_of_model(plain, "a device") == before
