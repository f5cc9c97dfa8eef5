"""Draft models beside a target whose prompt has an image, or whose decoder reads an encoder's states."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, WhisperForConditionalGeneration

import specdec
from specdec import Generator, ModelError
from specdec.strategies import DraftModelProposer
from tests.support import families
from tests.support.media_models import llava, noise
from tests.support.whisper import whisper


def test_a_model_of_text_reads_the_prompt_without_placeholders_and_the_text_is_the_targets() -> None:
    model, processor = llava()
    torch.manual_seed(1)
    sizes = {**families.SMALL, "vocab_size": model.config.text_config.vocab_size, "max_position_embeddings": 512}
    draft_model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    content = [{"type": "image", "image": noise(1)}, {"type": "text", "text": "the cat sat"}]
    messages = [{"role": "user", "content": content}]
    with Generator(model, processor, proposer="autoregressive") as plain:
        expected = plain.generate(messages, max_new_tokens=12).token_ids
    fed = set[int]()

    def note(_: Any, ids: tuple[torch.Tensor, ...]) -> None:
        fed.update(ids[0].flatten().tolist())

    with Generator(model, processor, proposer=DraftModelProposer(model=draft_model)) as generator:
        generator.prepare()
        with_hook = draft_model.get_input_embeddings().register_forward_pre_hook(note)
        result = generator.generate(messages, max_new_tokens=12)
        with_hook.remove()
    assert result.token_ids == expected
    assert result.stats.num_draft_tokens
    assert fed > set(processor.tokenizer("the cat sat")["input_ids"])
    assert model.config.image_token_id not in fed


@pytest.mark.filterwarnings("ignore")
def test_a_draft_models_decoder_reads_what_the_targets_encoder_has_computed() -> None:
    model, processor = whisper()
    same = copy.deepcopy(model)  # drafts what the target writes, if it hears the same
    del same.model.encoder.layers  # and its own encoder is never run
    sounds = [np.sin(np.arange(32_000) / wave).astype(np.float32) for wave in (9, 4, 14)]
    inputs = processor.feature_extractor(sounds, sampling_rate=16_000, return_tensors="pt")
    settings: dict[str, Any] = {**inputs, "max_new_tokens": 16, "do_sample": False}
    own = model.generate(**settings)
    drafts = specdec.custom_generate(proposer=DraftModelProposer(model=same))
    assert model.generate(**settings, custom_generate=drafts).tolist() == own.tolist()
    with Generator(model, processor, proposer=DraftModelProposer(model=same)) as generator:
        results = generator.generate(**inputs, max_new_tokens=16)
    for result in results:
        assert result.error is None
        assert result.stats.num_accepted_tokens == result.stats.num_draft_tokens > 8


def test_an_encoder_of_another_size_isnt_shared() -> None:
    model, processor = whisper()
    config = copy.deepcopy(model.config)
    config.d_model = 16
    other = WhisperForConditionalGeneration(config)
    with pytest.raises(ModelError, match="states of 16 numbers, and the target encodes to 32"):
        Generator(model, processor, proposer=DraftModelProposer(model=other)).prepare()
    target = LlamaForCausalLM(LlamaConfig(**{**families.SMALL, "vocab_size": config.vocab_size})).eval()
    with pytest.raises(ModelError, match="the target has no encoder"):
        Generator(target, proposer=DraftModelProposer(model=other)).prepare()
