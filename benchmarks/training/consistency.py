"""Consistency training: tokens per step and loss of a model before and after, and is its text plain decoding's?

    python -m benchmarks consistency --out FOLDER [--model FOLDER] [--device cuda] [--dtype bfloat16] [--minutes 5]
        [--settings '{"learning_rate": 3e-4, "max_loss_increase": 0.5}']

Trains a copy of the model (``specdec train consistency``), then decodes prompts that neither was trained on with plain
decoding, ``jacobi`` and ``lookahead``, the original and the new model in turn. Texts of a model are compared with its
own plain decoding; how many plain texts of the two are equal shows that they are different models. Steps are counted,
not timed. Everything is written to FOLDER/consistency.json. If no model was better than the original, that file has the
training's losses (update, L_GC, L_AR) and evaluations alone. The exit code is 1 then, and if a text differs from its
model's plain decoding.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import facts, recorded
from benchmarks.models import add_model_options, description, load_model
from benchmarks.prompts import EncodedPrompt, add_prompt_options, encoded_prompts
from specdec import Generator
from specdec.models.loading import load_pretrained
from specdec.training import ConsistencySettings, Plan, Progress, TunedModel, Watch, train_consistency
from specdec.training.consistency_evaluation import loss_on
from specdec.training.packing import pack
from specdec.training.text import Text
from specdec.training.tuned_model import ConsistencyRun, NoBetterModelError

SECONDS_BETWEEN_LINES = 30.0
SEED = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument("--out", type=Path, required=True, help="the new model's folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: further fields of ConsistencySettings")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    model = model.to(arguments.device)
    prompts = encoded_prompts(arguments, tokenizer)
    print(f"{facts()}\n{description(model)}, on {arguments.device}", flush=True)
    began = time.perf_counter()
    values = {
        **recorded(),
        "machine": facts(),
        "device": arguments.device,
        "model": description(model),
        "arguments": {name: str(value) for name, value in vars(arguments).items()},
        "settings": settings_of(arguments).model_dump(),
    }
    try:
        tuned = trained(arguments, model, tokenizer)
    except NoBetterModelError as error:
        write(arguments.out, values | {"error": str(error), "training": {"run": asdict(error.run)}})
        print(*curve(error.run), sep="\n", flush=True)
        sys.exit(str(error))
    seconds = time.perf_counter() - began
    new = load_pretrained(str(tuned.folder), dtype=arguments.dtype, device=arguments.device)[0]
    found = {name: decoded(arguments, each, prompts) for name, each in (("before", model), ("after", new))}
    losses = losses_on(found["before"]["plain"], prompts, {"before": model, "after": new})
    values |= {
        "training": asdict(tuned) | {"folder": tuned.folder.name, "seconds": seconds},
        "loss_on_the_original_s_answers": losses,
        "prompts": {name: each["strategies"] for name, each in found.items()},
        "plain_texts_equal": equal_texts(found["before"]["plain"], found["after"]["plain"]),
        "num_prompts": len(prompts),
    }
    write(arguments.out, values)
    print(*curve(tuned.run), *table(tuned, values), sep="\n", flush=True)
    rows = [each for name in found for each in values["prompts"][name].values()]
    return int(any(each["equal"] != len(prompts) for each in rows))


def write(folder: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=1, default=str) + "\n"
    (folder / "consistency.json").write_text(text, encoding="utf-8")


def curve(run: ConsistencyRun) -> list[str]:
    """Return the evaluations as lines of Markdown, each with the mean losses of the updates before it."""
    lines = ["", "| updates | L_GC | L_AR | tokens per step | loss, held-out text |", "|---|---|---|---|---|"]
    previous = 0
    for update, found in run.evaluations:
        losses = np.array([each[1:] for each in run.losses if previous <= each[0] < update])
        means = [f"{mean:.3f}" for mean in losses.mean(0)] if len(losses) else ["", ""]
        lines.append(f"| {update:,} | {' | '.join(means)} | {found.tokens_per_step:.3f} | {found.loss:.3f} |")
        previous = update
    return lines


def trained(arguments: argparse.Namespace, model: Any, tokenizer: Any) -> TunedModel:
    """Train, and print the plan and the progress."""
    said = time.monotonic()

    def plan(planned: Plan) -> None:
        print(*planned.lines(), sep="\n", flush=True)

    def show(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(progress.line(), flush=True)

    settings, watch = settings_of(arguments), Watch(plan, show)
    return train_consistency(model, tokenizer, arguments.out, settings, resume=arguments.resume, watch=watch)


def settings_of(arguments: argparse.Namespace) -> ConsistencySettings:
    return ConsistencySettings(**{"minutes": arguments.minutes} | arguments.settings)


def decoded(arguments: argparse.Namespace, model: Any, prompts: list[EncodedPrompt]) -> dict[str, Any]:
    """Decode the prompts with each strategy; tokens per step, and texts that are equal to plain decoding's."""
    generator = Generator(model, max_batch_size=8)
    given = [prompt.ids for prompt in prompts]
    plain = list[list[int]]()
    found = dict[str, dict[str, float]]()
    for strategy in ("autoregressive", f"jacobi:n={settings_of(arguments).block_size}", "lookahead"):
        results = generator.generate(given, max_new_tokens=arguments.max_new_tokens, seed=SEED, proposer=strategy)
        texts = [list(result.token_ids) for result in results]
        plain = plain or texts
        steps = sum(result.stats.steps for result in results)
        per_step = sum(map(len, texts)) / steps
        found[strategy] = {"tokens_per_step": per_step, "steps": steps, "equal": equal_texts(plain, texts)}
        print(f"{strategy}: {per_step:.3f} tokens per step", flush=True)
    generator.close()
    return {"plain": plain, "strategies": found}


