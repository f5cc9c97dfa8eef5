"""Every field of a GenerationConfig is honoured, refused by name, or known to change no text: none is passed over."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, WatermarkingConfig
from transformers.cache_utils import Cache, QuantizedLayer

import specdec
from specdec.settings import Settings
from tests.support import families

HONOURED: dict[str, Any] = {
    "max_length": 12, "max_new_tokens": 3, "min_new_tokens": 9, "max_time": 1e-9, "stop_strings": ["a"],
    "do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.7, "min_p": 0.2, "repetition_penalty": 1.9,
    "no_repeat_ngram_size": 1, "bad_words_ids": [[35]], "suppress_tokens": [35], "begin_suppress_tokens": [91],
    "eos_token_id": 35, "min_length": 9, "forced_bos_token_id": 3, "forced_eos_token_id": 5,
}  # fmt: skip
HARMLESS: dict[str, Any] = {
    "use_cache": False, "cache_implementation": "static", "cache_config": {}, "max_cache_len": 40, "pad_token_id": 3,
    "bos_token_id": 3, "return_dict_in_generate": True, "disable_compile": True, "compile_config": None,
    "prefill_chunk_size": 2, "low_memory": True, "early_stopping": True, "length_penalty": 2.0,
    "_from_model_config": False, "transformers_version": "5.0.0",
}  # fmt: skip
# Refused in a config for ``Generator``; with what they do through ``custom_generate``.
REFUSED: dict[str, tuple[Any, str]] = {
    "encoder_repetition_penalty": (1.7, "honoured"),
    "encoder_no_repeat_ngram_size": (1, "honoured"), "exponential_decay_length_penalty": ((2, 1.4), "honoured"),
    "sequence_bias": ([[[35], -9.0]], "honoured"), "watermarking_config": (WatermarkingConfig(bias=5.0), "honoured"),
    "remove_invalid_values": (True, "harmless"), "renormalize_logits": (True, "harmless"),
    "typical_p": (0.4, "sampled"), "epsilon_cutoff": (0.01, "sampled"), "eta_cutoff": (0.01, "sampled"),
    "top_h": (0.4, "sampled"), "num_return_sequences": (2, "sampled"),
    "output_scores": (True, "harmless"), "output_logits": (True, "harmless"),
    "output_attentions": (True, "refused"), "output_hidden_states": (True, "refused"),
    "num_beams": (2, "refused"), "penalty_alpha": (0.6, "refused"), "dola_layers": ("low", "refused"),
    "constraints": ([3], "refused"), "force_words_ids": ([[3]], "refused"), "guidance_scale": (1.5, "refused"),
    "use_mtp": (True, "refused"), "is_assistant": (True, "refused"), "prompt_lookup_num_tokens": (3, "refused"),
    "assistant_early_exit": (1, "refused"), "assistant_ensemble_weight": (0.5, "refused"),
    "speculation_type": ("dflash", "refused"),
    # Without beams or an assistant transformers itself ignores these.
    "diversity_penalty": (0.5, "harmless"), "num_beam_groups": (2, "harmless"),
    "decoder_start_token_id": (5, "harmless"), "num_assistant_tokens": (3, "harmless"),
    "num_assistant_tokens_schedule": ("heuristic", "harmless"), "assistant_confidence_threshold": (0.9, "harmless"),
    "max_matching_ngram_size": (2, "harmless"), "assistant_lookbehind": (3, "harmless"),
    "target_lookbehind": (3, "harmless"), "continuous_batching_config": ({}, "harmless"),
    "token_healing": (True, "refused"),  # by transformers, without a tokenizer
}  # fmt: skip
PROMPT = torch.tensor([[1, 4, 2, 7]])
SPECDEC = specdec.custom_generate("prompt_lookup:min_ngram=1,num_tokens=4", numerics="fast")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def model() -> PreTrainedModel:
    model = families.make(*families.TREES["llama"])
    model.generation_config.pad_token_id = 0
    return model


def config(**values: Any) -> GenerationConfig:
    """With these values, also where transformers itself would call them contradictory."""
    made = GenerationConfig(max_new_tokens=12)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_every_field_is_in_one_table() -> None:
    names = [*HONOURED, *HARMLESS, *REFUSED]
    assert len(names) == len({*names})
    assert {*names} == {*GenerationConfig().to_dict(), "_from_model_config", "transformers_version"}


@pytest.mark.parametrize("name", HONOURED)
def test_a_field_that_is_honoured_changes_the_settings(name: str) -> None:
    samples = name in ("temperature", "top_k", "top_p", "min_p")
    base = {"do_sample": True} if samples else {}
    assert Settings.make({}, config(**{**base, name: HONOURED[name]})) != Settings.make({}, config(**base))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_field_that_changes_no_text_changes_no_setting(name: str) -> None:
    assert Settings.make({}, config(**{name: HARMLESS[name]})) == Settings.make({}, config())


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_cant_be_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(specdec.RequestError, match=f"options that specdec doesn't support: {name}="):
        Settings.make({}, config(**{name: REFUSED[name][0]}))


def test_a_quantized_cache_is_refused_however_it_is_asked_for(model: PreTrainedModel) -> None:
    fault = "cache_implementation='quantized': specdec doesn't quantize keys and values"
    generator = specdec.Generator(model)
    with pytest.raises(specdec.RequestError, match=fault):
        generator.generate([1, 2], generation_config=config(cache_implementation="quantized"))
    with pytest.raises(specdec.RequestError, match=fault):
        generator.generate([1, 2], cache_implementation="quantized")  # type: ignore[call-overload]

    class Rounding(QuantizedLayer):
        """As of a backend of one's own."""

        def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
            return (tensor * 4).round() / 4

        def _dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor

    def rounding() -> Cache:
        return Cache(layers=[Rounding(residual_length=2) for _ in range(model.config.num_hidden_layers)])

    call = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 12}
    assert model.generate(**call, cache=rounding()).tolist() != model.generate(**call).tolist()
    with pytest.raises(specdec.RequestError, match="custom_generate doesn't quantize keys and values"):
        model.generate(**call, cache=rounding(), custom_generate=SPECDEC)


