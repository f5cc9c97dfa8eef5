"""Steps and tokens of the published package, ``lade`` 0.0.2, for given prompts.

Runs in an environment of its own, because the package holds on to an old transformers and patches its classes:

    python3 -m venv lade_env
    lade_env/bin/pip install torch transformers==4.34.1 "numpy<2" sentencepiece
    lade_env/bin/pip install --no-deps lade==0.0.2
    lade_env/bin/python benchmarks/lade_peer.py --model FOLDER --prompts FILE.json --out OUT.json

FILE.json is a list of prompts, each a list of token ids. OUT.json is a list with a ``tokens`` and a ``steps`` for each
prompt; a step is a forward pass, the prefill among them. The end token is switched off: every prompt gets
exactly ``--max-new-tokens`` tokens.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import lade
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class Counter:
    """Counts the calls of the model's forward: the package drives it through this one method."""

    def __init__(self, model: Any) -> None:
        self.steps = 0
        self._forward = model.jforward_multilevel
        model.jforward_multilevel = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return self._forward(*args, **kwargs)


def load(folder: Path) -> LlamaForCausalLM:
    """The model of a checkpoint folder, whose configuration may have the keys of a later transformers."""
    values = json.loads((folder / "config.json").read_text())
    rope = values.pop("rope_parameters", {})
    if rope.get("rope_type", "default") != "default":
        raise SystemExit(f"transformers 4.34 knows no rope of type {rope['rope_type']}")
    values["rope_theta"] = rope.get("rope_theta", values.get("rope_theta", 10000.0))
    values["torch_dtype"] = "float32"
    config = LlamaConfig(**{**values, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None})
    hidden, heads = config.hidden_size, config.num_attention_heads
    if values.get("head_dim", hidden // heads) != hidden // heads:
        raise SystemExit("transformers 4.34 knows no head_dim other than hidden_size / num_attention_heads")
    model = LlamaForCausalLM.from_pretrained(folder, config=config)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = None
    return model.eval()


def decode(model: LlamaForCausalLM, counter: Counter, prompt: list[int], max_new_tokens: int) -> dict[str, Any]:
    """One prompt's new tokens and steps."""
    counter.steps = 0
    input_ids = torch.tensor([prompt])
    output = model.generate(
        input_ids, attention_mask=torch.ones_like(input_ids), do_sample=False, max_new_tokens=max_new_tokens
    )
    return {"tokens": output[0, len(prompt) :].tolist(), "steps": counter.steps}


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps and tokens of lade 0.0.2.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--N", type=int, default=5)
    parser.add_argument("--W", type=int, default=7)
    parser.add_argument("--G", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    os.environ["USE_LADE"] = "1"
    lade.augment_all()
    lade.config_lade(LEVEL=args.N, WINDOW_SIZE=args.W, GUESS_SET_SIZE=args.G, DEBUG=0)
    model = load(args.model)
    counter = Counter(model)
    prompts = json.loads(args.prompts.read_text())
    rows = [decode(model, counter, prompt, args.max_new_tokens) for prompt in prompts]
    args.out.write_text(json.dumps(rows))
    num_tokens, num_steps = sum(len(row["tokens"]) for row in rows), sum(row["steps"] for row in rows)
    print(f"N={args.N} W={args.W} G={args.G}: {num_tokens} tokens in {num_steps} steps")


if __name__ == "__main__":
    main()
