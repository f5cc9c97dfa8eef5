"""``specdec generate`` under a constraint: a schema's file, a regular expression, or choices."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

PROMPT = ("generate", "# Is it?\n", "--model", "demo", "--weights", "stock")


def test_each_form_constrains_the_text(run: Any, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('\ufeff{"type": "object", "properties": {"is_it": {"type": "boolean"}}, "required": ["is_it"], '
                      '"additionalProperties": false}', encoding="utf-8")  # fmt: skip
    code, out, _ = run(*PROMPT, "--json-schema", str(schema))
    assert code == 0
    assert json.loads(out)["is_it"] in (True, False)
    assert run(*PROMPT, "--choice", "yes", "--choice", "no")[1].strip() in ("yes", "no")
    assert run(*PROMPT, "--regex", "[0-9]{3}")[1].strip().isdigit()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--regex", "a", "--choice", "b"), "--regex and --choice were given: choose one"),
        (("--json-schema", "nowhere.json"), "--json-schema nowhere.json can't be read"),
        (("--json-schema", "SCHEMA"), "refused at #: the keyword 'minLenght' can't be enforced"),
        (("--regex", "a("), "unclosed group"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(run: Any, tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    (tmp_path / "schema.json").write_text('{"minLenght": 3}')
    given = [str(tmp_path / "schema.json") if option == "SCHEMA" else option for option in options]
    code, out, err = run(*PROMPT, *given)
    assert code != 0
    assert reason in " ".join((out + err).split())
