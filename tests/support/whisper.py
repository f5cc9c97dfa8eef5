"""A small random Whisper with windows of two seconds, its real processor, and what its own ``generate`` transcribes."""

from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import (
    PreTrainedModel,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

SECONDS, MELS, PLACES = 2, 8, 100
END, START, PREVIOUS, SILENCE, UNTIMED = (
    f"<|{name}|>" for name in ("endoftext", "startoftranscript", "startofprev", "nospeech", "notimestamps")
)
LANGUAGES, TASKS = ("<|en|>", "<|de|>", "<|fr|>"), ("<|translate|>", "<|transcribe|>")


def _tokenizer() -> Any:
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    made = WhisperTokenizer({letter: number for number, letter in enumerate(letters)}, [])
    marks = [START, *LANGUAGES, *TASKS, "<|startoflm|>", PREVIOUS, SILENCE, UNTIMED]
    made.add_special_tokens({"additional_special_tokens": marks})
    made.add_tokens([f"<|{place * SECONDS / PLACES:.2f}|>" for place in range(PLACES + 1)])
    return made


@cache
def whisper() -> tuple[PreTrainedModel, Any]:
    """The model, which writes bytes and timestamps that depend on the recording, and its processor."""
    torch.manual_seed(5)
    words = _tokenizer()
    ids = {token: words.convert_tokens_to_ids(token) for token in (*LANGUAGES, *TASKS, START, END, PREVIOUS, UNTIMED)}
    config = WhisperConfig(
        vocab_size=len(words), d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=MELS,
        max_source_positions=PLACES, max_target_positions=128, decoder_start_token_id=ids[START],
        bos_token_id=ids[END], eos_token_id=ids[END], pad_token_id=ids[END],
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                scale = 6.0 if "encoder_attn" in name else 1.5
                parameter.normal_(std=scale / parameter.shape[-1] ** 0.5)
    own = model.generation_config
    vars(own).update(
        _from_model_config=False,  # or loading would make it anew
        is_multilingual=True,
        lang_to_id={token: ids[token] for token in LANGUAGES},
        task_to_id={token[2:-2]: ids[token] for token in TASKS},
        no_timestamps_token_id=ids[UNTIMED],
        prev_sot_token_id=ids[PREVIOUS],
        return_timestamps=False,
        suppress_tokens=[ids[PREVIOUS], *(ids[token] for token in (*LANGUAGES, *TASKS, START))],
        begin_suppress_tokens=[ids[END]],
        max_initial_timestamp_index=10,
        max_length=40,
    )
    ears = WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS, sampling_rate=16_000)
    return model, WhisperProcessor(ears, words)


def own_transcript(samples: np.ndarray, timed: bool, **options: Any) -> Any:
    """What the model's own ``generate`` returns, segments included."""
    model, processor = whisper()
    is_long = len(samples) > SECONDS * 16_000
    padding = {"truncation": False, "padding": "longest"} if is_long else {}
    encoded = processor.feature_extractor(
        samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **padding
    )
    return model.generate(
        encoded["input_features"],
        attention_mask=encoded["attention_mask"],
        return_timestamps=timed or is_long,
        return_segments=True,
        num_beams=1,
        do_sample=False,
        task="transcribe",
        **options,
    )
