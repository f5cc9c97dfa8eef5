"""What a training doesn't use of its input is counted, with the reason."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec.heads.training import HeadSettings
from specdec.heads.training.script import script_for
from specdec.heads.training.text import TrainingText
from specdec.heads.training.timed_training import SplitText


def tokenizer(**more: Any) -> Any:
    return SimpleNamespace(eos_token_id=0, bos_token_id=1, **more)


def test_prompts_that_are_too_long_or_too_short_are_counted() -> None:
    prompts = [[5] * 513, [5], [5] * 900, [6, *[5] * 511], [7, 8]]
    with pytest.warns(UserWarning, match="left out") as told:
        script = script_for(None, tokenizer(), prompts)
    assert [str(each.message) for each in told] == [
        "3 of 5 prompts left out: 2 of more than 512 tokens and 1 of fewer than 2 tokens"
    ]
    assert sorted(map(len, script.openings)) == [2, 512]
    with pytest.warns(UserWarning, match=r"^1 of 2 prompts left out: 1 of more than 512 tokens$"):
        script_for(None, tokenizer(), prompts[2:4])
    script_for(None, tokenizer(), prompts[3:])  # warns of nothing, or the suite would fail


def test_a_chat_template_that_cannot_be_used_is_not_left_out_in_silence() -> None:
    def refusing(*_: Any, **__: Any) -> str:
        raise ValueError("system messages only")

    with pytest.warns(UserWarning, match=r"^the chat template is left out, as it has no open user turn"):
        script = script_for(None, tokenizer(chat_template="x", apply_chat_template=refusing), None)
    assert script.description == "free text, as there is no chat template with an open user turn"


def test_texts_after_prompts_that_fill_a_row_are_counted() -> None:
    settings = HeadSettings(row_length=16, held_out_every=2)
    documents = [np.arange(12, dtype=np.int32) + index for index in range(8)]
    documents += [np.arange(40, dtype=np.int32) + index for index in range(3)]
    text = TrainingText.of(documents, [2] * 8 + [20] * 3)
    with pytest.warns(UserWarning, match=r"^3 of 11 written texts left out: their prompts have 16 tokens or more$"):
        split = SplitText.of(text, settings, 1, "the model")
    assert len(split.held_out) == 4
