"""What a target writes in rows is what it writes alone, within the script."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from specdec import ModelError
from specdec.errors import NumericsError
from specdec.heads.training.rollout import Rollout, sampled
from specdec.heads.training.script import Script
from specdec.heads.training.settings import RolloutSettings
from specdec.heads.training.text import TrainingText

CHAT = Script(prefix=[3, 4], openings=[[], [7, 8, 9]], end_of_opening=5, bridge=[5, 6, 10], ends=[5, 11])
BASE = Script.continuation(3, [5, 11])
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3)).eval()


def written(
    target: PreTrainedModel, script: Script, settings: RolloutSettings, num_answer_tokens: int = 300
) -> TrainingText:
    rollout = Rollout(target, script, settings, torch.Generator().manual_seed(1))
    rollout.write(lambda _: rollout.records.num_answer_tokens() < num_answer_tokens)
    return rollout.records.text()


@pytest.mark.parametrize("script", [CHAT, BASE])
@torch.no_grad()
def test_greedy_answers_are_those_of_plain_decoding(script: Script) -> None:
    target = model()
    settings = RolloutSettings(num_rows=6, opening_tokens=(2, 9), answer_tokens=12, greedy_share=1.0)
    text = written(target, script, settings)
    check_greedy(text, target, script, settings)
    assert len({len(text.document(index)) for index in range(len(text))}) > 3  # rows begin and end at any time


def check_greedy(text: TrainingText, target: PreTrainedModel, script: Script, settings: RolloutSettings) -> None:
    """Compare answers with the target's top tokens."""
    assert text.num_answer_tokens >= 300
    for index in range(len(text)):
        tokens, answer = torch.from_numpy(text.document(index)).long(), int(text.answers[index])
        assert tokens[: len(script.prefix)].tolist() == script.prefix
        assert tokens[:answer].tolist()[answer - len(script.bridge) :] == script.bridge
        assert 0 < len(tokens) - answer <= settings.answer_tokens
        assert not set(tokens[answer:-1].tolist()) & set(script.ends)
        expected = target(tokens[None]).logits[0, answer - 1 : -1].argmax(-1)
        assert torch.equal(tokens[answer:], expected)


def test_lost_steps_are_those_whose_tokens_the_text_leaves_out() -> None:
    settings, checks = RolloutSettings(num_rows=6, opening_tokens=(9, 20), answer_tokens=12), iter([True] * 3)
    rollout = Rollout(model(), CHAT, settings, torch.Generator().manual_seed(2))
    rollout.write(lambda _: next(checks, False))
    text = rollout.records.text()
    kept = len(text.tokens) - len(CHAT.prefix) * len(text)
    assert rollout.records.mean_lost_steps() == pytest.approx(len(rollout.records.steps) - kept / 6)
    assert rollout.records.mean_lost_steps() > 1


@torch.no_grad()
def test_a_window_that_rows_fit_into_changes_nothing() -> None:
    target = MistralForCausalLM(MistralConfig(**SIZES, initializer_range=0.3, sliding_window=64)).eval()
    settings = RolloutSettings(num_rows=6, opening_tokens=(2, 9), answer_tokens=12, greedy_share=1.0)
    text = written(target, BASE, settings)
    check_greedy(text, target, BASE, settings)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**SIZES), "its attention uses softcap"),
        (GptOssForCausalLM, GptOssConfig(**SIZES, num_local_experts=4), "its attention uses s_aux"),
        (
            MistralForCausalLM,
            MistralConfig(**SIZES, sliding_window=63),
            "can't write rows of 64 tokens: some layers have a window of 63; set fewer answer_tokens",
        ),
    ],
)
def test_other_attention_is_refused(kind: type[PreTrainedModel], config: PretrainedConfig, message: str) -> None:
    settings = RolloutSettings(num_rows=2, opening_tokens=(2, 9), answer_tokens=12)
    with pytest.raises(ModelError, match=message):
        written(kind(config).eval(), BASE, settings)


@torch.no_grad()
def test_the_model_is_left_as_it_was() -> None:
    target = model()
    before = target.config._attn_implementation
    written(target, CHAT, RolloutSettings(num_rows=2), 10)
    assert target.config._attn_implementation == before


def test_draws_follow_the_temperature_and_min_p() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -4.0]).expand(40_000, -1)
    temperatures = torch.full((40_000,), 0.8)
    draws = sampled(logits, temperatures, -3.0, torch.Generator().manual_seed(0))
    expected = torch.tensor([2.0, 1.0, 0.0]).div(0.8).softmax(-1)  # the last is below exp(-3) of the top
    assert torch.bincount(draws, minlength=4)[3] == 0
    torch.testing.assert_close(torch.bincount(draws).float() / 40_000, expected, rtol=0, atol=0.01)
    assert sampled(logits, temperatures * 0, 0.0, torch.Generator().manual_seed(0)).sum() == 0
    logits[7] = torch.nan
    with pytest.raises(NumericsError, match="NaN"):
        sampled(logits, temperatures, -3.0, torch.Generator().manual_seed(0))
