"""The published package of lookahead decoding, ``lade`` 0.0.2.

    lade:N=5,W=7,G=7

It needs an old transformers and patches its classes, so it has an environment of its own.
"""

import json
import os
from typing import Any

import lade
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.peers.worker import Arguments, Decode, Decoded, serve


class _Counter:
    """Counts calls of the model's forward, the only method through which the package drives it."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        self._forward = model.jforward_multilevel
        model.jforward_multilevel = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._forward(*args, **kwargs)


def load(arguments: Arguments) -> LlamaForCausalLM:
    """Load a checkpoint whose configuration may have keys of a later transformers."""
    if arguments.eos:
        raise SystemExit("lade finds the end of a text too late to be compared: leave lade or --end-of-text out")
    os.environ["USE_LADE"] = "1"  # read at every call
    lade.augment_all()
    values = json.loads((arguments.model / "config.json").read_text())
    rope = values.pop("rope_parameters", {})
    if rope.get("rope_type", "default") != "default":
        raise SystemExit(f"transformers 4.34 knows no rope of type {rope['rope_type']}")
    values["rope_theta"] = rope.get("rope_theta", values.get("rope_theta", 10000.0))
    values.pop("dtype", None)
    config = LlamaConfig(**{**values, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None})
    if values.get("head_dim", 0) not in (0, config.hidden_size // config.num_attention_heads):
        raise SystemExit("transformers 4.34 knows no head_dim other than hidden_size / num_attention_heads")
    model = LlamaForCausalLM.from_pretrained(
        arguments.model, config=config, torch_dtype=getattr(torch, arguments.dtype)
    )
    model.generation_config.eos_token_id = None  # a run of tokens would be cut late, and one id alone is looked for
    model.generation_config.pad_token_id = None
    return model.eval()


def prepare(model: LlamaForCausalLM, arguments: Arguments) -> Decode:
    sizes = {"N": 5, "W": 7, "G": 7, **arguments.options}
    lade.config_lade(LEVEL=sizes["N"], WINDOW_SIZE=sizes["W"], GUESS_SET_SIZE=sizes["G"], DEBUG=0)
    counter = _Counter(model)

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        ids, before = torch.tensor([prompt]), counter.count
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens
        )
        return Decoded(output[0, len(prompt) :].tolist(), counter.count - before)

    return decode


if __name__ == "__main__":
    serve(load, prepare, ["transformers", "lade"])
