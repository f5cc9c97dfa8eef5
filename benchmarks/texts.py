"""Prompts for the benchmarks: the demo's own, or those of a JSON Lines file given by path."""

import json
from pathlib import Path

from specdec import demo


def texts(path: Path | None, category: str | None = None, most: int | None = None) -> list[str]:
    """The demo's prompts, or a file's: HumanEval's field ``prompt`` or the first of Spec-Bench's ``turns``."""
    if path is None:
        return [prompt.text for prompt in demo.prompts() if category in (None, prompt.category)][:most]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    chosen = [row for row in rows if category in (None, row.get("category"))]
    return [row["prompt"] if "prompt" in row else row["turns"][0] for row in chosen][:most]
