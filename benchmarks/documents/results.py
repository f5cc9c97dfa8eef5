"""The tables of ``RESULTS.md``, made from ``results/*.json``.

    python -m benchmarks results

Each table stands between its own markers, followed by the command, the machine, the date and the commit of its runs.
``tests/benchmarks/documents/test_results.py`` compares page and files.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.documents import picture
from benchmarks.documents.first_screen import (
    BASELINE,
    EXACT,
    EXACT_HEADED,
    FASTEST,
    HEAD,
    HEADED,
    RESULTS,
    ROOT,
    Shown,
    shown_in,
    with_block,
)
from benchmarks.tables import table

PAGE = ROOT / "benchmarks" / "RESULTS.md"
FOLDER = ROOT / "benchmarks" / "results"
DTYPES = "float32", "bfloat16"
FURTHER = (
    Shown(
        "specdec:prompt_lookup:num_tokens=5,max_ngram=3+backend=openvino+numerics=fast",
        "specdec on OpenVINO, prompt lookup",
    ),
    Shown(
        "specdec:lookahead:N=3,W=3,G=3+backend=openvino+numerics=fast",
        "specdec on OpenVINO, lookahead (3, 3, 3)",
    ),
)
SERVERS = {
    "vllm": "vLLM",
    "auto": "specdec on torch, exact",
    "auto-fast": "specdec on torch, fast numerics",
    "openvino": "specdec on OpenVINO, exact",
    "openvino-fast": "specdec on OpenVINO, fast numerics",
}
ENGINES = {"strategies": "torch", "engines": "OpenVINO", "engines_wide": "OpenVINO, 0.3 billion parameters"}
STREAMS = "1 stream", "4 streams", "16 streams", "32 streams"
_LIST = re.compile(r" (--contender|--proposer|--python) .*")
_SERVER_RUN, _SUFFIX_RUN = "auto, auto-fast, OpenVINO, vLLM", "OpenVINO, vLLM suffix, vLLM"


def read(name: str) -> dict[str, Any]:
    """Return a result file's content."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def rows_of(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a comparison's rows by contender."""
    return {row["contender"]: row for row in data["rows"]}


def ratio(data: Mapping[str, Any], contender: str, over: str) -> float:
    """Return how many times as fast a contender is: all tokens over all seconds."""
    known = picture.ratios(data)
    return known[contender] / known[over]


def speed() -> str:
    """Every contender's speed, acceptance and step time, in both dtypes."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS]
    heading = [""]
    for data in results:
        heading += [f"{picture.dtype(data)}: tokens/s", "times transformers", "tokens/step", "ms/step"]
    lines = []
    for shown in (*shown_in(results), *FURTHER):
        cells = [shown.name]
        for data in results:
            row = rows_of(data)[shown.contender]
            cells += [
                f"{row['tokens_per_second']:.1f}",
                f"{ratio(data, shown.contender, BASELINE.contender):.2f}",
                f"{row['tokens_per_step']:.2f}",
                f"{row['milliseconds_per_step']:.1f}",
            ]
        lines.append(cells)
    return _block(heading, lines, ["engines_float32", "engines_bfloat16"], results[0])


def texts() -> str:
    """How many texts differ, by run, in exact and in fast numerics."""
    counted, ended = read("tokens_float32"), read("soak")["ended"]
    num_texts, num_different = (sum(row[key] for row in counted["rows"]) for key in ("num_texts", "num_different"))
    several = f"{len(counted['rows'])} settings, batches of 8, torch"
    lines = [
        [several, "exact", "plain decoding", f"{num_texts}", f"{num_different}", "–"],
        [
            "a server, one hour",
            "exact",
            "the request alone",
            f"{ended['the same']}",
            f"{ended.get('different', 0)}",
            "–",
        ],
    ]
    for name, engine in ENGINES.items():
        results = [read(f"{name}_{dtype}") for dtype in DTYPES]
        for numerics in ("exact", "fast"):
            rows = [_of_engine(data, engine, numerics) for data in results]
            if rows[0]:
                size = f"{len(rows[0]) * len(results[0]['categories'])}"
                differ = [f"{sum(row['num_different'] for row in each)}" for each in rows]
                what = f"{len(rows[0])} setting{'s' * (len(rows[0]) > 1)}, {engine}"
                lines.append([what, numerics, "transformers", size, *differ])
    heading = ["texts of", "numerics", "compared with", "texts", *(f"{dtype}: differ" for dtype in DTYPES)]
    names = ["tokens_float32", "soak", *(f"{name}_{dtype}" for name in ENGINES for dtype in DTYPES)]
    return _block(heading, lines, names, counted)


