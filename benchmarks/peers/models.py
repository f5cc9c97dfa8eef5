"""Models for workers that use specdec's own transformers."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.utils import logging

DEMO_DRAFTER = "demo_drafter"


def demo_folder(name: str) -> Path:
    """Return the folder where the built-in ``model`` or its ``drafter`` is installed."""
    return Path(str(files("specdec.demo") / name))


def with_drafter(method: str) -> str:
    """Replace ``demo_drafter`` in a method by the folder of the built-in model's drafter."""
    return method.replace(DEMO_DRAFTER, str(demo_folder("drafter")))


def load(folder: Path, dtype: str, **given: Any) -> Any:
    """Load a checkpoint's model, without an end of text; ``given`` are further arguments of ``from_pretrained``."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True, **given).eval()
    model.generation_config.eos_token_id = None
    return model
