"""Does the text depend on the strategy? Each strategy against plain decoding, in exact and in fast numerics.

    python -m benchmarks exactness --numerics exact --dtype bfloat16 [--prompts file.jsonl …] [--per-category 2]
    python -m benchmarks exactness --model smollm2 --prompts file.jsonl … --longest 1024
    python -m benchmarks exactness --model smollm2 --dtype float32 --backend openvino:weights=int8 --share
    python -m benchmarks exactness --summary

Texts are appended to ``--out`` (JSON Lines), and an interrupted run continues there. Several processes may share the
work, each with its own ``--strategies`` and ``--out``; their files may be concatenated. Prompts: the demo's, or for
another model the files' through its chat template, and two prompts that leave room for the new tokens only, before the
model's limit (or ``--longest``) and before a quarter of it. End-of-text ids are ignored.

With ``--share`` the strategies share the prompts: each is decoded plainly and by one of them, in turns.

Every third prompt is decoded in batches of four and at temperature 1 as well, and of every sixth the logits of each
committed position are stored as digests and compared bit by bit. Further references: transformers' ``generate`` under
``specdec_exact``; in fast numerics transformers' own prompt lookup, compared with transformers' plain ``generate``.
"""

import argparse
import copy
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, load_model
from specdec import Generator
from specdec.apps.comparison.prompts import demo_prompts, load_prompts, select
from specdec.record import StepRecord
from specdec.requests.prompts import encode

PLAIN = "autoregressive"
STRATEGIES = (
    PLAIN,
    "lookahead:N=5,W=7,G=7",
    "lookahead:N=5,W=15,G=15",
    "jacobi",
    "prompt_lookup",
    "prompt_lookup:num_matches=4",
)
OTHERS = "auto", "lookahead:N=3,W=3,G=3"  # decoded only if they are named
SETTINGS = ((1, 0.0), (4, 0.0), (1, 1.0))  # batch, temperature
PEER, PEER_LOOKUP = "transformers", "transformers:prompt_lookup"
SEED = 5


@dataclass(frozen=True, slots=True)
class Key:
    """The numerics, strategy and settings that a text was decoded with, and its prompt."""

    numerics: str
    dtype: str
    strategy: str
    batch: int
    temperature: float
    prompt: int


class Digests:
    """Digests of the scores of each committed token, taken from step records."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def note(self, record: StepRecord) -> None:
        """Add a step's digests; nothing if scores aren't recorded."""
        for scores in (scores for outcome in record.outcomes for scores in outcome.scores):
            assert scores is not None, "no processor hides them"
            self.found.append(hashlib.blake2b(scores.contiguous().numpy().tobytes(), digest_size=8).hexdigest())


class Runs:
    """The texts of one mode and dtype."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.numerics, self.dtype, self.length = arguments.numerics, arguments.dtype, arguments.max_new_tokens
        self.out: Path = arguments.out
        self.done = {key for key, _ in read(self.out)}
        self.strategies: list[str] = arguments.strategies
        self.shares: bool = arguments.share
        self.model, tokenizer = load_model(arguments)
        limit = min(self.model.config.max_position_embeddings, arguments.longest or sys.maxsize)
        self.prompts = prompts(tokenizer, arguments, limit - self.length)
        self.engine: Generator | None = None
        if arguments.backend != "hf":  # one generator for all, since it takes seconds to open
            folder = str(checkpoint(arguments))
            self.engine = Generator(folder, tokenizer, numerics=self.numerics, backend=arguments.backend)

    def generator(self, strategy: str, batch: int) -> Generator:
        if self.engine is None:
            return Generator(self.model, proposer=strategy, numerics=self.numerics, max_batch_size=batch)
        self.engine.forget()
        return self.engine

    def run(self) -> None:
        for batch, temperature in SETTINGS:
            for strategy in (*STRATEGIES, *OTHERS):
                if strategy in self.strategies and (strategy, batch, temperature) != (PLAIN, 4, 0.0):
                    self.decode(strategy, batch, temperature)
        if PEER in self.strategies:
            self.decode_with_transformers(PEER, {})
        if PEER_LOOKUP in self.strategies and self.numerics == "fast":
            self.decode_with_transformers(PEER_LOOKUP, {"prompt_lookup_num_tokens": 10})

    def decode(self, strategy: str, batch: int, temperature: float) -> None:
        generator = self.generator(strategy, batch)
        every = 1 if (batch, temperature) == (1, 0.0) else 3
        waiting = range(0, len(self.prompts), every)
        for start in self.starts(strategy, len(waiting), batch):
            indices = waiting[start : start + batch]
            keys = [Key(self.numerics, self.dtype, strategy, batch, temperature, index) for index in indices]
            if set(keys) <= self.done:
                continue
            is_watched = indices[0] % 6 == 0 and batch == 1
            digests = Digests()
            results = generator.generate(
                [self.prompts[index] for index in indices],
                proposer=strategy,
                max_new_tokens=self.length,
                temperature=temperature,
                seed=SEED,
                eos_token_id=(),
                keeps_scores=is_watched,
                on_step=digests.note,
            )
            for key, result in zip(keys, results, strict=True):
                if result.error is not None:
                    raise result.error
                self.write(key, result.token_ids, digests.found, str(result.numerics))

    def starts(self, strategy: str, num_prompts: int, batch: int) -> range:
        """Where the batches that a strategy decodes begin."""
        if not self.shares or strategy == PLAIN:
            return range(0, num_prompts, batch)
        sharing = [name for name in self.strategies if name not in {PLAIN, PEER, PEER_LOOKUP}]
        return range(sharing.index(strategy) * batch, num_prompts, len(sharing) * batch)

    def decode_with_transformers(self, strategy: str, options: dict[str, Any]) -> None:
        model = copy.deepcopy(self.model)
        generator = Generator(model, numerics=self.numerics)  # registers the attention, and probes
        copies = 1
        if self.numerics == "exact":
            model.set_attn_implementation("specdec_exact")
            copies = generator.open_target().shapes.row_multiple
        model.generation_config.eos_token_id = None
        for index, prompt in enumerate(self.prompts):
            key = Key(self.numerics, self.dtype, strategy, 1, 0.0, index)
            if key not in self.done:
                ids = torch.tensor([prompt] * copies)
                output = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=self.length, **options
                )
                self.write(key, output[0, len(prompt) :].tolist(), [], f"{copies} copies of the prompt")

    def write(self, key: Key, tokens: Any, digests: list[str], numerics: str) -> None:
        line = {**asdict(key), "tokens": list(tokens), "digests": digests, "said": numerics, "machine": facts()}
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.done.add(key)


