"""Models by name, in every command that takes one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec.backends import base
from specdec.demo import smollm2 as real

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
    run: Any, smollm2: Callable[[str], tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
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
    assert asked == [(str(real.checkpoint("bfloat16")), "bfloat16")]
