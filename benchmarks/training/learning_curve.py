"""How does a head's acceptance grow with the amount of text that it was trained on?

The target writes its own text. Heads are trained on parts of it, each to the end of its own schedule, and measured on
held-out text and on prompts. A time limit is kept: what a point will take is predicted from those before it, and points
without time are left out. Results are written after each point.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.training.curve import Curve, Results
from benchmarks.training.head_run import Corpus, answer_of, on_prompts
from benchmarks.training.replays import TargetAnswer
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.rollout import Rollout
from specdec.heads.training.script import Script
from specdec.heads.training.settings import RolloutSettings
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText
from specdec.models.fused_attention import without_cudnn

MOST_MEMORY = 0.62  # of a GPU's free memory, for the cache of the text's rows


def main() -> None:
    arguments = parsed()
    device = torch.device(arguments.device)
    with without_cudnn(device):  # which makes a plan for each new shape
        measure(arguments, device)


def measure(arguments: argparse.Namespace, device: torch.device) -> None:
    """Answer the prompts, let the target write its text, and go through the curve."""
    results = Results(arguments.out, arguments.seconds)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype).to(device).eval()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    results.write(
        "loaded",
        device=name,
        model=Path(arguments.model).name,
        arguments={k: str(v) for k, v in vars(arguments).items()},
    )
    sizes, num_draft_ids = json.loads(arguments.sizes), min(arguments.vocabulary, model.config.vocab_size)
    untrained = Eagle3Training.untrained(model, torch.arange(num_draft_ids), **sizes)
    answers = prompt_answers(arguments, untrained)
    results.write(f"{len(answers)} prompts answered, {sum(answer.num_answer for answer in answers)} tokens")
    if arguments.head:
        given = Eagle3Training.from_folder(model, arguments.head)
        results.write("given head measured", given_head=on_prompts(given, answers))
    if not arguments.answer_tokens:
        return
    text = own_text(arguments, model, results)
    order = np.random.default_rng(arguments.seed).permutation(len(text))
    num_held_out = min(arguments.held_out, len(text) // 10)
    corpus = Corpus(model, text.select(order[num_held_out:]), text.select(order[:num_held_out]), answers, sizes)
    Curve(arguments, corpus, results).run()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks learning_curve", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results and the best head")
    parser.add_argument("--prompts", type=Path, help="JSON Lines with category and prompt_ids, never trained on")
    parser.add_argument("--head", type=Path, help="measure this head on the prompts first")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=400.0, help="time limit for everything")
    parser.add_argument("--text-seconds", type=float, default=120.0, help="time limit for the text")
    parser.add_argument("--text", type=Path, help="file of text: read if it exists, written otherwise")
    parser.add_argument("--answer-tokens", type=int, default=10_000_000)
    parser.add_argument("--points", type=int, nargs="*", default=[1_000_000, 2_500_000, 10_000_000, 5_000_000])
    parser.add_argument("--passes", type=int, default=1, help="times that each point goes through its text")
    parser.add_argument("--probe", type=int, default=500_000, help="first point, at several learning rates")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[], help="further sizes of the vocabulary")
    parser.add_argument("--vocabulary-tokens", type=int, default=2_500_000, help="answer tokens for these")
    parser.add_argument("--rows", type=int, default=6144, help="documents written side by side")
    parser.add_argument("--answer-length", type=int, default=256)
    parser.add_argument("--opening-length", type=int, nargs=2, default=[64, 64])
    parser.add_argument("--base", action="store_true", help="continue texts instead of asking by the chat template")
    parser.add_argument("--batch", type=int, default=4, help="rows of 512 tokens per update")
    parser.add_argument("--held-out", type=int, default=300, help="documents")
    parser.add_argument("--sizes", default="{}", help="JSON: sizes of the head other than the target's")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


@torch.no_grad()
def prompt_answers(arguments: argparse.Namespace, untrained: Eagle3Training, most: int = 128) -> list[TargetAnswer]:
    """The target's own greedy answers to the prompts, in float32, with the states that heads read."""
    device = untrained.device
    if not arguments.prompts:
        return []
    lines = [json.loads(line) for line in arguments.prompts.read_text(encoding="utf-8").splitlines()]
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).to(device).eval()
    ends = end_tokens(model)
    longest = max(len(line["prompt_ids"]) for line in lines)
    padded = [[0] * (longest - len(line["prompt_ids"])) + line["prompt_ids"] for line in lines]
    mask = [[0] * (longest - len(line["prompt_ids"])) + [1] * len(line["prompt_ids"]) for line in lines]
    written = model.generate(
        torch.tensor(padded, device=device), attention_mask=torch.tensor(mask, device=device),
        max_new_tokens=most, do_sample=False, pad_token_id=0, eos_token_id=ends,
    )[:, longest:].tolist()  # fmt: skip
    target = TargetStates(model, untrained.layer_ids)
    found = []
    for line, answer in zip(lines, written, strict=True):
        stop = next((index + 1 for index, token in enumerate(answer) if token in ends), most)
        found.append(answer_of(line["category"], line["prompt_ids"], answer[:stop], untrained, target))
    return found


def end_tokens(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    return list(ends) if isinstance(ends, list) else [ends]


def own_text(arguments: argparse.Namespace, model: Any, results: Results) -> TrainingText:
    """Read the text, or let the target write it."""
    if arguments.text and arguments.text.exists():
        return TrainingText.load(arguments.text)
    ends = end_tokens(model)
    if arguments.base:
        script = Script.continuation(model.config.bos_token_id, ends)
    else:
        script = Script.chat(AutoTokenizer.from_pretrained(arguments.model), ends)
    settings = RolloutSettings(
        num_rows=arguments.rows, answer_tokens=arguments.answer_length, opening_tokens=arguments.opening_length
    )
    settings = settings.model_copy(update={"num_rows": fitting_rows(model, settings, script)})
    rollout = Rollout(model, script, settings, torch.Generator(model.device).manual_seed(arguments.seed))
    began, limit = time.perf_counter(), min(arguments.text_seconds, results.left())
    rollout.write(
        lambda writer: (
            writer.records.num_answer_tokens() < arguments.answer_tokens and time.perf_counter() - began < limit
        )
    )
    written, steps, seconds = rollout.records.text(), len(rollout.records.steps), time.perf_counter() - began
    del rollout
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    text = written.deduplicated()
    if arguments.text:
        text.save(arguments.text)
    facts = {
        "answer_tokens": written.num_answer_tokens, "tokens": len(written.tokens), "documents": len(written),
        "documents_without_duplicates": len(text), "answer_tokens_without_duplicates": text.num_answer_tokens,
        "seconds": seconds, "steps": steps, "rows": settings.num_rows, "settings": settings.model_dump(),
        "answer_tokens_per_second": written.num_answer_tokens / seconds,
    }  # fmt: skip
    results.write(
        f"{text.num_answer_tokens} answer tokens written in {seconds:.0f} s by {settings.num_rows} rows", text=facts
    )
    return text


def fitting_rows(model: Any, settings: RolloutSettings, script: Script) -> int:
    """The number of rows whose cache fits the device."""
    if model.device.type != "cuda":
        return settings.num_rows
    config = model.config.get_text_config()
    per_slot = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    free = torch.cuda.mem_get_info(model.device)[0] * MOST_MEMORY
    return max(1, min(settings.num_rows, int(free / (per_slot * settings.num_slots(script))) // 128 * 128))


if __name__ == "__main__":
    main()