def prompts(tokenizer: Any, arguments: argparse.Namespace, most: int) -> list[list[int]]:
    """Token ids: the demo's prompts, the files', and two prompts of the maximum length."""
    chosen = demo_prompts() if arguments.model is None else []
    for path in arguments.prompts:
        chosen += select(load_prompts(path), per_category=arguments.per_category)
    if tokenizer.chat_template is None:
        ids = [list(tokenizer(prompt.prompt)["input_ids"]) for prompt in chosen]
    else:
        ids = [encode([{"role": "user", "content": prompt.prompt}], tokenizer, len(tokenizer)) for prompt in chosen]
    joined = [token for text in ids for token in text] * 8
    return [*(text[:most] for text in ids), joined[: most // 4], joined[:most]]


def read(path: Path) -> Iterator[tuple[Key, dict[str, Any]]]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield Key(**{name: row[name] for name in Key.__slots__}), row


def summarize(path: Path) -> int:
    """Print a table; return how many texts differ in exact numerics."""
    rows = dict(read(path))
    counts: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for key, row in rows.items():
        reference = PEER if key.strategy == PEER_LOOKUP else PLAIN
        plain = rows.get(Key(key.numerics, key.dtype, reference, 1, key.temperature, key.prompt))
        if plain is None or plain is row:
            continue
        count = counts[key.numerics, key.dtype, key.strategy, key.batch, key.temperature]
        count[0] += 1
        count[1] += row["tokens"] != plain["tokens"]
        if row["digests"] and plain["digests"]:
            pairs = list(zip(row["digests"], plain["digests"], strict=False))
            count[2] += len(pairs)
            count[3] += sum(mine != its for mine, its in pairs)
    print("| numerics | dtype | strategy | batch | temperature | texts | differ | logit rows | differ |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind, count in sorted(counts.items()):
        print("| " + " | ".join(map(str, (*kind, *count))) + " |")
    return sum(count[1] + count[3] for kind, count in counts.items() if kind[0] == "exact")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact")
    add_model_options(parser)
    parser.add_argument("--longest", type=int, help="positions of the longest text; the model's limit without it")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    everything = (*STRATEGIES, PEER, PEER_LOOKUP)
    parser.add_argument(
        "--strategies", nargs="+", choices=(*everything, *OTHERS), default=everything, help="only these"
    )
    parser.add_argument("--share", action="store_true", help="each prompt by plain decoding and one strategy only")
    parser.add_argument("--backend", default="hf", help="openvino:weights=int8, for example")
    parser.add_argument("--out", type=Path, default=Path("exactness.jsonl"))
    parser.add_argument("--summary", action="store_true", help="only print what --out holds")
    arguments = parser.parse_args()
    if not arguments.summary:
        Runs(arguments).run()
    return int(summarize(arguments.out) > 0)


if __name__ == "__main__":
    sys.exit(main())
