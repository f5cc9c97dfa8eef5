"""Texts in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Iterable, Mapping


def literal(text: str, special: Mapping[str, int]) -> str:
    """Return the Lark of a text: the special tokens in it by their ids, and the rest quoted; empty for no text."""
    if not special:
        return _quoted(text)
    names = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    parts = re.split(f"({names})", text)
    return " ".join(f"<[{special[part]}]>" if part in special else _quoted(part) for part in parts if part)


def text_without(excluded: Iterable[str]) -> str:
    """Return the terminal of any text, special tokens aside, that has none of some texts in it."""
    names = "|".join(re.escape(text).replace("/", r"\/") for text in excluded)
    return rf"/(.|\n)*/ & ~/(.|\n)*({names})(.|\n)*/" if names else r"/(.|\n)*/"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
