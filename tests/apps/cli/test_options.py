"""Models by name, in every command that takes one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec.backends import base

COMMANDS = {
    "generate": ("Hello",),
    "compare": ("jacobi",),
    "tune": ("jacobi",),
    "audit": (),
    "mask": (),
    "trace": ("Hello",),
    "race": ("jacobi", "prompt_lookup"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_real_model_that_was_not_fetched_is_one_line_with_the_remedy(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = run(command, *COMMANDS[command], "--model", "smollm2")
    assert (code, out) == (2, "")
    assert err.startswith("error: smollm2 has not been fetched: run `make real-model`, or `python -m specdec.demo.smol")
    assert err.count("\n") == 1


def test_the_real_model_answers_a_chat_by_name(
    run: Any,
    smollm2: Callable[[str], tuple[Any, Any]],
    smollm2_in_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def load(name: str, tokenizer: Any, dtype: str, device: str, hub: Any) -> tuple[Any, Any]:
        asked.append((name, dtype))
        return smollm2(dtype)

    monkeypatch.setattr(base, "load_pretrained", load)
    code, out, _ = run(
        *("generate", "What is the capital of France?", "--model", "smollm2", "--chat", "--dtype", "bfloat16"),
        *("--numerics", "fast", "--proposer", "prompt_lookup", "--backend", "hf"),
    )
    assert code == 0
    assert "Paris" in out
    assert asked == [(str(smollm2_in_cache / "bfloat16"), "bfloat16")]


CHOOSE = "--model chooses another: a folder, hub name or GGUF file"
TOY = f"model: the built-in toy of 7 million parameters, which answers no questions; {CHOOSE} ("
REAL = f"model: SmolLM2-135M-Instruct; {CHOOSE}\n"
AS_CHAT = "the prompt is sent as a chat message; --no-chat continues it as text\n"
FEW = {
    "compare": ("--max-new-tokens", "2", "--repeats", "1", "--per-category", "1", "--numerics", "fast"),
    "tune": ("--max-new-tokens", "2", "--minutes", "0.001", "--per-category", "1", "--numerics", "fast"),
    "audit": ("--max-new-tokens", "2", "--per-category", "1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_a_model_says_which_it_uses_and_how_to_choose_another(printed: Any, command: str) -> None:
    given = *COMMANDS[command], *FEW.get(command, ("--max-new-tokens", "4")), "--backend", "hf"
    code, out, err = printed(command, *given)
    assert code == 0
    assert err.count(TOY) == 1
    assert AS_CHAT not in err
    assert TOY not in out
    if command == "generate":
        assert "model:" not in printed(command, *given, "--model", "demo")[2]


@pytest.mark.usefixtures("copy_as_smollm2")
@pytest.mark.parametrize("command", ["generate", "mask"])
def test_smollm2_is_the_default_model_once_it_was_fetched_and_answers_questions(printed: Any, command: str) -> None:
    given = *COMMANDS[command], "--max-new-tokens", "4", "--backend", "hf", "--dtype", "float32"
    asks = command == "generate"  # the other one continues its own prompt
    code, out, err = printed(command, *given)
    assert (code, err.count(REAL), err.count(AS_CHAT)) == (0, 1, asks)
    if asks:
        code, text, err = printed(command, *given, "--no-chat")
        assert (code, err.count(REAL), err.count(AS_CHAT)) == (0, 1, 0)
        assert text != out
        for options, expected in (((), text), (("--chat",), out)):
            _, named, err = printed(command, *given, "--model", "smollm2", *options)
            assert (named, REAL in err) == (expected, False)


@pytest.mark.usefixtures("copy_as_smollm2")
def test_an_index_is_made_with_the_tokenizer_of_the_default_model(printed: Any, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a text")
    for given, line in ((), REAL), (("--model", "demo"), ""):
        output = tmp_path / f"{len(given)}.index"
        code, _, err = printed("index", str(tmp_path / "corpus.txt"), "--output", str(output), *given)
        assert (code, err) == (0, line)
