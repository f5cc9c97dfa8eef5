"""Options for the prompts of a measurement: the demo's, or files."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.apps.comparison.prompts import as_chat, demo_prompts, load_prompts, select
from specdec.requests.prompts import encode


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt's token ids and category."""

    category: str
    ids: list[int]


def prompt_ids(tokenizer: Any, path: Path | None = None, most: int | None = None) -> list[list[int]]:
    """Token ids of the demo's prompts, or of a file's."""
    chosen = as_chat(select(demo_prompts() if path is None else load_prompts(path)), tokenizer)
    return [encode(prompt.prompt, tokenizer, len(tokenizer)) for prompt in chosen[:most]]


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--prompts`` and the options that select from it."""
    parser.add_argument("--prompts", type=Path, nargs="+", default=[], help="JSON Lines files (default: the demo's)")
    parser.add_argument(
        "--chat", action="store_true", help="send all through the chat template, not instructions alone"
    )
    parser.add_argument("--category", help="prompts of this category only")
    parser.add_argument("--per-category", type=int, help="maximum number of prompts per category")
    parser.add_argument("--longest", type=int, default=10**9, help="maximum tokens of a prompt")
    parser.add_argument("--num-prompts", type=int, help="number of prompts, evenly spread (default: all)")


def encoded_prompts(arguments: argparse.Namespace, tokenizer: Any) -> list[EncodedPrompt]:
    """The selected prompts, evenly spread if fewer are selected than there are."""
    sources = [load_prompts(path) for path in arguments.prompts] or [demo_prompts()]
    categories = [arguments.category] if arguments.category else []
    found = []
    chosen = [prompt for source in sources for prompt in select(source, categories, arguments.per_category)]
    for prompt in as_chat(chosen, tokenizer, arguments.chat or None):
        ids = encode(prompt.prompt, tokenizer, len(tokenizer))
        if len(ids) <= arguments.longest:
            found.append(EncodedPrompt(prompt.category, ids))
    count = min(arguments.num_prompts or len(found), len(found))
    return [found[index * len(found) // count] for index in range(count)]