def equal_texts(ours: list[list[int]], theirs: list[list[int]]) -> int:
    return sum(one == other for one, other in zip(ours, theirs, strict=True))


def losses_on(plain: list[list[int]], prompts: list[EncodedPrompt], models: dict[str, Any]) -> dict[str, float]:
    """Return each model's loss on the original's plain texts, in nats per token."""
    documents = [np.array(prompt.ids + answer, np.int32) for prompt, answer in zip(prompts, plain, strict=True)]
    text = Text.of(documents, [len(prompt.ids) for prompt in prompts])
    rows = pack(text, max(map(len, documents)), np.random.default_rng(0))
    return {name: loss_on(model, rows) for name, model in models.items()}


def table(tuned: TunedModel, values: dict[str, Any]) -> list[str]:
    """Return the results as lines of Markdown."""
    losses, prompts, total = values["loss_on_the_original_s_answers"], values["prompts"], values["num_prompts"]
    before, after = tuned.before, tuned.after
    lines = ["", "| | before | after |", "|---|---|---|"]
    for strategy in prompts["before"]:
        shares = [prompts[name][strategy]["tokens_per_step"] for name in ("before", "after")]
        lines.append(f"| {strategy}: tokens per step, {total} prompts | {shares[0]:.3f} | {shares[1]:.3f} |")
    for strategy in prompts["before"]:
        equal = [prompts[name][strategy]["equal"] for name in ("before", "after")]
        lines.append(f"| {strategy}: texts equal to plain decoding's | {equal[0]} of {total} | {equal[1]} of {total} |")
    lines += [
        f"| Jacobi, held-out text: tokens per step | {before.tokens_per_step:.3f} | {after.tokens_per_step:.3f} |",
        f"| loss, held-out text of the original | {before.loss:.3f} | {after.loss:.3f} |",
        f"| loss, the original's answers to the prompts | {losses['before']:.3f} | {losses['after']:.3f} |",
        f"| plain texts equal to the original's | {total} of {total} | {values['plain_texts_equal']} of {total} |",
        "",
        f"{tuned.num_answer_tokens:,} answer tokens of text; best after {tuned.run.best:,} of "
        f"{tuned.run.num_updates:,} updates, {tuned.run.num_answer_tokens:,} tokens trained on",
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