GREEDY = {name: value for name, (value, kind) in REFUSED.items() if kind in ("honoured", "harmless")} | HONOURED
GREEDY = {name: GREEDY[name] for name in GREEDY if name not in ("do_sample", "stop_strings")} | HARMLESS


@pytest.mark.parametrize("name", GREEDY)
def test_custom_generate_honours_a_field_as_generate_does(model: PreTrainedModel, name: str) -> None:
    others = (
        {"eos_token_id": 35} if name in ("min_new_tokens", "min_length", "exponential_decay_length_penalty") else {}
    )
    if name in ("output_scores", "output_logits"):
        others["return_dict_in_generate"] = True
    if name == "max_length":
        others["max_new_tokens"] = None
    call = {"inputs": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    given = config(**{**others, name: GREEDY[name]})
    own = model.generate(**call, generation_config=given)
    drafted = model.generate(**call, generation_config=given, custom_generate=SPECDEC)
    assert type(drafted) is type(own)
    texts = [ids if torch.is_tensor(ids) else ids.sequences for ids in (own, drafted)]
    assert texts[0].tolist() == texts[1].tolist()


@pytest.mark.parametrize("name", [name for name, (_, kind) in REFUSED.items() if kind == "refused"])
def test_custom_generate_refuses_a_field_by_name_or_by_its_mode(model: PreTrainedModel, name: str) -> None:
    call = {"inputs": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    with pytest.raises((specdec.RequestError, ValueError)):
        model.generate(**call, generation_config=config(**{name: REFUSED[name][0]}), custom_generate=SPECDEC)


SAMPLED = {name: value for name, (value, kind) in REFUSED.items() if kind == "sampled"}
SAMPLED |= {"do_sample": True, "temperature": 0.2, "top_k": 2, "top_p": 0.3, "min_p": 0.5}


@pytest.mark.parametrize("name", SAMPLED)
def test_custom_generate_samples_by_a_field(model: PreTrainedModel, name: str) -> None:
    """Only among the tokens that transformers' own processors leave; their distribution is tested elsewhere."""
    given = config(**{"do_sample": True, "top_k": 0, name: SAMPLED[name]})
    given.max_new_tokens, given.num_return_sequences = 1, given.num_return_sequences or 40
    call = {"inputs": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    scores = model.generate(
        **call, generation_config=given, return_dict_in_generate=True, output_scores=True
    ).scores[0]  # fmt: skip
    allowed = {*(scores[0] > -torch.inf).nonzero().flatten().tolist()}
    drawn = model.generate(**call, generation_config=given, custom_generate=SPECDEC)[:, -1].tolist()
    assert {*drawn} <= allowed
    assert len(drawn) == given.num_return_sequences
