"""The self-test at load: does it refuse a right model, or miss a planted mistake?

    python -m benchmarks selftest [--families llama,opt] [--layers 2,16,48] [--dtypes bfloat16] [--json FILE]

Each family of the tests is made with each number of layers, with and without large activations, and loaded with dense,
exact and split masks, which must succeed. In models with large activations mistakes are then planted, one at a time, in
layouts (mask bits, positions, exact attention's regions) and in the cache (slots), and each must be found. The exit
code is 1 on any refusal or miss.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from benchmarks.exactness.selftest_cases import Case, Outcome, measure
from tests.support import families

LAYERS = (2, 16, 48)
DTYPES = ("float64", "float32", "bfloat16", "float16")


def table(outcomes: Sequence[Outcome]) -> str:
    """A row per family and depth, a cell per dtype: right models loaded, and mistakes found of those planted."""
    dtypes = [dtype for dtype in DTYPES if any(outcome.case.dtype == dtype for outcome in outcomes)]
    lines = [["family", "layers", *dtypes], ["---"] * (2 + len(dtypes))]
    for family, layers in dict.fromkeys((outcome.case.family, outcome.case.layers) for outcome in outcomes):
        cells = []
        for dtype in dtypes:
            chosen = [o for o in outcomes if (o.case.family, o.case.layers, o.case.dtype) == (family, layers, dtype)]
            right, wrong = [o for o in chosen if not o.mistake], [o for o in chosen if o.mistake]
            kinds = " ".join(sorted({o.found for o in right}))
            found = sum(not o.is_bad for o in wrong)
            by_bits = sum(o.found == "bits" for o in wrong)
            note = f" ({by_bits} by bits)" if by_bits else ""
            cells.append(f"{kinds} {found}/{len(wrong)}{note}" if wrong else kinds)
        lines.append([family, str(layers), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=lambda text: text.split(","), default=[*families.TREES])
    parser.add_argument("--layers", type=lambda text: [int(part) for part in text.split(",")], default=[*LAYERS])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=[*DTYPES])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    began = perf_counter()
    cases = [Case(*parts) for parts in product(given.families, given.layers, given.dtypes, (False, True))]
    outcomes: list[Outcome] = []
    with get_context("spawn").Pool(given.processes) as pool:
        for found in pool.imap(measure, cases):
            outcomes += found
            if sys.stderr.isatty():
                print(f"\r{len(outcomes)} probes", end="", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(table(outcomes))
    skipped = {(o.case.family, o.case.dtype): o.said for o in outcomes if o.found == "skipped"}
    for (family, dtype), reason in skipped.items():
        print(f"skipped: {family}, {dtype}: {reason}")
    bad = [outcome for outcome in outcomes if outcome.is_bad]
    for outcome in bad:
        print(outcome.label)
    right, wrong = [o for o in outcomes if not o.mistake and o.compiler], [o for o in outcomes if o.mistake]
    print(
        f"{sum(not o.is_bad for o in right)} of {len(right)} right models taken with trees, "
        f"{sum(not o.is_bad for o in wrong)} of {len(wrong)} mistakes found, in {perf_counter() - began:.0f} s"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
