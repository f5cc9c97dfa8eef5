"""Counts of valid texts under a JSON schema, by contender."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.interleaved import Run
from benchmarks.report import without_folders

_SCHEMA = re.compile(r"\bschema=([^,+]+)")


def validity_table(runs: Sequence[Run], decode: Callable[[Sequence[int]], str], max_new_tokens: int) -> str:
    """Return a Markdown table of the contenders with the option ``schema``; "" if there are none.

    Args:
        decode: returns the text of token ids, without special tokens.
    """
    counts, num_tokens = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for run in runs:
        if found := _SCHEMA.search(run.contender):
            schema = json.loads(Path(found[1]).read_text(encoding="utf-8"))
            counts[run.contender][verdict(decode(run.tokens), schema, len(run.tokens) >= max_new_tokens)] += 1
            num_tokens[run.contender] += len(run.tokens)
    if not counts:
        return ""
    lines = ["| contender | valid | cut | invalid | tokens per text |", "|---|---|---|---|---|"]
    for name, count in counts.items():
        numbers = (count["valid"], count["cut"], count["invalid"], f"{num_tokens[name] / count.total():.1f}")
        lines.append(f"| `{without_folders(name)}` | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def verdict(text: str, schema: Any, is_cut: bool) -> str:
    """Return "valid", "cut" for a text that ends early at the maximum length, or "invalid"."""
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except json.JSONDecodeError:
        return "cut" if is_cut else "invalid"
    except jsonschema.ValidationError:
        return "invalid"
    return "valid"
