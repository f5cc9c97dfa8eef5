"""Does text under a JSON schema depend on the strategy? Each strategy against plain decoding under the same masks.

    python -m benchmarks structured [--backends hf openvino] [--num-schemas 150] [--out structured.jsonl]
    python -m benchmarks structured --temperatures 1 --seed 8 --out seed_8.jsonl     # other texts of the same schemas
    python -m benchmarks structured --summary

Schemas are made by hypothesis: nested objects, arrays, enums, optional properties, unicode keys, patterns, formats,
bounds. Each is decoded at temperature 0 and 1, in ragged batches with a schema of its own for each prompt, half of them
in contexts, in float32 and exact numerics. Complete texts are parsed, and validated by ``jsonschema``.

Plain decoding is ``tests/support/plain.py`` on transformers with a matcher that consumes the whole path at each token.
On other backends, whose logits have other bits, it is ``autoregressive``, one prompt at a time. The exit code is 1 if a
text differs or isn't valid. An interrupted run continues in ``--out``.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model
from specdec import Generator
from specdec.constraints import JsonSchema
from tests.support.masks import allowed_by, grammar_of
from tests.support.plain import decode_model
from tests.support.schemas import SATISFIABLE, check_valid, distinct

PLAIN = "plain"
STRATEGIES = ("auto", "lookahead:N=3,W=3,G=3", "suffix+token_recycling+grammar")
PROMPTS = (
    "# heapq\n",
    "class Reader:\n    def read(self):",
    "x",
    "# The members, as JSON, with all of their names\n",
)


class Runs:
    """The texts of one backend."""

    def __init__(self, arguments: argparse.Namespace, backend: str) -> None:
        self.backend, self.length, self.out = backend, arguments.max_new_tokens, arguments.out
        self.temperatures, self.seed = arguments.temperatures, arguments.seed
        self.model, self.tokenizer = load_model(arguments)
        ends = self.model.generation_config.eos_token_id
        self.ends = tuple(ends) if isinstance(ends, list) else (ends,)
        self.schemas: list[Any] = distinct(SATISFIABLE, arguments.num_schemas)
        self.names = [hashlib.sha256(json.dumps(schema).encode()).hexdigest()[:16] for schema in self.schemas]
        self.prompts = [PROMPTS[index % len(PROMPTS)] for index in range(len(self.schemas))]
        self.done = {(row["backend"], row["strategy"], row["temperature"], row["schema"]) for row in read(self.out)}

    def run(self) -> None:
        for temperature in self.temperatures:
            if self.backend == "hf":
                self.decode(PLAIN, temperature, self.by_definition, 1)
            else:
                self.decode_with(PLAIN, "autoregressive", temperature, 1)
            for strategy in STRATEGIES:
                self.decode_with(strategy, strategy, temperature, len(PROMPTS))

    def by_definition(self, indices: Sequence[int], temperature: float) -> list[list[int]]:
        """Plain decoding without specdec."""
        return [
            decode_model(
                self.model,
                self.tokenizer(self.prompts[index])["input_ids"],
                self.length,
                self.seed if temperature else None,
                self.ends,
                allowed_by(grammar_of(self.schemas[index]), self.tokenizer, len(self.model.lm_head.weight)),
            )
            for index in indices
        ]

    def decode_with(self, name: str, strategy: str, temperature: float, size: int) -> None:
        with ExitStack() as stack:
            options = {"weights": "stock"} if self.backend == "hf" else {}
            generator = stack.enter_context(
                Generator(
                    self.model,
                    self.tokenizer,
                    proposer=strategy,
                    backend=self.backend,
                    numerics="exact",
                    max_batch_size=max(1, size - 1),
                    **options,
                )
            )
            contexts = [stack.enter_context(generator.context()) for _ in PROMPTS]

            def generate(indices: Sequence[int], temperature: float) -> list[list[int]]:
                is_in_contexts = name != PLAIN and indices[0] // len(PROMPTS) % 2
                results = generator.generate(
                    [self.prompts[index] for index in indices],
                    each=[{"constraint": JsonSchema(self.schemas[index])} for index in indices],
                    context=contexts[: len(indices)] if is_in_contexts else None,
                    temperature=temperature,
                    seed=self.seed,
                    max_new_tokens=self.length,
                )
                if errors := [result.error for result in results if result.error is not None]:
                    raise errors[0]
                return [list(result.token_ids) for result in results]

            self.decode(name, temperature, generate, size)

    def decode(self, name: str, temperature: float, generate: Callable[..., list[list[int]]], size: int) -> None:
        for start in range(0, len(self.schemas), size):
            indices = range(start, min(start + size, len(self.schemas)))
            keys = {(self.backend, name, temperature, self.names[index]) for index in indices}
            if keys <= self.done:
                continue
            for index, tokens in zip(indices, generate(indices, temperature), strict=True):
                self.write(name, temperature, index, tokens)

    def write(self, name: str, temperature: float, index: int, tokens: list[int]) -> None:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        row = {
            "backend": self.backend,
            "strategy": name,
            "temperature": temperature,
            "schema": self.names[index],
            "tokens": tokens,
            "verdict": verdict(text, self.schemas[index], is_cut=len(tokens) == self.length),
            "text": text,
            "machine": facts(),
        }
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def verdict(text: str, schema: Any, is_cut: bool) -> str:
    """``valid``, ``cut`` at the maximum length, or why a text isn't valid."""
    try:
        check_valid(json.loads(text), schema)
    except json.JSONDecodeError as error:
        return "cut" if is_cut else f"not JSON: {error}"
    except jsonschema.ValidationError as error:
        return f"invalid: {error.message}"
    return "valid"


def read(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def summarize(path: Path) -> int:
    """Print a table; return how many texts differ or aren't valid."""
    texts = {(row["backend"], row["temperature"], row["schema"], row["strategy"]): row for row in read(path)}
    counts = defaultdict[tuple[str, str, float], Counter[str]](Counter)
    for (backend, temperature, schema, strategy), row in texts.items():
        count = counts[backend, strategy, temperature]
        kind = row["verdict"] if row["verdict"] in ("valid", "cut") else "invalid"
        count.update(texts=1, tokens=len(row["tokens"]), **{kind: 1})
        plain = texts.get((backend, temperature, schema, PLAIN))
        count["differ"] += plain is None or plain["tokens"] != row["tokens"]
    print("| backend | strategy | temperature | texts | differ | valid | invalid | cut | tokens |")
    print("|---|---|---|---|---|---|---|---|---|")
    columns = ("texts", "differ", "valid", "invalid", "cut", "tokens")
    for kind, count in sorted(counts.items()):
        print("| " + " | ".join(map(str, (*kind, *(count[column] for column in columns)))) + " |")
    return sum(count["differ"] + count["invalid"] for count in counts.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument("--backends", nargs="+", default=["hf", "openvino"])
    parser.add_argument("--num-schemas", type=int, default=150)
    parser.add_argument("--max-new-tokens", type=int, default=120)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--seed", type=int, default=7, help="of texts at temperatures above 0; one seed for one --out")
    parser.add_argument("--out", type=Path, default=Path("structured.jsonl"))
    parser.add_argument("--summary", action="store_true", help="only print what --out has")
    arguments = parser.parse_args()
    if not arguments.summary:
        for backend in arguments.backends:
            Runs(arguments, backend).run()
    return int(summarize(arguments.out) > 0)


if __name__ == "__main__":
    sys.exit(main())
