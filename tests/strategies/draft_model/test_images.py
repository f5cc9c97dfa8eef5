"""A draft model of text alone, beside a target whose prompt has an image."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Generator
from specdec.strategies import DraftModelProposer
from tests.support import families
from tests.support.media_models import llava, noise


def test_it_reads_the_prompt_without_placeholders_and_the_text_is_the_targets() -> None:
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
