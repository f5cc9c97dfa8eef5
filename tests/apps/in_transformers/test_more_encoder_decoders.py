"""Encoder-decoders of other families: the drafts that they take, and texts that are generate's own."""

from typing import Any

import pytest
from transformers.generation import GenerationMixin

from specdec import Generator
from specdec.apps.in_transformers import release
from specdec.inputs.processor import ProcessorOutput
from tests.support.more_encoder_decoders import CHAINS, TREES, encoder_inputs, make

# Every second one by day; those of transformers' guides are in test_encoder_decoders.py.
FAMILIES = [
    pytest.param(family, marks=[pytest.mark.nightly] * (number % 2)) for number, family in enumerate(TREES | CHAINS)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_generates_own(family: str) -> None:
    model, settings = make(family), {"max_new_tokens": 20, "do_sample": False, "no_repeat_ngram_size": 3}
    inputs: list[Any] = [encoder_inputs(family, model, seed) for seed in (4, 5)]
    ends: dict[str, Any] = {"eos_token_id": None, "forced_eos_token_id": None}
    own = [
        GenerationMixin.generate(model, **each, **settings, **ends, num_beams=1, pad_token_id=1)[0, -20:].tolist()
        for each in inputs
    ]
    with Generator(model, proposer="autoregressive", numerics="fast", max_batch_size=2) as generator:
        prompts = [prompt for each in (*inputs, inputs[0]) for prompt in ProcessorOutput(each).prompts()]
        lengths = [{"max_new_tokens": 5}, {}, {}]  # the third joins the second
        batch = generator.generate(prompts, **settings, **ends, each=lengths)
    assert [list(result.token_ids) for result in batch] == [own[0][:5], own[1], own[0]]
    with Generator(model, proposer="suffix", numerics="fast") as generator:
        assert generator._binding.target.shapes.takes_drafts
        assert generator._binding.target.shapes.takes_trees == (family in TREES)
        found = [generator.generate(**each, **settings, **ends) for each in inputs]
    results = [each[0] if isinstance(each, list) else each for each in found]
    assert [result.error for result in results] == [None, None]
    assert [list(result.token_ids) for result in results] == own
    release(model)
