"""Converts a GGUF file of a Llama model to transformers checkpoints, and computes the digest of a checkpoint."""

import hashlib
from pathlib import Path

from specdec.machine.extras import needs

DTYPES = "float32", "bfloat16"
WEIGHTS = "model.safetensors"


def check_libraries() -> None:
    """Raise RequestError if a library that conversions need isn't installed, with the command that installs it."""
    for library in ("gguf", "accelerate"):
        needs(library, "real-model", "converting")


def convert(gguf: Path, folder: Path) -> None:
    """Write a checkpoint for each dtype, in a folder of that name: configuration, weights, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    settings = loaded.config.to_dict()
    del settings["quantization_config"]  # a model that names one can't be saved
    settings.pop("_model_name_or_path", None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder / "float32")
    AutoModelForCausalLM.from_pretrained(folder / "float32", dtype=torch.bfloat16).save_pretrained(folder / "bfloat16")
    for dtype in DTYPES:
        tokenizer.save_pretrained(folder / dtype)


def weights_digest(file: Path) -> str:
    """Return the sha256 of names, dtypes, shapes and bytes of a safetensors file's tensors, in the order of names."""
    import torch
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(file, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
