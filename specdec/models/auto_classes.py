"""transformers' class for a checkpoint: of text alone, with images and audio, or with an encoder."""

from pathlib import Path
from typing import Any


def auto_class(config: Any) -> Any:
    """Return the Auto class that loads a configuration's text generator; ``AutoModelForCausalLM`` if none does."""
    import transformers

    orders = {
        True: ("SpeechSeq2Seq", "Seq2SeqLM", "ImageTextToText"),
        False: ("CausalLM", "MultimodalLM"),
    }
    for name in orders[bool(getattr(config, "is_encoder_decoder", False))]:
        auto = getattr(transformers, f"AutoModelFor{name}")
        if type(config) in auto._model_mapping:
            return auto
    return transformers.AutoModelForCausalLM


def has_processor(place: str) -> bool:
    """Return True for a folder with the configuration of a processor of images or audio."""
    names = "processor_config.json", "preprocessor_config.json"
    return any(Path(place, name).is_file() for name in names)
