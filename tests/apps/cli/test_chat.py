"""Instructions go through a chat model's template, texts that are to be continued don't, on every command."""

from pathlib import Path
from typing import Any

import pytest

from specdec.apps.comparison import ComparisonSession, EvaluationPrompt
from specdec.apps.comparison.prompts import as_chat
from specdec.apps.pictures.trace import Recorder
from specdec.errors import RequestError

FILE = '{"prompt": "# heapq"}\n{"turns": ["What is bread?"]}\n{"prompt_ids": [5, 6]}\n'
FEW = ("--max-new-tokens", "4")
OF_FILES = {
    "compare": ("jacobi", *FEW, "--repeats", "1"),
    "tune": ("jacobi", "--option", "n=2", "--minutes", "0.01", *FEW),
    "audit": ("--proposer", "jacobi", *FEW),
}
OF_ONE = {
    "generate": ("Hello", *FEW),
    "trace": ("Hello", *FEW),
    "mask": ("--prompt", "Hello", *FEW),
    "race": ("jacobi", "prompt_lookup", "--prompt", "Hello", *FEW),
}


@pytest.fixture(name="templated")
def _templated(built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The prompts that went through the template."""
    tokenizer, asked = built_in[1], set[str]()
    apply = tokenizer.apply_chat_template

    def noting(messages: Any, **options: Any) -> Any:
        if options.get("add_generation_prompt"):  # else a template's end of turn is looked for
            asked.add(messages[0]["content"])
        return apply(messages, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", noting)
    return asked


@pytest.mark.parametrize(
    ("command", "option", "expected"),
    [
        ("tune", ("--chat",), {"# heapq", "What is bread?"}),  # it has a comparison's session
        ("compare", (), {"What is bread?"}),
        ("compare", ("--no-chat",), set()),
        ("audit", (), {"What is bread?"}),
        ("audit", ("--chat",), {"# heapq", "What is bread?"}),
    ],
)
def test_instructions_of_a_file_are_sent_as_chats(
    run: Any, tmp_path: Path, templated: set[str], command: str, option: tuple[str, ...], expected: set[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(FILE)
    code, out, err = run(command, *OF_FILES[command], "--prompts", str(path), *option)
    assert (code, bool(out)) == (0, True), err
    assert templated == expected


@pytest.mark.parametrize("command", OF_ONE)
@pytest.mark.parametrize(("option", "expected"), [((), set()), (("--chat",), {"Hello"}), (("--no-chat",), set())])
def test_a_text_alone_is_continued_unless_it_is_to_be_a_chat(
    run: Any, templated: set[str], command: str, option: tuple[str, ...], expected: set[str]
) -> None:
    code, _, err = run(command, *OF_ONE[command], *option)
    assert code == 0, err
    assert templated == expected


def test_a_plan_has_the_ids_that_the_template_gives(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    asked = EvaluationPrompt("qa", "bread", "What is bread?", is_instruction=True)
    message = [{"role": "user", "content": "What is bread?"}]
    expected = tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
    ids = {
        chat: ComparisonSession(model, {}, [asked, "# heapq"], tokenizer=tokenizer, chat=chat).plan.prompts
        for chat in (None, False)
    }
    assert ids[None][0][2] == tuple(expected)
    assert ids[False][0][2] == tuple(tokenizer("What is bread?")["input_ids"])
    assert ids[None][1][2] == ids[False][1][2] == tuple(tokenizer("# heapq")["input_ids"])


def test_a_trace_of_a_chat_shows_the_text_that_the_model_saw(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    message = [{"role": "user", "content": "What is bread?"}]
    traced = Recorder(model, tokenizer, "jacobi").trace(message, max_new_tokens=4)
    assert traced.prompt == tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)


def test_without_a_template_instructions_are_texts_and_chat_is_refused() -> None:
    prompts = [EvaluationPrompt("qa", "bread", "What is bread?", is_instruction=True)]
    assert as_chat(prompts, None) == prompts
    with pytest.raises(RequestError, match="the tokenizer has none: leave --chat out"):
        as_chat(prompts, None, chat=True)
