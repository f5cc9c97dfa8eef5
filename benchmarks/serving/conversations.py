"""Conversations with and without a context: the texts, and the time to the first token by turn.

    python -m benchmarks conversations --model smollm2 [--dtype float32] [--num 20] [--turns 4] [--max-new-tokens 64]

Each turn sends the next question of the evaluation prompts with all earlier turns. Numerics are exact where supported.
The two modes alternate, in a changing order.
"""

import argparse
import json
import random
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model
from specdec import Generator, Result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines with turns")
    parser.add_argument("--num", type=int, default=20, help="conversations")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    rng = random.Random(0)
    questions = [json.loads(line)["turns"][0][:600] for line in arguments.prompts.read_text("utf-8-sig").splitlines()]
    kept, fresh = Generator(model, tokenizer), Generator(model, tokenizer)
    num_different = num_texts = 0
    waits: dict[tuple[int, bool], list[float]] = {}
    sizes: dict[int, list[tuple[int, int]]] = {}
    for number in range(arguments.num):
        messages: list[dict[str, Any]] = []
        temperature = float(number % 2)
        with kept.context() as context:
            for turn in range(arguments.turns):
                messages.append({"role": "user", "content": rng.choice(questions)})
                settings = {"max_new_tokens": arguments.max_new_tokens, "temperature": temperature, "seed": number}
                found: dict[bool, Result] = {}
                for is_kept in rng.sample([True, False], 2):
                    given = {"context": context} if is_kept else {}
                    found[is_kept] = (kept if is_kept else fresh).generate(messages, **given, **settings)
                    waits.setdefault((turn, is_kept), []).append(found[is_kept].stats.seconds_to_first_token)
                num_different += found[True].token_ids != found[False].token_ids
                num_texts += 1
                length = len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
                sizes.setdefault(turn, []).append((length, length - found[True].stats.num_reused))
                messages.append({"role": "assistant", "content": found[True].text})
    print(f"{facts()}; {arguments.model or 'the built-in model'}, {arguments.dtype}, {kept.numerics}\n")
    print(f"{num_texts} texts of {arguments.num} conversations, {num_different} differ\n")
    print(
        "| turn | tokens of the prompt | read with a context | ms to the first token, from scratch | with a context |"
    )
    print("|---|---|---|---|---|")
    for turn, counted in sizes.items():
        lengths, read = (median(column) for column in zip(*counted, strict=True))
        scratch, held = (1e3 * median(waits[turn, is_kept]) for is_kept in (False, True))
        print(f"| {turn + 1} | {lengths:.0f} | {read:.0f} | {scratch:.0f} | {held:.0f} |")
    return 0


if __name__ == "__main__":
    main()
