"""One rank of a group, for tests: what rank 0 found out is printed as JSON.

    python worker.py RANK SIZE FILE FOLDER SPLIT NAME [ARGUMENTS…]

FILE is where ranks meet, FOLDER has the model, SPLIT is tensors or branches, and NAME is a function below.
"""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from specdec import Generator, ModelError
from specdec.distributed import group

STRATEGIES = ("lookahead:N=4,W=4,G=4", "jacobi:n=4", "prompt_lookup", "suffix+token_recycling", "auto")
PROMPTS = [[1, 2, 3, 4, 5, 1, 2], list(range(1, 40)), [7], [9, 8, 7, 9, 8]]
NUM_TOKENS = 24


def texts(model: Any) -> dict[str, Any]:
    """Texts of every strategy, greedy and sampled, alone and side by side, and plain decoding's."""
    found: dict[str, Any] = {"wrong": [], "plain": []}
    with Generator(model, proposer="autoregressive", backend="distributed") as generator:
        found["numerics"] = str(generator.numerics)
        for temperature in (0.0, 1.0):
            asked = {"max_new_tokens": NUM_TOKENS, "temperature": temperature, "seed": 3}
            found["plain"].append([each.token_ids for each in generator.generate(PROMPTS, **asked)])
    for strategy in STRATEGIES:
        with Generator(model, proposer=strategy, backend="distributed") as generator:
            for plain, temperature in zip(found["plain"], (0.0, 1.0), strict=True):
                asked = {"max_new_tokens": NUM_TOKENS, "temperature": temperature, "seed": 3}
                alone = [generator.generate(prompt, **asked).token_ids for prompt in PROMPTS[:2]]
                together = [each.token_ids for each in generator.generate(PROMPTS, **asked)]
                if alone != plain[:2] or together != plain:
                    found["wrong"].append([strategy, temperature])
    return found


def logits(model: Any) -> dict[str, Any]:
    """The logits of a text's last token, as the group computes them."""
    with Generator(model, proposer="autoregressive", backend="distributed") as generator:
        records: list[Any] = []
        generator.generate(PROMPTS[1], max_new_tokens=1, keeps_logits=True, on_step=records.append)
        return {"logits": records[-1].outcomes[0].logits[0].tolist()}


def signals(model: Any) -> dict[str, Any]:
    """Texts of rules that read whole laws, and of strategies that read likely tokens."""
    found = []
    for verifier in ("match", "rejection", "traversal"):
        with Generator(model, proposer="token_recycling", verifier=verifier, backend="distributed") as generator:
            result = generator.generate(PROMPTS[0], max_new_tokens=NUM_TOKENS, temperature=0.0)
            found.append(result.token_ids)
    return {"texts": found}


def endless(model: Any) -> dict[str, Any]:
    """Decode until another rank ends, and tell the error and what was written before."""
    tokens: list[int] = []
    with Generator(model, proposer="lookahead:N=4,W=4,G=4", backend="distributed") as generator:
        print(json.dumps({"pid": os.getpid()}), flush=True)
        began = time.monotonic()
        try:
            while True:
                tokens.clear()
                for chunk in generator.stream(PROMPTS[0], max_new_tokens=200, temperature=0.0):
                    tokens += chunk.token_ids
                    began = time.monotonic()
        except ModelError as error:
            return {"error": str(error), "seconds": time.monotonic() - began, "tokens": tokens}


def main() -> None:
    rank, size, file, folder, split, name = sys.argv[1:7]
    torch.set_num_threads(1)
    seconds = float(sys.argv[7]) if len(sys.argv) > 7 else 60.0
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size), timeout=timedelta(seconds=seconds)
    )
    sharded = {"distributed_config": DistributedConfig(tp_plan="auto")} if split == "tensors" else {}
    model = AutoModelForCausalLM.from_pretrained(folder, **sharded).eval()
    if name == "mismatched" and rank == "1":
        with torch.no_grad():
            model.get_output_embeddings().weight[0, 0] += 1
    try:
        with group(model, seconds) as leads:
            if leads:
                print(json.dumps(globals()[name](model)), flush=True)
    except ModelError as error:
        print(json.dumps({"refusal": str(error)}), flush=True)
        sys.exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
