"""Compares specdec's drafts inside a real vLLM with vLLM without drafts and with vLLM's own drafters.

    make vllm-check
    python plugins/specdec-vllm/check.py --model smollm2 --prompts FILE --rounds 3

Each contender is an engine in a process of its own. It decodes 32 requests at once, with different lengths, of which
some are aborted early, and then eight of them one at a time. The tokens must be those of vLLM without drafts.
Figures are medians of rounds, in which contenders take turns, after a warm-up round with other prompts. All engines are
in memory, 3 GB each for SmolLM2. Without ``--model`` a tiny random Llama is made.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NUM_REQUESTS, NUM_ALONE, LONGEST_PROMPT, NUM_DRAFTED = 32, 8, 512, 8
ABORTED = {5: 9, 11: 3, 17: 20, 30: 14}  # by request, the step after which it is aborted
TOPICS = (
    "the river Rhine", "a heap", "sorting a list in Python", "the French revolution", "bread", "the speed of light",
    "chess", "a bicycle",
)  # fmt: skip
TASKS = (
    "Explain {} in three sentences.", "List ten facts about {}, and then repeat the list.", "Write a poem about {}.",
    "Write a Python function to do with {}, with a docstring and tests.", "Summarise what you know of {} twice.",
    "Ask five questions about {} and answer each.", "Translate 'I like {}' into five languages.",
    "Write a dialogue between two friends about {}.",
)  # fmt: skip
CONTENDERS: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm synchronous": {},  # as vLLM runs with any drafter that isn't a model: no step is scheduled during a pass
    "vllm ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "vllm suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "vllm empty drafts": {"method": "custom_class", "model": "check.EmptyDrafts"},
    "specdec prompt_lookup": {"method": "custom_class", "model": "specdec_vllm.Proposer"},
    "specdec suffix": {"method": "custom_class", "model": "specdec_vllm.Proposer"},
    "specdec auto": {"method": "custom_class", "model": "specdec_vllm.Proposer"},
}


class EmptyDrafts:
    """A custom proposer class that drafts nothing: what any such class costs vLLM."""

    def __init__(self, vllm_config: Any) -> None: ...

    def load_model(self, *_: Any, **__: Any) -> None: ...

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return an empty draft for each row."""
        return [[] for _ in sampled_token_ids]


def engine_for(model: str, contender: str) -> Any:
    """Return an engine in this process for a contender."""
    from vllm import EngineArgs, LLMEngine

    speculative = {**CONTENDERS[contender], "num_speculative_tokens": NUM_DRAFTED} if CONTENDERS[contender] else None
    package, _, strategy = contender.partition(" ")
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="float32",
            max_num_seqs=NUM_REQUESTS,
            max_model_len=1024,
            max_num_batched_tokens=512,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            speculative_config=speculative,
            additional_config={"specdec": strategy} if package == "specdec" else {},
            async_scheduling=False if strategy == "synchronous" else None,
        )
    )


def decode(engine: Any, prompts: Sequence[Sequence[int]], aborted: dict[int, int], name: str) -> dict[str, Any]:
    """Decode prompts together; return each one's tokens, the seconds, and the number of steps with emitted tokens."""
    from vllm import SamplingParams

    began, tokens, num_row_steps, num_steps = time.perf_counter(), dict[int, list[int]](), 0, 0
    for number, prompt in enumerate(prompts):
        length = 24 + 13 * number % 72
        sampling = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        engine.add_request(f"{name}-{number}", {"prompt_token_ids": list(prompt)}, sampling)
    while engine.has_unfinished_requests():
        for output in engine.step():
            number = int(output.request_id.rpartition("-")[2])
            emitted = list(output.outputs[0].token_ids)
            num_row_steps += len(emitted) > len(tokens.get(number, ()))
            tokens[number] = emitted
        num_steps += 1
        for number, step in aborted.items():
            if step == num_steps:
                engine.abort_request([f"{name}-{number}"])
    seconds = time.perf_counter() - began
    return {"tokens": [tokens.get(number, []) for number in range(len(prompts))], "seconds": seconds,
            "row_steps": num_row_steps}  # fmt: skip


def serve(model: str, contender: str) -> None:
    """Read lists of prompts, a line each, and write their results as lines; the engine's output is redirected."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = engine_for(model, contender)
    print("ready", file=answers, flush=True)
    before = _metrics(engine)
    for number, line in enumerate(sys.stdin):
        prompts = json.loads(line)
        together = decode(engine, prompts, ABORTED, f"all{number}")
        alone = [decode(engine, [prompt], {}, f"one{number}-{each}") for each, prompt in enumerate(prompts[:NUM_ALONE])]
        counted = _metrics(engine)
        result = {"together": together, "alone": alone, "metrics": counted - before}
        print(json.dumps(result), file=answers, flush=True)
        before = counted


def _metrics(engine: Any) -> Counter[str]:
    """Return vLLM's own counts of draft and accepted tokens since its start."""
    prefix = "vllm:spec_decode_num_"
    named = [each for each in engine.get_metrics() if each.name.startswith(prefix) and hasattr(each, "value")]
    return Counter({each.name.removeprefix(prefix): each.value for each in named})


def tiny_model(folder: Path) -> str:
    """Save a random Llama."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, initializer_range=0.05, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def prompts_for(model: str, file: Path | None) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts as token ids: chats from a JSON Lines file or a few templates; random ones without a tokenizer.

    Returns:
        Prompts to measure with, and others for the warm-up.
    """
    if not Path(model, "tokenizer.json").exists():
        rng = random.Random(0)
        any_of = [[rng.randrange(1, 256) for _ in range(rng.randint(4, 60))] for _ in range(2 * NUM_REQUESTS)]
        return any_of[:NUM_REQUESTS], any_of[NUM_REQUESTS:]
    found = _chats(model, _texts(file))
    return found[:NUM_REQUESTS], found[NUM_REQUESTS : 2 * NUM_REQUESTS] or found


