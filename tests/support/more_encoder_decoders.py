"""Small random encoder-decoder models of the families that differ little from others, and inputs of their encoders."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from tests.support import encoder_decoders
from tests.support.encoder_decoders import FLAT, GEMMA, T5, VOCAB

_SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 128,
}  # fmt: skip
_HEARD = {
    "hidden_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_SEAMLESS = {
    "vocab_size": VOCAB, "hidden_size": 32, "max_position_embeddings": 128, "encoder_layers": 1, "encoder_ffn_dim": 48,
    "encoder_attention_heads": 2, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4,
    "speech_encoder_layers": 1, "speech_encoder_attention_heads": 2, "speech_encoder_intermediate_size": 48,
    "feature_projection_input_dim": 16, "num_adapter_layers": 1, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1,
    "decoder_start_token_id": 2, "pad_token_id": 1,
}  # fmt: skip
_PARAKEET = {
    "model_type": "parakeet_encoder", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 48, "subsampling_factor": 8, "subsampling_conv_channels": 8, "num_mel_bins": 16,
}  # fmt: skip
_CANARY = {**_SMALL, "num_key_value_heads": 2, "head_dim": 8}


def _joined(joined: Any, model: Any, encoder: Any, decoder: Any) -> Any:
    config = joined.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 1, 3
    return model(config=config)


def _bert(**options: Any) -> Any:
    return hf.BertConfig(**_SMALL, **options)


def _t5gemma2() -> Any:
    sight = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = {
        "text_config": {**GEMMA, "num_hidden_layers": 1, "layer_types": ["full_attention"]},
        "vision_config": {**sight, "image_size": 28, "patch_size": 14},
        "image_token_index": 90, "mm_tokens_per_image": 4, "vocab_size": VOCAB,
    }  # fmt: skip
    config = hf.T5Gemma2Config(encoder=encoder, decoder=dict(GEMMA), vocab_size=VOCAB)
    return hf.T5Gemma2ForConditionalGeneration(config)


def _speecht5() -> Any:
    sizes = {name: FLAT[name] for name in FLAT if "coder" in name}
    config = hf.SpeechT5Config(vocab_size=VOCAB, pad_token_id=1, max_text_positions=128, **{**_HEARD, **sizes})
    return hf.SpeechT5ForSpeechToText(config)


def _florence2() -> Any:
    depths = {"depths": [1] * 4, "embed_dim": [8, 8, 8, 16], "num_heads": [1, 1, 1, 2], "num_groups": [1, 1, 1, 2]}
    sight = {**depths, "projection_dim": 32, "window_size": 4}
    config = hf.Florence2Config(text_config={"model_type": "bart", **FLAT}, vision_config=sight, image_token_id=90)
    return hf.Florence2ForConditionalGeneration(config)


def _pix2struct() -> Any:
    text = {"vocab_size": VOCAB, "hidden_size": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    sight = {"hidden_size": 32, "patch_embed_hidden_size": 12, "d_ff": 48, "d_kv": 8, "num_hidden_layers": 1}
    config = hf.Pix2StructConfig(
        text_config={**text, "decoder_start_token_id": 0}, vision_config={**sight, "num_attention_heads": 4}
    )
    return hf.Pix2StructForConditionalGeneration(config)


def _t5(name: str, **options: Any) -> Callable[[], Any]:
    config = {**T5, "decoder_start_token_id": 0, **options}
    model = getattr(hf, f"{name}ForConditionalGeneration")
    return lambda: model(getattr(hf, f"{name}Config")(**config))


def _flat(name: str, **options: Any) -> Callable[[], Any]:
    model = getattr(hf, f"{name}ForConditionalGeneration")
    return lambda: model(getattr(hf, f"{name}Config")(**FLAT, **options))


TREES: dict[str, Callable[[], Any]] = {
    "longt5": _t5("LongT5", local_radius=4, encoder_attention_type="transient-global"),
    "switch_transformers": _t5(
        "SwitchTransformers", expert_capacity=500, num_experts=2, num_decoder_layers=2, num_sparse_decoder_layers=1
    ),
    "blenderbot-small": _flat("BlenderbotSmall"),
    "mvp": _flat("Mvp"),
    "plbart": _flat("PLBart"),
    "bigbird_pegasus": _flat("BigBirdPegasus", block_size=4, num_random_blocks=1),
    "bert2bert": lambda: _joined(
        hf.EncoderDecoderConfig, hf.EncoderDecoderModel, _bert(), _bert(is_decoder=True, add_cross_attention=True)
    ),
    "speech2bert": lambda: _joined(
        hf.SpeechEncoderDecoderConfig,
        hf.SpeechEncoderDecoderModel,
        hf.Wav2Vec2Config(**{**_SMALL, **_HEARD}),
        _bert(is_decoder=True, add_cross_attention=True),
    ),
    "seamless_m4t": lambda: hf.SeamlessM4TForTextToText(hf.SeamlessM4TConfig(**_SEAMLESS)),
    "seamless_m4t_v2": lambda: hf.SeamlessM4Tv2ForSpeechToText(hf.SeamlessM4Tv2Config(**_SEAMLESS)),
    "speecht5": _speecht5,
    "pix2struct": _pix2struct,
    "canary": lambda: hf.CanaryForConditionalGeneration(
        hf.CanaryConfig(vocab_size=VOCAB, encoder_config=_PARAKEET, decoder_config=_CANARY)
    ),
    "cohere_asr": lambda: hf.CohereAsrForConditionalGeneration(
        hf.CohereAsrConfig(**_SMALL, encoder_config=_PARAKEET, decoder_start_token_id=2)
    ),
}


def _led() -> Any:
    """A decoder that ignores the mask of a pass over one token."""
    sizes = {name: value for name, value in FLAT.items() if name != "max_position_embeddings"}
    places = {"max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 96, "attention_window": 4}
    return hf.LEDForConditionalGeneration(hf.LEDConfig(**sizes, **places))


CHAINS: dict[str, Callable[[], Any]] = {
    "umt5": _t5("UMT5"),
    "udop": _t5("Udop", image_size=32, patch_size=8),
    "pegasus_x": _flat("PegasusX", block_size=4, num_global_tokens=2),
    "nllb-moe": _flat("NllbMoe", num_experts=2, encoder_sparse_step=1, decoder_sparse_step=2, expert_capacity=8),
    "t5gemma2": _t5gemma2,
    "florence2": _florence2,
    "led": _led,
}


def make(family: str) -> Any:
    """Return a model whose logits depend on its path, its positions and its encoder's output."""
    torch.manual_seed(0)
    model = (TREES | CHAINS)[family]().eval()
    encoder_decoders.randomise(model)
    return model


def encoder_inputs(family: str, model: Any, seed: int) -> dict[str, torch.Tensor]:
    """Return random inputs of a model's encoder, for one prompt."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "speech2bert": ("input_values", (1, 900)),
        "speecht5": ("input_values", (1, 900)),
        "seamless_m4t_v2": ("input_features", (1, 24, 16)),
        "canary": ("input_features", (1, 80, 16)),
        "cohere_asr": ("input_features", (1, 80, 16)),
    }
    if family in shapes:
        name, shape = shapes[family]
        return {name: torch.randn(shape, generator=generator)}
    if family == "pix2struct":  # the row and column of each patch, and its pixels
        places = torch.arange(1, 9.0)[None, :, None].expand(1, 8, 2)
        patches = torch.cat([places, torch.randn(1, 8, 12, generator=generator)], -1)
        return {"flattened_patches": patches, "attention_mask": torch.ones(1, 8)}
    inputs = encoder_decoders.encoder_inputs("bart", model, seed)
    if family == "udop":
        inputs |= {"bbox": torch.rand(1, 11, 4, generator=generator), "pixel_values": torch.randn(1, 3, 32, 32)}
    return inputs