def _of_engine(data: Mapping[str, Any], engine: str, numerics: str) -> list[dict[str, Any]]:
    """A comparison's specdec rows on one engine, in one kind of numerics."""
    on_openvino = engine.startswith("OpenVINO")
    rows = [row for row in data["rows"] if ("backend=openvino" in row["contender"]) == on_openvino]
    return [row for row in rows if _numerics(row["contender"]) == numerics]


def servers() -> str:
    """Throughput and time to the first token by the number of streams, over vLLM's server."""
    run = read("serving_float32")[_SERVER_RUN]
    counts = [streams.split()[0] for streams in STREAMS]
    heading = [""]
    for figure in ("tokens/s", "over vLLM", "first token, s"):
        heading += [f"{figure}: {counts[0]}", *counts[1:]]
    lines = []
    for name, shown in SERVERS.items():
        loads = [run["runs"][f"{name} {streams}"] for streams in STREAMS]
        lines.append(
            [
                shown,
                *(f"{statistics.median(each['tokens_per_second'] for each in load):.0f}" for load in loads),
                *_over(run, name, "vllm", STREAMS),
                *(f"{statistics.median(each['first']['p50'] for each in load):.2f}" for load in loads),
            ]
        )
    suffix = _over(read("serving_float32")[_SUFFIX_RUN], "openvino", "vllm-suffix", STREAMS[:3])
    lines.append(["specdec on OpenVINO, exact, over vLLM's suffix decoding", *["–"] * 4, *suffix, *["–"] * 5])
    command = "python -m benchmarks serving --streams 1 --streams 4 --streams 16 --streams 32 --rounds 3 --contender …"
    return _block(heading, lines, ["serving_float32"], {"command": command, "machine": run["machine"]})


def _over(run: Mapping[str, Any], name: str, other: str, loads: Iterable[str]) -> list[str]:
    """The median over rounds of a server's throughput over another one's."""
    found = []
    for load in loads:
        own, theirs = (run["runs"][f"{server} {load}"] for server in (name, other))
        ratios = [mine["tokens_per_second"] / its["tokens_per_second"] for mine, its in zip(own, theirs, strict=True)]
        found.append(f"{statistics.median(ratios):.2f}")
    return found


def exactness() -> str:
    """Exact numerics over fast ones, for plain decoding and for ``auto``."""
    plain = "specdec:autoregressive+numerics=exact", "specdec:autoregressive"
    auto = "specdec:auto+numerics=auto", "specdec:auto"
    cases = [
        ("SmolLM2", "torch", "default", *plain),
        ("SmolLM2", "torch", "peers", *auto),
        ("0.3 billion parameters", "torch", "wide", *plain),
        ("SmolLM2", "OpenVINO", "engines", EXACT.contender, FASTEST.contender),
    ]
    lines = []
    for model, engine, name, exact, fast in cases:
        strategy = "`auto`" if ":auto" in exact and "autoregressive" not in exact else "plain decoding"
        lines.append(
            [model, engine, strategy, *(f"{ratio(read(f'{name}_{dtype}'), exact, fast):.2f}" for dtype in DTYPES)]
        )
    names = [f"{case[2]}_{dtype}" for case in cases for dtype in DTYPES]
    heading = ["model", "engine", "strategy", *(f"{dtype}: exact over fast" for dtype in DTYPES)]
    return _block(heading, lines, names, read("default_float32"))


def peers_of(contender: str, names: Iterable[str]) -> list[str]:
    """Return other engines' contenders; those with a trained head only if the contender has it too."""
    return [name for name in names if not name.startswith("specdec:") and (HEAD in contender or HEAD not in name)]


