"""What a target writes in rows is what it writes alone, within the script."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.training.rollout import Rollout, sampled
from specdec.training.script import Script
from specdec.training.settings import RolloutSettings

CHAT = Script(prefix=[3, 4], openings=[[], [7, 8, 9]], end_of_opening=5, bridge=[5, 6, 10], ends=[5, 11])
BASE = Script.continuation(3, [5, 11])


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("script", [CHAT, BASE])
@torch.no_grad()
def test_greedy_answers_are_those_of_plain_decoding(script: Script) -> None:
    target = model()
    settings = RolloutSettings(num_rows=6, opening_tokens=(2, 9), answer_tokens=12, greedy_share=1.0)
    text = Rollout(target, script, settings, torch.Generator().manual_seed(1)).write(300, 60.0)
    assert text.num_answer_tokens >= 300
    for index in range(len(text)):
        tokens, answer = torch.from_numpy(text.document(index)).long(), int(text.answers[index])
        assert tokens[: len(script.prefix)].tolist() == script.prefix
        assert tokens[:answer].tolist()[answer - len(script.bridge) :] == script.bridge
        assert 0 < len(tokens) - answer <= settings.answer_tokens
        assert not set(tokens[answer:-1].tolist()) & set(script.ends)
        expected = target(tokens[None]).logits[0, answer - 1 : -1].argmax(-1)
        assert torch.equal(tokens[answer:], expected)
    assert len({len(text.document(index)) for index in range(len(text))}) > 3  # rows begin and end at any time


@torch.no_grad()
def test_the_model_is_left_as_it_was() -> None:
    target = model()
    before = target.config._attn_implementation
    Rollout(target, CHAT, RolloutSettings(num_rows=2), torch.Generator().manual_seed(1)).write(10, 60.0)
    assert target.config._attn_implementation == before


def test_draws_follow_the_temperature_and_min_p() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -4.0]).expand(40_000, -1)
    temperatures = torch.full((40_000,), 0.8)
    draws = sampled(logits, (temperatures, torch.full((40_000,), -3.0)), torch.Generator().manual_seed(0))
    expected = torch.tensor([2.0, 1.0, 0.0]).div(0.8).softmax(-1)  # the last is below exp(-3) of the top
    assert torch.bincount(draws, minlength=4)[3] == 0
    torch.testing.assert_close(torch.bincount(draws).float() / 40_000, expected, rtol=0, atol=0.01)
    assert sampled(logits, (temperatures * 0, torch.zeros(40_000)), torch.Generator().manual_seed(0)).sum() == 0
