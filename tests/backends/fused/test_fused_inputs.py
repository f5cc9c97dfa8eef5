"""Fused layers read prompts with images: embeddings, positions and what is added to layers remain the model's."""

from typing import Any

import pytest
import torch

from specdec import Generator
from specdec.backends.fused.backend import FusedBackend
from tests.apps.in_transformers.test_vision_models import make, with_an_image
from tests.support import fused_kernels

NUM_TOKENS = 12


@pytest.mark.parametrize("name", ["Llava", "Qwen2VL", "Gemma3"])
def test_texts_after_images_are_generates_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FusedBackend, "_serves", lambda _: True)
    monkeypatch.setattr(FusedBackend, "_kernels", lambda _: fused_kernels)
    model: Any = make(name)
    if name == "Gemma3":
        ids = torch.tensor([[5, 6, 90, 90, 90, 90, 7, 8]])
        inputs = {"input_ids": ids, "pixel_values": torch.rand(1, 3, 16, 16), "token_type_ids": (ids == 90).long()}
    else:
        inputs = with_an_image(name)
    own = model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)
    num_given = inputs["input_ids"].shape[1]
    with Generator(model, backend="fused", mask="slot_table", weights="stock", proposer="suffix") as generator:
        (result,) = generator.generate(**inputs, max_new_tokens=NUM_TOKENS)
        assert result.error is None
        assert list(result.token_ids) == own[0, num_given:].tolist()
