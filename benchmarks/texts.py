"""Prompts for the benchmarks: the demo's own, or those of a JSON Lines file given by path."""

from pathlib import Path

from specdec.comparison.prompts import demo_prompts, load_prompts, select


def texts(path: Path | None, category: str | None = None, most: int | None = None) -> list[str]:
    """The demo's prompts, or a file's, as ``specdec compare`` reads them."""
    chosen = select(demo_prompts() if path is None else load_prompts(path), [category] if category else [])
    return [prompt.prompt for prompt in chosen][:most]
