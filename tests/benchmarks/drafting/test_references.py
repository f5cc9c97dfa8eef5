"""The measurement of references: what is changed, and what is compared."""

import random
from typing import Any

from benchmarks.drafting.references import AUTO, NAMES, RIGHT, changed, report


def test_the_share_of_words_is_changed_and_no_other() -> None:
    words = [f"w{number}" for number in range(200)]
    found = changed(" ".join(words), ["x", "y"], 0.03, random.Random(0)).split(" ")
    left = [word for word in dict.fromkeys(found) if word.startswith("w")]
    num_twice = sum(word.startswith("w") for word in found) - len(left)
    assert left == sorted(left, key=words.index)
    assert 200 - len(left) + num_twice == 6
    assert changed("a b", ["x"], 0.0, random.Random(0)) == "a b"


def test_speeds_are_compared_with_auto_on_the_same_documents() -> None:
    def run(name: str, index: int) -> dict[str, Any]:
        seconds = {AUTO: 4.0, RIGHT: 1.0 + index % 2}.get(name, 8.0)
        place = {"task": "transcript", "dtype": "float32", "index": index, "name": name, "is_same": True}
        return {**place, "tokens": 40, "steps": 10, "nodes": 50, "seconds": seconds}

    lines = report([run(name, index) for name in NAMES[:3] for index in range(8)], "seconds").splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in lines}
    assert cells[RIGHT][1:4] == ["4.00", "5.0", "27"]
    assert cells[RIGHT][4] == "3.00 [2.00, 4.00]"
    assert cells[RIGHT][5].startswith("2.67 [")
    assert cells[AUTO][4] == "1.00 [1.00, 1.00]"
