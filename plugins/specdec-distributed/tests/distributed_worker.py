"""One rank of a group, for tests, in a process of its own: what rank 0 found out is printed as JSON.

The arguments are RANK SIZE FILE FOLDER SPLIT NAME SECONDS. FILE is where ranks meet, FOLDER has the model, SPLIT is
tensors or branches, and NAME is a function below.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from specdec_distributed import group
from specdec_distributed.backend import DistributedBackend
from specdec_distributed.rank_worker import RankWorker
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from specdec import Budget, Drafter, DraftTree, Generator, ModelError, Proposer, Request, SpecdecError
from specdec.masks import DenseCompiler
from specdec.models.weights import is_sharded
from specdec.strategies import DraftModelProposer
from specdec.target import Target
from specdec.testing import check_backend

STRATEGIES = ("lookahead:N=4,W=4,G=4", "jacobi:n=4", "prompt_lookup", "suffix+token_recycling", "auto")
SHARDED_STRATEGIES = STRATEGIES[0], "auto"  # sharded ranks run whole trees, of any strategy
PROMPTS = [[1, 2, 3, 4, 5, 1, 2], list(range(1, 40)), [7], [9, 8, 7, 9, 8]]
NUM_TOKENS = 12
NAN_ID = 95


def texts(model: Any) -> dict[str, Any]:
    """Texts of every strategy, greedy and sampled, alone and side by side, and plain decoding's."""
    found: dict[str, Any] = {"wrong": [], "plain": []}
    with Generator(model, proposer="autoregressive", backend="distributed") as generator:
        found["numerics"] = str(generator.numerics)
        for temperature in (0.0, 1.0):
            asked = {"max_new_tokens": NUM_TOKENS, "temperature": temperature, "seed": 3}
            found["plain"].append([each.token_ids for each in generator.generate(PROMPTS, **asked)])
    drafting = DraftModelProposer(model=AutoModelForCausalLM.from_pretrained(sys.argv[4]).eval(), num_tokens=3)
    strategies = SHARDED_STRATEGIES if is_sharded(model) else (*STRATEGIES, drafting)
    for strategy in strategies:
        with Generator(model, proposer=strategy, backend="distributed") as generator:
            for plain, temperature in zip(found["plain"], (0.0, 1.0), strict=True):
                asked = {"max_new_tokens": NUM_TOKENS, "temperature": temperature, "seed": 3}
                alone = [generator.generate(prompt, **asked).token_ids for prompt in PROMPTS[:2]]
                together = [each.token_ids for each in generator.generate(PROMPTS, **asked)]
                if alone != plain[:2] or together != plain:
                    found["wrong"].append([str(strategy), temperature])
    return found


def several_at_once(model: Any) -> dict[str, Any]:
    """Two generators in two threads."""
    ways = [Generator(model, proposer=name, backend="distributed") for name in ("autoregressive", STRATEGIES[0])]
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(way.generate, PROMPTS, max_new_tokens=NUM_TOKENS, temperature=0.0) for way in ways]
        texts = [[each.token_ids for each in one.result()] for one in asked]
    return {"wrong": [] if texts[0] == texts[1] else texts}


def early_exit(model: Any) -> dict[str, Any]:
    """Drafts by the target's own first layers, on rank 0, and a copy of the model."""
    plain = Generator(model, proposer="autoregressive", backend="distributed").generate(PROMPTS[0], max_new_tokens=9)
    drafted = Generator(model, proposer="draft_model:layers=1", backend="distributed")
    alone = Generator(deepcopy(model), proposer="autoregressive")
    texts = [each.generate(PROMPTS[0], max_new_tokens=9).token_ids for each in (drafted, alone)]
    return {"wrong": [text for text in texts if text != plain.token_ids]}


