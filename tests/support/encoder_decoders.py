"""Small random encoder-decoder models, one of each family, and random inputs of their encoders."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCAB = 96
FLAT = {
    "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_AUDIO = {"max_target_positions": 128, "suppress_tokens": None, "begin_suppress_tokens": None}
GEMMA = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "sliding_window": 16,
}  # fmt: skip
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def _vision(encoder: Any, decoder: Any) -> Any:
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    return hf.VisionEncoderDecoderModel(config=config)


def _trocr() -> Any:
    encoder = hf.ViTConfig(
        hidden_size=24, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    names = ("vocab_size", "d_model", "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "pad_token_id")
    own = {name: FLAT[name] for name in (*names, "max_position_embeddings", "decoder_start_token_id")}
    return _vision(encoder, hf.TrOCRConfig(**own, cross_attention_hidden_size=24))


def _donut() -> Any:
    encoder = hf.DonutSwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    own = {**FLAT, "encoder_layers": 2, "is_decoder": True, "is_encoder_decoder": False, "add_cross_attention": True}
    return _vision(encoder, hf.MBartConfig(**own))  # with a projection between the two


def _moonshine() -> Any:
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"num_hidden_layers": 2, "num_attention_heads": 4}.items()}  # fmt: skip
    return hf.MoonshineForConditionalGeneration(
        hf.MoonshineConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, max_position_embeddings=128, **sizes)
    )


def _whisper() -> Any:
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(**{**FLAT, **_AUDIO, "num_mel_bins": 8, "max_source_positions": 16})
    )


def _speech2text() -> Any:
    sizes = {"input_feat_per_channel": 8, "input_channels": 1, "max_source_positions": 64, "conv_channels": 16}
    return hf.Speech2TextForConditionalGeneration(
        hf.Speech2TextConfig(
            **{**FLAT, **sizes, "max_target_positions": 128, "num_conv_layers": 2}, conv_kernel_sizes=(3, 3)
        )
    )


def _t5(cls: Any, config: Any, **others: Any) -> Callable[[], Any]:
    return lambda: cls(config(**T5, decoder_start_token_id=0, **others))


MODELS: dict[str, Callable[[], Any]] = {
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**FLAT, scale_embedding=True)),
    "mbart": lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**FLAT)),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**FLAT)),
    "pegasus": lambda: hf.PegasusForConditionalGeneration(hf.PegasusConfig(**FLAT)),
    "blenderbot": lambda: hf.BlenderbotForConditionalGeneration(hf.BlenderbotConfig(**FLAT)),
    "nllb": lambda: hf.M2M100ForConditionalGeneration(hf.M2M100Config(**FLAT)),
    "t5": _t5(hf.T5ForConditionalGeneration, hf.T5Config, tie_word_embeddings=False),
    "tied t5": _t5(hf.T5ForConditionalGeneration, hf.T5Config),
    "mt5": _t5(hf.MT5ForConditionalGeneration, hf.MT5Config),
    "t5gemma": lambda: hf.T5GemmaForConditionalGeneration(
        hf.T5GemmaConfig(encoder={**GEMMA, "num_hidden_layers": 1}, decoder=dict(GEMMA), vocab_size=VOCAB)
    ),
    "whisper": _whisper,
    "moonshine": _moonshine,
    "speech2text": _speech2text,
    "trocr": _trocr,
    "donut": _donut,
}


def randomise(model: Any) -> None:
    """Draw a model's parameters anew, so that its logits depend on all that it reads."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name or "relative" in name:
                if parameter.requires_grad:
                    parameter.normal_(0, 1.0, generator=generator)
            elif parameter.dim() > 1:  # T5 has small queries, and doesn't scale its scores
                parameter.normal_(0, 0.1 if name.endswith(".q.weight") else 0.25, generator=generator)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.5, generator=generator)


def make(family: str) -> Any:
    """Return a model whose logits depend on its path, its positions and its encoder's output."""
    torch.manual_seed(0)
    model = MODELS[family]().eval()
    randomise(model)
    return model


def encoder_inputs(family: str, model: Any, seed: int, num_tokens: int = 11) -> dict[str, torch.Tensor]:
    """Return random inputs of a model's encoder, for one prompt."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "whisper": ("input_features", (1, 8, 32)),
        "moonshine": ("input_values", (1, 4000 + 400 * num_tokens)),
        "speech2text": ("input_features", (1, 4 * num_tokens, 8)),
        "trocr": ("pixel_values", (1, 3, 16, 16)),
        "donut": ("pixel_values", (1, 3, 32, 32)),
    }
    if family in shapes:
        name, shape = shapes[family]
        return {name: torch.randn(shape, generator=generator)}
    ids = torch.randint(4, VOCAB, (1, num_tokens), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def make_whisper() -> Any:
    """Return a Whisper with windows of a second, and the special tokens that its own ``generate`` needs."""
    sizes = {**FLAT, "vocab_size": 260, "num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 48}
    ends = {"eos_token_id": 100, "pad_token_id": 100, "bos_token_id": 100, "decoder_start_token_id": 101}
    torch.manual_seed(0)
    model: Any = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**{**sizes, **ends})).eval()
    randomise(model)
    own = {
        **ends, "lang_to_id": {"<|en|>": 102}, "task_to_id": {"transcribe": 103}, "prev_sot_token_id": 104,
        "no_timestamps_token_id": 106, "is_multilingual": True, "suppress_tokens": [1, 2], "max_length": 48,
        "begin_suppress_tokens": [20, 100], "max_initial_timestamp_index": 20,
    }  # fmt: skip
    for name, value in own.items():
        setattr(model.generation_config, name, value)
    return model
