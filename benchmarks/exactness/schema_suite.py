"""Are schemas enforced as they read? The JSON Schema Test Suite, instance by instance.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xzf jsonschema-4.26.0.tar.gz
    python -m benchmarks schema_suite jsonschema-4.26.0/json/tests/draft2020-12 [--show]

The source package of ``jsonschema`` has the suite (https://github.com/json-schema-org/JSON-Schema-Test-Suite). Each of
its schemas is refused, or made a constraint, for which each instance is allowed or not as ``json.dumps`` writes it. An
invalid instance that is allowed is an error, and the exit code 1. A valid one that isn't allowed shows how a constraint
is narrower than its schema: properties come in the schema's order, and integers are written without a point.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec import RequestError
from specdec.constraints import ConstraintState, JsonSchema, Vocabulary
from tests.support.byte_tokenizer import trained

COLUMNS = ("schemas", "refused", "valid, allowed", "invalid, refused", "valid, refused", "INVALID, ALLOWED")


def allows(state: ConstraintState, text: str) -> bool:
    """Return True if a constraint allows a whole text, as the tokenizer spells it."""
    for token in trained()(text)["input_ids"]:
        if not state.mask()[token]:
            return False
        state = state.advance(token)
    return state.is_accepting


def outcomes(group: dict[str, Any], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """What happens to a schema, and to each of its instances if it isn't refused; each with a description."""
    yield "schemas", group["description"]
    try:
        state = JsonSchema(json.dumps(group["schema"])).start(vocabulary)
    except RequestError as error:
        yield "refused", str(error)
        return
    for test in group["tests"]:
        is_allowed = allows(state, json.dumps(test["data"], ensure_ascii=False))
        kind = f"{'valid' if test['valid'] else 'invalid'}, {'allowed' if is_allowed else 'refused'}"
        yield kind.upper() if kind == "invalid, allowed" else kind, test["description"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", action="store_true", help="list refused schemas and instances that are misjudged")
    arguments = parser.parse_args()
    vocabulary, total = Vocabulary(trained(), len(trained())), Counter[str]()
    print("| file | " + " | ".join(COLUMNS) + " |\n|---" + "|---" * len(COLUMNS) + "|")
    for path in sorted(arguments.folder.glob("**/*.json")):
        name, counts = path.relative_to(arguments.folder).with_suffix(""), Counter[str]()
        for group in json.loads(path.read_text(encoding="utf-8")):
            for kind, description in outcomes(group, vocabulary):
                counts[kind] += 1
                if arguments.show and kind in ("refused", "valid, refused", "INVALID, ALLOWED"):
                    print(f"{name}: {group['description']}: {kind}: {description}", file=sys.stderr)
        print(f"| {name} | " + " | ".join(str(counts[column]) for column in COLUMNS) + " |")
        total += counts
    print("| all | " + " | ".join(str(total[column]) for column in COLUMNS) + " |")
    return int(total["INVALID, ALLOWED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
