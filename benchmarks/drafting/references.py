"""What a reference gains, and what a wrong one costs: an earlier transcript, and a text to correct.

    python -m benchmarks references --model smollm2 --dtype float32 --chat --prompts spec_bench.jsonl \\
        --per-category 4 --fewest-words 50 --max-new-tokens 128 --threads 1 --out build/references.jsonl
    python -m benchmarks references --tables build/references.jsonl

The model's greedy answers are the documents; a script changes some of their words: replaced by a word of another
document, left out, or written twice.

- ``transcript``: the prompt is the question alone, and the reference the changed answer.
- ``correction``: the prompt also has the changed answer, as a draft to revise; the model starts to write the answer
  over, after some words of it, and mostly copies the draft. ``auto`` finds it in the prompt.

Contenders, each with a generator of its own for the whole run: plain decoding, ``auto`` without a reference, with the
changed document, with a wrong reference (another document), and with wrong ones each after another document's right
one. All decode a prompt in random order before the next prompt. Speed is tokens per second of whole requests, as a
ratio to ``auto`` without a reference on the same prompt: the median over prompts and repeats, with quartiles, and the
ratio of sums with a bootstrap interval. On a machine with other work, ``--threads 1`` and ``--clock cpu_seconds``
compare the processor's time.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model
from benchmarks.prompts import EncodedPrompt, add_prompt_options, encoded_prompts
from benchmarks.tables import table
from specdec import Generator, Result
from specdec.apps.comparison.statistics import speed_ratio

PLAIN, AUTO, RIGHT, WRONG = "autoregressive", "auto", "auto, reference", "auto, wrong reference"
IN_TURN, ALONE = "auto, wrong references among right ones", "reference alone"
NAMES = PLAIN, AUTO, RIGHT, ALONE, WRONG, IN_TURN
TASKS = "transcript", "correction"
Run = dict[str, Any]


def changed(text: str, words: Sequence[str], share: float, rng: random.Random) -> str:
    """Return a text with a share of its words replaced, left out or written twice."""
    parts = text.split(" ")
    for place in rng.sample(range(len(parts)), k=round(share * len(parts))):
        parts[place] = rng.choice([rng.choice(words), rng.choice(words), "", f"{parts[place]} {parts[place]}"])
    return " ".join(part for part in parts if part)


def documents(generator: Generator, prompts: Sequence[EncodedPrompt], arguments: argparse.Namespace) -> list[Run]:
    """Return each prompt's answer and the changed answer; prompts with short answers are left out."""
    found = list[Run]()
    for prompt in prompts:
        text = generator.generate(prompt.ids, max_new_tokens=arguments.max_new_tokens).text or ""
        if len(text.split()) >= arguments.fewest_words:
            found.append({"ids": prompt.ids, "text": text})
        if len(found) == arguments.num_documents:
            break
    rng = random.Random(0)
    words = [word for each in found for word in each["text"].split()]
    for each in found:
        each["changed"] = changed(each["text"], words, arguments.share, rng)
    return found


