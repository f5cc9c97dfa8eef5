"""Does any JSON schema crash, hang, or let a text through that isn't valid? Schemas made at random, decoded.

    python -m benchmarks schema_fuzz [--num-schemas 2000] [--max-new-tokens 60]

Hypothesis makes the schemas (``tests/support/schemas.py``): satisfiable ones, and any at all, with contradictions,
references, recursion, unknown keywords and values of wrong kinds. Each is refused with a place in the schema, or
decoded by ``auto`` on the built-in model, at temperature 1 or 4, in batches. Complete texts are validated by
``jsonschema``. The exit code is 1 after a crash, a text that isn't valid, or a batch that takes more than ``--most``
seconds of the processor.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema

from benchmarks.models import add_model_options, load_model
from specdec import Generator, SpecdecError
from specdec.constraints import JsonSchema
from tests.support.schemas import ANY, check_valid, distinct

TEMPERATURES = (1.0, 4.0)
BATCH = 8


def made(schemas: Sequence[Any], counts: Counter[str], generator: Generator) -> Iterator[tuple[Any, JsonSchema]]:
    """The schemas that aren't refused, each with its constraint."""
    for schema in schemas:
        began = time.perf_counter()
        try:
            constraint = JsonSchema(json.dumps(schema))
            refusal = generator.refusals(["x"], constraint=constraint)[0]
        except SpecdecError as error:
            refusal = error
        except Exception as error:
            refusal = error
        seconds = time.perf_counter() - began
        counts["slowest compilation, ms"] = max(counts["slowest compilation, ms"], round(1000 * seconds))
        if refusal is None:
            yield schema, constraint
        elif not isinstance(refusal, SpecdecError):
            complain(counts, "crash", schema, repr(refusal))
        elif "at #" in str(refusal):
            counts["refused, with the place"] += 1
        else:
            complain(counts, "refused, without the place", schema, str(refusal))


def judge(result: Any, schema: Any, counts: Counter[str]) -> None:
    """Count a text as valid, invalid, cut, or an error."""
    if result.error is not None:
        kind = "refused while decoding" if isinstance(result.error, SpecdecError) else "crash"
        complain(counts, kind, schema, str(result.error))
    elif result.finish_reason == "length":
        counts["cut at the length"] += 1
    else:
        try:
            check_valid(json.loads(result.text), schema)
            counts["valid"] += 1
        except (ValueError, jsonschema.ValidationError, jsonschema.SchemaError) as error:
            complain(counts, "invalid", schema, f"{result.text!r}: {str(error).splitlines()[0]}")


def complain(counts: Counter[str], kind: str, schema: Any, reason: str) -> None:
    counts[kind] += 1
    print(f"{kind}: {reason[:300]}\n    {json.dumps(schema)[:600]}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument("--num-schemas", type=int, default=2000)
    parser.add_argument("--max-new-tokens", type=int, default=60)
    parser.add_argument("--most", type=float, default=60.0, help="processor seconds of a batch at most")
    arguments = parser.parse_args()
    generator = Generator(*load_model(arguments), weights="stock", max_batch_size=BATCH)
    counts = Counter[str]()
    decoded = [*made(distinct(ANY, arguments.num_schemas), counts, generator)]
    for start in range(0, len(decoded), BATCH):
        schemas, constraints = zip(*decoded[start : start + BATCH], strict=True)
        began = time.process_time()
        results = generator.generate(
            ["# Data, as JSON\n"] * len(constraints),
            each=[{"constraint": each} for each in constraints],
            temperature=TEMPERATURES[start // BATCH % len(TEMPERATURES)],
            seed=start,
            max_new_tokens=arguments.max_new_tokens,
        )
        if time.process_time() - began > arguments.most:
            complain(counts, "hang", schemas, f"{time.process_time() - began:.0f} s")
        for schema, result in zip(schemas, results, strict=True):
            judge(result, schema, counts)
        print(f"{start + len(schemas)} of {len(decoded)}: {dict(counts)}", file=sys.stderr, flush=True)
    for kind, count in sorted(counts.items()):
        print(f"{kind}: {count}")
    return int(any(counts[kind] for kind in ("crash", "invalid", "hang")))


if __name__ == "__main__":
    sys.exit(main())
