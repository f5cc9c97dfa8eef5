"""On every device, through every backend and kind of mask, the text is the model's own."""

from functools import cache
from typing import Any

import pytest

from specdec import Generator
from tests.support import families
from tests.support.devices import DEVICES
from tests.support.plain import decode_model

PROMPTS = [[3, 5, 7, 3, 5, 7, 3], [9], [4, *range(2, 60), 4]]
WAYS: dict[str, dict[str, Any]] = {
    "hf, dense": {"mask": "dense"},
    "static": {"backend": "static"},
}


@cache
def plain(family: str, device: str, seed: int | None) -> list[list[int]]:
    """Plain decoding's texts."""
    model = families.make(*families.TREES[family]).to(device)
    return [decode_model(model, prompt, 20, seed, eos=()) for prompt in PROMPTS]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "qwen3_moe"])
def test_text_is_the_models_own(family: str, way: str, device: str) -> None:
    model = families.make(*families.TREES[family]).to(device)
    for proposer, seed in (("autoregressive", None), ("lookahead:N=3,W=3,G=3", 7), ("prompt_lookup:num_matches=3", 7)):
        generator = Generator(model, proposer=proposer, max_batch_size=2, **WAYS[way])
        results = generator.generate(PROMPTS, max_new_tokens=20, temperature=float(seed is not None), seed=seed)
        assert [list(result.token_ids) for result in results] == plain(family, device, seed)
