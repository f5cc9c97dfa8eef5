"""Prompts of a measurement: which of a file's are taken, and how they are encoded."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prompts import EncodedPrompt, add_prompt_options, encoded_prompts

LINES = [("qa", "a b"), ("qa", "a b c"), ("code", "x = 1"), ("qa", "a"), ("code", "y" * 500)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"category": category, "prompt": text}) for category, text in LINES))
    return path


def taken(tokenizer: Any, *given: str) -> list[EncodedPrompt]:
    parser = argparse.ArgumentParser()
    add_prompt_options(parser)
    return encoded_prompts(parser.parse_args(given), tokenizer)


def test_all_of_a_file_by_category_in_its_order(path: Path, built_in: tuple[Any, Any]) -> None:
    tokenizer = built_in[1]
    found = taken(tokenizer, "--prompts", str(path))
    in_order = [*(line for line in LINES if line[0] == "qa"), *(line for line in LINES if line[0] == "code")]
    assert found == [EncodedPrompt(category, tokenizer(text)["input_ids"]) for category, text in in_order]


def test_so_many_of_each_category_of_these_the_short_ones_and_of_those_some(
    path: Path, built_in: tuple[Any, Any]
) -> None:
    tokenizer, prompts = built_in[1], ["--prompts", str(path)]
    assert [prompt.category for prompt in taken(tokenizer, *prompts, "--per-category", "1")] == ["qa", "code"]
    assert [prompt.category for prompt in taken(tokenizer, *prompts, "--longest", "100")] == ["qa", "qa", "qa", "code"]
    assert [prompt.category for prompt in taken(tokenizer, *prompts, "--category", "code")] == ["code", "code"]
    every = taken(tokenizer, *prompts)
    assert taken(tokenizer, *prompts, "--num-prompts", "2") == [every[0], every[2]]
    assert taken(tokenizer, *prompts, "--num-prompts", "9") == every


def test_a_chat_is_a_users_turn_by_the_template(path: Path, built_in: tuple[Any, Any]) -> None:
    tokenizer = built_in[1]
    messages = [{"role": "user", "content": "a b"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    first = taken(tokenizer, "--prompts", str(path), "--chat")[0]
    assert first.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert first.ids != tokenizer("a b")["input_ids"]
