"""Adapters and quantised weights are found however the model was loaded."""

from types import SimpleNamespace

import torch

from specdec.heads.strategies.target_weights import alterations_of


class Lora(torch.nn.Linear):
    """A layer with an adapter, by its module's name."""


Lora.__module__ = "peft.tuners.lora.layer"


def test_a_models_alterations_are_named() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert alterations_of(plain) == []
    assert alterations_of(torch.nn.Sequential(plain, torch.nn.ModuleList([Lora(2, 2)]))) == ["an adapter"]
    plain.is_quantized = True  # type: ignore[assignment]  # as transformers does
    assert alterations_of(plain) == ["quantised weights"]
    folder = SimpleNamespace(config=SimpleNamespace(quantization_config={"bits": 4}))
    assert alterations_of(folder) == ["quantised weights"]
    assert alterations_of(SimpleNamespace(config=SimpleNamespace(quantization_config=None))) == []
