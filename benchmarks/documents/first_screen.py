"""README's first screen: its four rows and ``docs/speed.png``, both made from ``results/engines_*.json``.

    python -m benchmarks first_screen

The statistic is that of ``compare``: the tokens of all prompts over their seconds. Each file is one run; its ratios are
of contenders that were interleaved, also where groups were measured one after the other.
``tests/benchmarks/documents/test_first_screen.py`` compares README, chart and files.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documents import picture
from benchmarks.tables import table
from specdec.models.own_models import NAME, STORED_AS

ROOT = Path(__file__).parents[2]
README, CHART = ROOT / "README.md", ROOT / "docs" / "speed.png"
RESULTS = tuple(ROOT / "benchmarks" / "results" / f"engines_{dtype}.json" for dtype in ("float32", "bfloat16"))
BEGIN, END = "<!-- made by `python -m benchmarks first_screen` -->\n", "<!-- end -->\n"
TITLE = "SmolLM2-135M-Instruct on two CPU cores"
CAPTION = "14 chat prompts of 14 categories, at most 96 new tokens each, greedy, AMD EPYC, November 2026"


@dataclass(frozen=True)
class Shown:
    """A contender and its name in table and chart."""

    contender: str
    name: str

    @property
    def is_ours(self) -> bool:
        """True for specdec's own rows."""
        return self.contender.startswith("specdec:")


HEAD = "…/smollm2-gpu"  # in a contender with a trained head
BASELINE = Shown("transformers", "transformers' generate")
WITHOUT_DRAFTS = Shown("specdec:autoregressive+backend=openvino+numerics=fast", "specdec on OpenVINO, without drafts")
EXACT = Shown("specdec:auto+backend=openvino+numerics=exact", "specdec on OpenVINO, exact (default)")
FASTEST = Shown("specdec:auto+backend=openvino+numerics=fast", "specdec on OpenVINO, fast numerics")
EXACT_HEADED = Shown(
    f"specdec:auto+eagle3:head={HEAD}+backend=openvino+numerics=exact",
    "specdec on OpenVINO, exact, with a head",
)
HEADED = Shown(
    f"specdec:auto+eagle3:head={HEAD}+backend=openvino+numerics=fast",
    "specdec on OpenVINO, fast, with a head",
)
LLAMA_NGRAMS = "llamacpp:spec-type=ngram-simple,spec-ngram-simple-size-n=2,spec-ngram-simple-size-m=5"
SHOWN = (
    BASELINE,
    Shown("specdec:autoregressive+numerics=fast", "specdec on torch, without drafts"),
    Shown("specdec:auto+numerics=fast", "specdec on torch, fast numerics"),
    WITHOUT_DRAFTS,
    EXACT,
    FASTEST,
    EXACT_HEADED,
    HEADED,
    Shown("openvino", "OpenVINO GenAI"),
    Shown("openvino:prompt_lookup=5,max_ngram_size=3", "OpenVINO GenAI, prompt lookup"),
    Shown(f"openvino:head={HEAD},num_assistant_tokens=3", "OpenVINO GenAI, the same head"),
    Shown("llamacpp", "llama.cpp"),
    Shown(LLAMA_NGRAMS, "llama.cpp, n-grams"),
    Shown("vllm", "vLLM"),
    Shown("vllm:method=suffix", "vLLM, suffix decoding"),
)


def shown_in(results: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """The rows of ``SHOWN`` that all results have."""
    measured = [picture.speeds(data) for data in results]
    return [shown for shown in SHOWN if all(shown.contender in known for known in measured)]


def first_rows(data: Mapping[str, Any]) -> list[tuple[str, Shown]]:
    """README's rows and their names: transformers, the fastest other engine without a head, and specdec."""
    speeds = picture.speeds(data)
    others = [each for each in shown_in([data]) if not each.is_ours and HEAD not in each.contender]
    fastest = max(others, key=lambda each: speeds[each.contender])
    return [
        (BASELINE.name, BASELINE),
        (f"{fastest.name}, the fastest other engine", fastest),
        ("**specdec, default settings**", EXACT),
        ("specdec with a trained head", EXACT_HEADED),
    ]


def block(data: Mapping[str, Any]) -> str:
    """README's claim and table, in the first dtype."""
    speeds, ratios = picture.speeds(data), picture.ratios(data)
    lines = [
        [name, f"{speeds[shown.contender]:.1f}", f"{ratios[shown.contender]:.1f}"] for name, shown in first_rows(data)
    ]
    return "\n\n".join((_claim(data), table(["", "tokens/s", "times transformers"], lines))) + "\n"


def _claim(data: Mapping[str, Any]) -> str:
    """The first sentence: the speed-up with default settings, and whether the text is the same."""
    rows = {row["contender"]: row for row in data["rows"]}
    num_different, num_texts = rows[EXACT.contender]["num_different"], len(data["categories"])
    text = f"another text in {num_different} of {num_texts}" if num_different else "the same text"
    return (
        f"**{picture.ratios(data)[EXACT.contender]:.1f} times as fast as transformers' `generate`, {text}.**\n"
        f"{NAME} ({STORED_AS}) in {picture.dtype(data)} on two CPU cores, greedy, {num_texts} chat prompts:"
    )


def chart(results: Sequence[Mapping[str, Any]]) -> tuple[list[picture.Bar], list[str]]:
    """The chart's bars, and the headings of its panels."""
    speeds = [picture.speeds(data) for data in results]
    bars = [
        picture.Bar(shown.name, shown.is_ours, tuple(known[shown.contender] for known in speeds))
        for shown in shown_in(results)
    ]
    return bars, [picture.dtype(data) for data in results]


def load() -> list[dict[str, Any]]:
    """The two result files."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS]


def with_block(page: str, made: str, begin: str = BEGIN) -> str:
    """A page with the block between its markers replaced."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"the page has no lines {begin.strip()} and {END.strip()}")
    return f"{before}{begin}{made}{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    results = load()
    README.write_text(with_block(README.read_text(encoding="utf-8"), block(results[0])), encoding="utf-8")
    picture.save(*chart(results), TITLE, CAPTION, CHART)
    print(README, CHART)


if __name__ == "__main__":
    main()
