"""transformers' own ``generate``.

    transformers                                                               plain decoding
    transformers:prompt_lookup_num_tokens=10,max_matching_ngram_size=2         prompt lookup
    transformers:assistant=FOLDER,num_assistant_tokens=5,assistant_confidence_threshold=0.4
    transformers:weights=int8                                                  weights in 8 bits, or int4 for 4 bits

Options are ``generate``'s; with an assistant they are set on its generation config, where transformers reads them.
``assistant=demo_drafter`` is the built-in model's drafter; an assistant's memory counts as memory over the model's.

Weights are rounded at the load, all but the embeddings and the head: to 8 bits by quanto, which has a product of
bfloat16 and int8, and dequantises for float32; to 4 bits by bitsandbytes (``nf4``), which has a product for one row.
torchao's ``Int8WeightOnlyConfig`` dequantises in each pass on a CPU.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import BitsAndBytesConfig, QuantoConfig

from benchmarks.peers import models
from benchmarks.peers.worker import Arguments, Decode, Decoded, options, serve


class _Counter:
    """Counts a model's forward passes."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        model.register_forward_pre_hook(self._note)

    def _note(self, *_: Any) -> None:
        self.count += 1


def load(arguments: Arguments) -> Any:
    weights = options(arguments.method).get("weights", "model")
    return models.load(arguments.model, arguments.dtype, quantization_config=_rounding(weights, arguments.dtype))


def _rounding(weights: str, dtype: str) -> Any:
    """The quantiser's configuration; None for the checkpoint's weights."""
    if weights == "model":
        return None
    if weights == "int8":
        return QuantoConfig(weights="int8")
    if weights == "int4":
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    raise SystemExit(f"weights={weights}: there are model, int8 and int4")


def prepare(model: Any, arguments: Arguments) -> Decode:
    extra = options(models.with_drafter(arguments.method))
    extra.pop("weights", None)
    folder = extra.pop("assistant", None)
    if folder is not None:
        assistant = models.load(Path(folder), arguments.dtype)
        assistant.generation_config.update(**extra)
        extra = {"assistant_model": assistant}
    if arguments.eos:
        extra["eos_token_id"] = arguments.eos
    counter = _Counter(model)

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        ids, before = torch.tensor([prompt]), counter.count
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, **extra
        )
        return Decoded(output[0, len(prompt) :].tolist(), counter.count - before)

    return decode


if __name__ == "__main__":
    serve(load, prepare, ["transformers", "optimum-quanto", "bitsandbytes"])