def spoiled(model: Any) -> dict[str, Any]:
    """Drafts with a token whose vector is NaN, in the share of another rank."""

    class Spoiling(Drafter):
        def propose(self, budget: Budget) -> DraftTree:
            tree = DraftTree(self.request.root)
            for token in range(10, 18):
                tree.add(0, token)
            tree.add(tree.add(0, 18), NAN_ID)
            return tree

    class Spoil(Proposer):
        def start(self, request: Request) -> Drafter:
            return Spoiling(request)

    asked = {"max_new_tokens": NUM_TOKENS, "temperature": 0.0}
    plain = Generator(model, proposer="autoregressive", backend="distributed")
    drafted = Generator(model, proposer=Spoil(), backend="distributed")
    expected, found = (way.generate(PROMPTS, **asked) for way in (plain, drafted))
    texts = [(one.token_ids, other.token_ids) for one, other in zip(expected, found, strict=True)]
    return {"numerics": str(drafted.numerics), "wrong": [text for text in texts if text[0] != text[1]]}


def short_of_memory(model: Any) -> dict[str, Any]:
    """An error of rank 0's own, in the middle of a request, and another request behind it."""
    generator = Generator(model, proposer=STRATEGIES[0], backend="distributed")
    expected = generator.generate(PROMPTS[0], max_new_tokens=NUM_TOKENS, temperature=0.0).token_ids
    own = generator._binding.target.backend._worker.backend  # type: ignore[attr-defined]
    forward = own.forward

    def short(layout: Any) -> Any:
        own.forward = forward
        raise RuntimeError("out of memory")

    own.forward = short
    try:
        generator.generate(PROMPTS[0], max_new_tokens=NUM_TOKENS, temperature=0.0)
    except SpecdecError as error:
        fault = str(error)
    again = generator.generate(PROMPTS[0], max_new_tokens=NUM_TOKENS, temperature=0.0).token_ids
    return {"error": fault, "wrong": [] if again == expected else [again]}


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


def laws(model: Any) -> dict[str, Any]:
    """A backend's laws, against the whole model in this process."""
    whole = AutoModelForCausalLM.from_pretrained(sys.argv[4]).eval()

    def plain(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return whole(torch.tensor([tokens])).logits[0, -1]

    backend = DistributedBackend.load(model, DenseCompiler())
    backend.shapes = replace(backend.shapes, chunk=8)
    for seed in range(3):
        check_backend(backend, plain, seed=seed, tolerance=1e-4)
    backend.close()
    return {"wrong": []}


def let_go(model: Any) -> dict[str, Any]:
    """Generators that nobody closes, and copies that nobody needs any more: each rank's copies and parts."""
    for _ in range(3):
        Generator(model, proposer="autoregressive", backend="distributed").generate(PROMPTS[0], max_new_tokens=2)
    backend = DistributedBackend.load(model, DenseCompiler())
    target = Target(backend, DenseCompiler())
    row = target.open(8)
    target.read(row, PROMPTS[0])
    copies = [target.copy_block(row, 0, stop) for stop in range(1, 5)]
    del copies[1:]
    gc.collect()
    counts = backend._ask(backend._worker.num_passes, "counts")
    return {"counts": [counts[rank] for rank in sorted(counts)]}


def _counts(part: RankWorker) -> dict[int, list[int]]:
    gc.collect()
    parts = [each for each in gc.get_objects() if isinstance(each, RankWorker)]
    return {dist.get_rank(): [len(part._held), len(parts)]}


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
            found = {"error": str(error), "seconds": time.monotonic() - began, "tokens": tokens}
        try:
            generator.generate(PROMPTS[0], max_new_tokens=2)
        except ModelError as error:
            return {**found, "again": str(error)}


def run(arguments: Sequence[str], out: Path, err: Path) -> None:
    """Be a rank, whose output and errors go to these files."""
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["rank", *arguments]
    torch.set_num_threads(1)
    rank, size, file, folder, split, name = arguments[:6]
    seconds = float(arguments[6])
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size), timeout=timedelta(seconds=seconds)
    )
    sharded = {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=int(size))} if split == "tensors" else {}
    model = AutoModelForCausalLM.from_pretrained(folder, **sharded).eval()
    assert is_sharded(model) == (split == "tensors")
    RankWorker.counts = _counts  # type: ignore[attr-defined]  # which `let_go` asks every rank for
    if name == "spoiled":
        with torch.no_grad():
            model.get_input_embeddings().weight[NAN_ID] = torch.nan
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
