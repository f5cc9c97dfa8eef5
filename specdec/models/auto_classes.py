"""transformers' class for a checkpoint: of text alone, with images and audio, or with an encoder."""

from typing import Any

from specdec.models.checkpoint_files import model_file
from specdec.models.hub import HubAnswer

_OF_PROCESSORS = "processor_config.json", "preprocessor_config.json"


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


def has_processor(name: str, hub: HubAnswer) -> bool:
    """Return True for a folder or hub name with the configuration of a processor of images or audio."""
    if hub.files:
        return any(file in hub.files for file in _OF_PROCESSORS)
    return any(model_file(name, file, is_offline=True) for file in _OF_PROCESSORS)