def losses() -> str:
    """The default strategy over the best peer, by category of the prompt; with a head, over peers with it too."""
    lines, categories = [], list[str]()
    for path in RESULTS:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows, categories = rows_of(data), list(dict.fromkeys(data["categories"]))
        names = EXACT_HEADED, HEADED, EXACT, FASTEST
        for shown, what in zip(names, ("exact, with a head", "fast, with a head", "exact", "fast"), strict=True):
            own = rows[shown.contender]["by_category"]
            peers = [rows[name]["by_category"] for name in peers_of(shown.contender, rows)]
            best = {category: max(peer[category] for peer in peers) for category in categories}
            cells = [f"{own[category] / best[category]:.2f}" for category in categories]
            lines.append([f"{picture.dtype(data)}, {what}", *cells])
    heading = ["over the best peer", *(category.replace("_", " ") for category in categories)]
    return _block(heading, lines, ["engines_float32", "engines_bfloat16"], read("engines_float32"))


def machines() -> str:
    """Other step costs: a larger model, and a processor without AVX-512."""
    plain, auto = "specdec:autoregressive", "specdec:auto"
    cases = [
        (
            "0.3 billion parameters, OpenVINO",
            f"engines_wide_{dtype}",
            f"{plain}+backend=openvino",
            f"{auto}+backend=openvino",
        )
        for dtype in DTYPES
    ]
    cases += [("0.3 billion parameters, torch", f"wide_{dtype}", plain, f"{auto}+numerics=auto") for dtype in DTYPES]
    cases += [("SmolLM2, AVX2 alone, torch", "without_avx512_bfloat16", plain, f"{auto}+numerics=auto")]
    for weights, option in (("float32", ""), ("int8", "weights=int8,"), ("int4", "weights=int4,")):
        engine = f"backend=openvino:{option}static_sizes"
        contenders = f"{plain}+{engine}=1+numerics=fast", f"{auto}+{engine}=4+numerics=exact"
        cases.append((f"SmolLM2, weights in {weights}, Zen 3, OpenVINO", f"avx2_{weights}", *contenders))
    lines = []
    for what, name, without, drafted in cases:
        data = read(name)
        ratios = picture.ratios(data)
        ours = [_spelled(each, ratios) for each in (without, drafted)]
        best = max((peer for peer in ratios if not peer.startswith("specdec:")), key=ratios.__getitem__)
        lines.append(
            [
                f"{what}, {picture.dtype({'model': data['model'].partition(';')[0]})}",
                f"{ratios[ours[0]]:.2f}",
                f"{ratios[ours[1]]:.2f} ({_numerics(drafted)})",
                f"{rows_of(data)[ours[1]]['by_prompt']['least']:.2f}",
                f"{ratios[best]:.2f} ({best})",
            ]
        )
    heading = ["", "plain, fast numerics", "`auto`", "`auto`, slowest prompt", "best peer of that run"]
    return _block(heading, lines, [case[1] for case in cases], read("engines_wide_float32"))


def _spelled(contender: str, known: Iterable[str]) -> str:
    """A contender's name in a run, which may spell out fast numerics, the default of ``compare``."""
    spelled = f"{contender}+numerics=fast"
    return spelled if spelled in known else contender


def _numerics(contender: str) -> str | None:
    """A contender's numerics; None for a peer."""
    if not contender.startswith("specdec:"):
        return None
    return "exact" if contender.endswith(("numerics=exact", "numerics=auto")) else "fast"


def _block(
    heading: Sequence[str], lines: Iterable[Sequence[str]], names: Sequence[str], first: Mapping[str, Any]
) -> str:
    """A table, with the command and the machine of its first file, and date and commit of each."""
    command = _LIST.sub(r" \1 …", str(first["command"]).strip("`"))
    files = []
    for name in names:
        recorded = read(name)["recorded"]
        files.append(f"[{name}](results/{name}.json) ({recorded['date']}, {recorded['commit']})")
    return f"\n{table(heading, lines)}\n\n`{command}`: {first['machine']}. Runs: {', '.join(files)}.\n"


BLOCKS: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (speed, texts, servers, exactness, losses, machines)
}


def begin(name: str) -> str:
    """The line before a table."""
    return f"<!-- {name}: made by `python -m benchmarks results` -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    for name, made in BLOCKS.items():
        page = with_block(page, made(), begin(name))
    PAGE.write_text(page, encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