def prompt_of(task: str, document: Run, tokenizer: Any) -> list[int]:
    """Return a task's prompt."""
    if task == "transcript":
        return list(document["ids"])
    ask = "Correct the mistakes in this text. Reply with the corrected text and nothing else.\n\n"
    messages = [{"role": "user", "content": ask + document["changed"]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    start = " ".join(document["text"].split(" ")[:6])
    return list(tokenizer(text + start, add_special_tokens=False)["input_ids"])


def measure(arguments: argparse.Namespace) -> None:
    """Append a line per contender, task, document and repeat to ``--out``."""
    model, tokenizer = load_model(arguments)
    names = [PLAIN, AUTO, *(name for name in NAMES[2:] if name in arguments.contender)]
    rng, common = random.Random(1), {"machine": facts(), "dtype": arguments.dtype, "share": arguments.share}
    with ExitStack() as stack:
        made = {name: stack.enter_context(_generator(name, model, tokenizer, arguments)) for name in names}
        if not arguments.documents.exists():
            found = documents(made[PLAIN], encoded_prompts(arguments, tokenizer), arguments)
            arguments.documents.write_text(json.dumps(found), "utf-8")
        texts: list[Run] = json.loads(arguments.documents.read_text("utf-8"))
        for generator in made.values():  # what is measured when it is first needed, and packed
            generator.generate(texts[0]["ids"], max_new_tokens=16)
            generator.forget()
        for repeat, task, index in product(range(arguments.repeats), arguments.task, range(len(texts))):
            right, wrong = texts[index]["changed"], texts[(index + len(texts) // 2) % len(texts)]["text"]
            prompt, most = prompt_of(task, texts[index], tokenizer), arguments.max_new_tokens
            if IN_TURN in names:
                before = prompt_of(task, texts[index - 1], tokenizer)
                made[IN_TURN].generate(before, max_new_tokens=most, reference=texts[index - 1]["changed"])
            runs = dict[str, Run]()
            for name in rng.sample(names, k=len(names)):
                reference = {PLAIN: None, AUTO: None, RIGHT: right, ALONE: right}.get(name, wrong)
                began, began_cpu = time.perf_counter(), time.process_time()
                result = made[name].generate(prompt, max_new_tokens=most, reference=reference)
                times = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - began_cpu}
                place = {"name": name, "task": task, "index": index, "repeat": repeat}
                runs[name] = {**common, **place, **times, **counts(result)}
            plain = runs[PLAIN]["ids"]
            for run in runs.values():
                run["is_same"] = run.pop("ids") == plain
            with arguments.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(run) + "\n" for run in runs.values())
            print(f"{task} {index + 1} of {len(texts)}, repeat {repeat + 1}", file=sys.stderr, flush=True)


def counts(result: Result) -> Run:
    """Return what a run has besides its times."""
    stats = result.stats
    return {"tokens": stats.num_tokens, "steps": stats.steps, "nodes": stats.num_nodes, "ids": result.token_ids}


def _generator(name: str, model: Any, tokenizer: Any, arguments: argparse.Namespace) -> Generator:
    proposer = {PLAIN: PLAIN, ALONE: "reference"}.get(name, f"auto:num_nodes={arguments.num_nodes}")
    return Generator(model, tokenizer, proposer=proposer, numerics=arguments.numerics, backend=arguments.backend)


def report(runs: Sequence[Run], clock: str) -> str:
    """Return a table for each task; ``clock`` is the name of the runs' time."""
    parts = []
    for task in dict.fromkeys(run["task"] for run in runs):
        own = {name: [run for run in runs if (run["name"], run["task"]) == (name, task)] for name in NAMES}
        parts.append(f"{task}, {runs[0]['dtype']}, {len({run['index'] for run in own[AUTO]})} documents")
        lines = []
        for name, rows in own.items():
            if not rows:
                continue
            tokens, steps, nodes, seconds = (
                sum(run[what] for run in rows) for what in ("tokens", "steps", "nodes", clock)
            )
            each = [other[clock] / run[clock] for run, other in zip(rows, own[AUTO], strict=True)]
            low, middle, high = np.percentile(each, [25, 50, 75])
            lines.append([
                name, f"{tokens / steps:.2f}", f"{nodes / steps:.1f}", f"{tokens / seconds:.0f}",
                f"{middle:.2f} [{low:.2f}, {high:.2f}]",
                str(speed_ratio(_speeds(rows, clock), _speeds(own[AUTO], clock))),
                str(sum(not run["is_same"] for run in rows)),
            ])  # fmt: skip
        heading = "contender", "tokens/step", "nodes/step", "tokens/s", "times auto: median [quartiles]", "of sums"
        parts.append(table([*heading, "texts that differ"], lines))
    return "\n\n".join(parts)


def _speeds(runs: Sequence[Run], clock: str) -> np.ndarray:
    """Return tokens and seconds by document, (2, documents)."""
    found = {run["index"]: np.zeros(2) for run in runs}
    for run in runs:
        found[run["index"]] += run["tokens"], run[clock]
    return np.array([*found.values()]).T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--contender", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--numerics", choices=("exact", "fast", "auto"), default="auto")
    parser.add_argument("--backend", default="hf")
    parser.add_argument("--num-nodes", type=int, default=32, help="candidates of a draft of auto at most")
    parser.add_argument("--share", type=float, default=0.03, help="share of words that are changed")
    parser.add_argument("--num-documents", type=int, default=20)
    parser.add_argument("--fewest-words", type=int, default=100, help="of a document")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--documents", type=Path, default=Path("build/reference_documents.json"))
    parser.add_argument("--clock", choices=("seconds", "cpu_seconds"), default="seconds", help="of the tables")
    parser.add_argument("--out", type=Path, default=Path("build/references.jsonl"))
    parser.add_argument("--tables", type=Path, help="only print what this file has")
    arguments = parser.parse_args()
    if arguments.tables is None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        measure(arguments)
    lines = (arguments.tables or arguments.out).read_text("utf-8").splitlines()
    print(report([json.loads(line) for line in lines], arguments.clock))


if __name__ == "__main__":
    main()
