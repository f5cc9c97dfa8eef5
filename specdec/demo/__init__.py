"""The built-in small model and its prompts, for ``specdec demo``, the tests and the benchmarks.

The model card, ``model/README.md``, describes its training data and what its figures don't show.
"""

import json
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of one of four categories: code, documentation, dialogue, arithmetic.

    ``is_instruction``: the text asks for an answer, so it goes through a chat template if there is one.
    """

    category: str
    name: str
    text: str
    is_instruction: bool = False

    @property
    def request(self) -> Any:
        """The prompt as ``Generator.generate`` accepts it for the built-in model: chat messages, or text."""
        return [{"role": "user", "content": self.text}] if self.is_instruction else self.text


def load(dtype: Any = "float32") -> tuple[Any, Any]:
    """Load the built-in model, which has 7 million parameters, and its tokenizer.

    ``dtype`` is a torch dtype or its name; the weights are stored in bfloat16.

    Raises:
        RequestError: for an unknown dtype.
    """
    from transformers import AutoTokenizer

    with as_file(files(__package__) / "model") as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    return _load_model("model", dtype), tokenizer


def load_drafter(dtype: Any = "float32") -> Any:
    """Load a draft model for the built-in model: 1.2 million parameters, the same vocabulary; as ``load`` otherwise."""
    return _load_model("drafter", dtype)


def _load_model(name: str, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    from specdec.models.loading import checked_dtype

    with as_file(files(__package__) / name) as folder:
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=checked_dtype(dtype), use_safetensors=True).eval()
    loaded.name_or_path = f"specdec's built-in {name}"  # rather than where it happens to be installed
    return loaded


def head_folder() -> Path:
    """The folder of the built-in model's EAGLE-3 head, for ``eagle3:head=FOLDER``."""
    return Path(str(files(__package__) / "head"))


def prompts() -> list[Prompt]:
    """Return the shipped prompts, six of each category."""
    text = (files(__package__) / "prompts.json").read_text(encoding="utf-8")
    return [Prompt(**entry) for entry in json.loads(text)]
