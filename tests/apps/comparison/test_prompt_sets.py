"""Prompt files in each form they come in, and what is said of those that are damaged."""

import json
from pathlib import Path

import pytest

from specdec import RequestError
from specdec.apps.comparison.prompts import EvaluationPrompt, as_chat, demo_prompts, load_prompts, select

MESSAGES = [{"role": "user", "content": "Hello?"}]


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_each_form_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "text", "category": "qa", "name": "first"},
        {"prompt_ids": [1, 2, 3]},
        "",
        {"messages": MESSAGES, "id": 7},
        {"question_id": 81, "category": "writing", "turns": ["first turn", "second turn"]},
        {"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "", "test": "", "entry_point": "f"},
    )
    with pytest.warns(UserWarning, match=r"of 1 of 5 prompts, only the first of several turns is used$"):
        read = load_prompts(path)
    assert read == [
        EvaluationPrompt("qa", "first", "text"),
        EvaluationPrompt("set", "line 2", [1, 2, 3]),
        EvaluationPrompt("set", "7", MESSAGES),
        EvaluationPrompt("writing", "81", "first turn", is_instruction=True),
        EvaluationPrompt("set", "HumanEval/0", "def f():"),
    ]


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('\ufeff{"prompt": "one\u2028line"}\r\n{"prompt": "two"}\n', encoding="utf-8")
    assert [prompt.prompt for prompt in load_prompts(path)] == ["one\u2028line", "two"]


def test_malformed_lines_are_named_by_number(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "good"}, "{", [1], {"prompt": ""}, {"prompt_ids": [1.5]}, {"turns": []})
    with pytest.raises(RequestError) as caught:
        load_prompts(path)
    told = str(caught.value)
    assert "line 2: not JSON" in told
    assert "line 3: a list, not an object" in told
    assert "line 4: 'prompt' is '': give 'prompt' (text)" in told
    assert told.endswith("(and 2 more)")


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RequestError, match="has no prompts"):
        load_prompts(written(tmp_path, text))
    with pytest.raises(RequestError, match=r"nothing\.jsonl can't be read: No such file or directory$"):
        load_prompts(tmp_path / "nothing.jsonl")


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('{"prompt": "café"}'.encode("latin-1"))
    with pytest.raises(RequestError, match="the file is not UTF-8 text: convert it first"):
        load_prompts(path)


class _Asks:
    chat_template = "Q: {{ messages[0]['content'] }} A:"


def test_no_built_in_prompt_has_another_models_markup() -> None:
    prompts = demo_prompts()
    assert [prompt.name for prompt in prompts if "<|" in prompt.prompt] == []
    asked = [prompt.prompt for prompt in as_chat(prompts, _Asks()) if not isinstance(prompt.prompt, str)]
    assert [message["content"] for (message,) in asked] == [
        prompt.prompt for prompt in prompts if prompt.category == "dialogue"
    ]
    assert as_chat(prompts, None) == prompts


def test_categories_and_how_many_of_each() -> None:
    chosen = select(demo_prompts(), ["code", "dialogue"], 2)
    assert [prompt.category for prompt in chosen] == ["code", "code", "dialogue", "dialogue"]
    assert select(demo_prompts()) == demo_prompts()
    with pytest.raises(RequestError, match="category 'verse' is unknown: there are code"):
        select(demo_prompts(), ["verse"])
