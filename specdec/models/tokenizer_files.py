"""The tokenizer or processor of a model that is given by name."""

import re
import warnings
from pathlib import Path
from typing import Any

from specdec.errors import ModelError, in_one_line, shortened
from specdec.models.auto_classes import has_processor
from specdec.models.checkpoint_files import ADAPTER_CONFIG
from specdec.models.gguf_file import is_gguf
from specdec.models.gguf_settings import adapted_tokenizer
from specdec.models.hub import HubAnswer, place_of

_OF_TOKENIZERS = re.compile(r"token|vocab|tekken|spiece|\.spm$|\.model$|merges")


def read_tokenizer(name: str, hub: HubAnswer) -> Any:
    """Return a model's tokenizer.

    Raises:
        ModelError: with what went wrong.
    """
    from transformers import AutoTokenizer

    place, where = place_of(name, hub)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **where)
        return adapted_tokenizer(Path(name), tokenizer) if is_gguf(name) else tokenizer
    except Exception as error:  # damaged files raise errors of any kind
        folder = Path(name)
        if folder.is_dir() and not any(_OF_TOKENIZERS.search(file.name) for file in folder.iterdir()):
            whose = "its base model's" if (folder / ADAPTER_CONFIG).is_file() else "the model's"
            raise ModelError(
                f"{name!r} has no tokenizer: save {whose} into the folder with tokenizer.save_pretrained({name!r}), or "
                f"pass it: Generator({name!r}, tokenizer)"
            ) from error
        reason = shortened(" ".join(str(error).split()).rstrip(".")) or type(error).__name__
        raise ModelError(
            f"can't load the tokenizer of {name!r}: {reason}. Give a model's folder or hub name"
        ) from error


def read_processor(name: str, hub: HubAnswer) -> Any:
    """Return the processor of a model that takes images or audio, which has the tokenizer; of any other the tokenizer.

    Raises:
        ModelError: if there is no tokenizer that can be read.

    Warns:
        UserWarning: if the processor can't be loaded, so that the tokenizer is returned.
    """
    if not has_processor(name, hub):
        return read_tokenizer(name, hub)
    from transformers import AutoProcessor

    place, where = place_of(name, hub)
    try:
        processor = AutoProcessor.from_pretrained(place, **where)
    except Exception as error:  # damaged files and missing packages raise errors of any kind
        reason = f"{name!r} takes text alone: its processor can't be loaded ({in_one_line(error)})"
        warnings.warn(reason, stacklevel=2)
        return read_tokenizer(name, hub)
    return read_tokenizer(name, hub) if getattr(processor, "tokenizer", None) is None else processor