def _texts(file: Path | None) -> list[str]:
    if file is None:
        return [task.format(topic) for topic in TOPICS for task in TASKS]
    lines = map(json.loads, file.read_text(encoding="utf-8-sig").splitlines())
    return [line.get("prompt") or line["turns"][0] for line in lines]


def _chats(model: str, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts, evenly spread, as chats; without those that are too long."""
    from transformers import AutoTokenizer

    tokenizer, found = AutoTokenizer.from_pretrained(model), list[list[int]]()
    for text in texts[:: max(1, len(texts) // (3 * NUM_REQUESTS))]:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        ids = list(ids if isinstance(ids, list) else ids["input_ids"])
        if len(ids) <= LONGEST_PROMPT:
            found.append(ids)
    return found


def faults(base: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Return the requests whose tokens differ from plain decoding's; aborted ones are compared up to their ends."""
    wrong = []
    for number, (expected, found) in enumerate(zip(base["together"]["tokens"], run["together"]["tokens"], strict=True)):
        common = min(len(expected), len(found)) if number in ABORTED else max(len(expected), len(found))
        if expected[:common] != found[:common]:
            wrong.append(f"request {number} of 32")
    for number, (expected, found) in enumerate(zip(base["alone"], run["alone"], strict=True)):
        if expected["tokens"] != found["tokens"]:
            wrong.append(f"request {number} alone")
    return wrong


def per_second(runs: Sequence[dict[str, Any]]) -> float:
    """Return tokens per second over several runs."""
    return sum(len(each) for run in runs for each in run["tokens"]) / sum(run["seconds"] for run in runs)


def per_step(runs: Sequence[dict[str, Any]]) -> float:
    """Return the tokens per step in which a row emits any."""
    return sum(len(each) for run in runs for each in run["tokens"]) / sum(run["row_steps"] for run in runs)


def table(rounds: list[dict[str, dict[str, Any]]]) -> str:
    """Return the table, with a line for each contender."""
    lines = [
        "| | tokens per step, 32 at once | tokens/s | one at a time | tokens/s | drafted | accepted |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in rounds[0]:
        cells = []
        for runs in ([[each[name]["together"]] for each in rounds], [each[name]["alone"] for each in rounds]):
            rates = [per_second(run) for run in runs]
            spread = f" ({min(rates):.0f} to {max(rates):.0f})" if len(rates) > 1 else ""
            cells += [f"{per_step(runs[0]):.2f}", f"{statistics.median(rates):.0f}{spread}"]
        metrics = rounds[-1][name]["metrics"]
        drafted, accepted = metrics.get("draft_tokens", 0), metrics.get("accepted_tokens", 0)
        cells += [f"{drafted}", f"{accepted / drafted:.0%}" if drafted else "–"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder, or smollm2 (default: a tiny random Llama)")
    parser.add_argument("--prompts", type=Path, help="a JSON Lines file (default: a few chats)")
    parser.add_argument("--contender", action="append", choices=[*CONTENDERS], help="vllm and these (default: all)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", default=str(os.cpu_count()))
    parser.add_argument("--out", type=Path, help="write tokens and times to this file, as JSON")
    parser.add_argument("--serve", choices=[*CONTENDERS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.model, given.serve)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rounds = _measured(given, given.model or tiny_model(Path(folder)))
    if given.out:
        given.out.write_text(json.dumps(rounds))
    print(table(rounds))
    wrong = [f"{name}: {fault}" for each in rounds for name, run in each.items() for fault in faults(each["vllm"], run)]
    print("\n".join(wrong) or "all tokens are those of vLLM without drafts")
    return int(any(fault.startswith("specdec") for fault in wrong))


def _measured(given: argparse.Namespace, model: str) -> list[dict[str, dict[str, Any]]]:
    """The runs of each round, by contender."""
    if model == "smollm2":
        from specdec.demo import smollm2

        model = str(smollm2.checkpoint("float32"))
    names = dict.fromkeys(["vllm", *(given.contender or CONTENDERS)])
    prompts, others = prompts_for(model, given.prompts)
    workers = {name: _started(model, name, given.threads) for name in names}
    try:
        for name, worker in workers.items():
            _next_line(worker, name)  # ready
        for name, worker in workers.items():
            _asked(worker, others, name)
        return [{name: _asked(worker, prompts, name) for name, worker in workers.items()} for _ in range(given.rounds)]
    finally:
        for worker in workers.values():
            worker.kill()


def _started(model: str, name: str, threads: str) -> "subprocess.Popen[str]":
    own = {
        "OMP_NUM_THREADS": threads,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "KMP_BLOCKTIME": "5",
    }
    openmp = Path(sys.prefix, "lib", "libiomp5.so")
    if openmp.exists():
        own["LD_PRELOAD"] = str(openmp)
    command = [sys.executable, __file__, "--model", model, "--serve", name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, **own}, text=True, **pipes)


def _asked(worker: "subprocess.Popen[str]", prompts: list[list[int]], name: str) -> dict[str, Any]:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(prompts) + "\n")
    worker.stdin.flush()
    answer: dict[str, Any] = json.loads(_next_line(worker, name))
    return answer


def _next_line(worker: "subprocess.Popen[str]", name: str) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"{name}: the engine has ended; its output is above")
    return line


if __name__ == "__main__":
    sys.exit(main())
