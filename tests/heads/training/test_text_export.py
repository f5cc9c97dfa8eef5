"""Exported text renders to the very tokens that the model wrote, and the trainers' own readers take it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec import RequestError, demo
from specdec.heads.training.script import Script
from specdec.heads.training.text import TrainingText
from specdec.heads.training.text_export import ExportLayout, write_text

TURNS = [
    ("Write a poem about", "Rain, rain."),
    ("Explain how\nthis works", "The lamp is lit.\n\n## Then\n- one"),
    ("Quem?", "Olá, é só isso"),
]


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer() -> Any:
    return demo.load()[1]


def rendered(tokenizer: Any, user: str, answer: str) -> list[int]:
    """A whole conversation by the tokenizer's own template, up to the token that ends the answer."""
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return list(tokenizer.encode(text.rstrip("\n"), add_special_tokens=False))


def written(tokenizer: Any, path: Path, layout: ExportLayout, is_chat: bool = True) -> tuple[TrainingText, list[Any]]:
    """Documents of the template, the last one cut off, as they are read from an exported file."""
    script = Script.chat(tokenizer, [0, 1]) if is_chat else Script.continuation(0, [0, 1])
    documents = [rendered(tokenizer, *turn) for turn in TURNS]
    documents[-1] = documents[-1][:-2]
    mark = tokenizer.convert_tokens_to_ids("<|assistant|>")
    answers = [each.index(mark) + 2 for each in documents]  # after the line's end
    text = TrainingText.of([np.array(each, np.int32) for each in documents], answers)
    write_text(path, layout, text, script, tokenizer)
    return text, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_conversations_render_to_the_tokens_that_were_written(tokenizer: Any, tmp_path: Path) -> None:
    text, lines = written(tokenizer, tmp_path / "text.jsonl", ExportLayout.specforge)
    assert [line["id"] for line in lines] == ["0", "1", "2"]
    for index, line in enumerate(lines):
        user, answer = line["conversations"]
        assert (user["role"], answer["role"]) == ("user", "assistant")
        document = text.document(index).tolist()
        assert rendered(tokenizer, user["content"], answer["content"])[: len(document)] == document
    assert lines[0]["conversations"][1]["content"] == TURNS[0][1]


def test_text_without_the_templates_turns_is_rendered_text(tokenizer: Any, tmp_path: Path) -> None:
    text, lines = written(tokenizer, tmp_path / "text.jsonl", ExportLayout.specforge, is_chat=False)
    assert lines[0].keys() == {"id", "text"}
    for index, line in enumerate(lines):
        assert tokenizer.encode(line["text"], add_special_tokens=False) == text.document(index).tolist()


def test_answers_to_prompts_of_several_turns_are_rendered_text(tokenizer: Any, tmp_path: Path) -> None:
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", "One"), ("assistant", "Two"), ("user", "Three"), ("assistant", "Four"))
    ]
    rendered_text = tokenizer.apply_chat_template(messages, tokenize=False).rstrip("\n")
    document = list(tokenizer.encode(rendered_text, add_special_tokens=False))
    mark = tokenizer.convert_tokens_to_ids("<|assistant|>")
    answer = len(document) - document[::-1].index(mark) + 1
    text, path = TrainingText.of([np.array(document, np.int32)], [answer]), tmp_path / "text.jsonl"
    for ends in ([0, 1], [0]):  # the template ends turns by 1
        write_text(path, ExportLayout.specforge, text, Script.chat(tokenizer, ends), tokenizer)
        assert json.loads(path.read_text(encoding="utf-8")) == {"id": "0", "text": rendered_text}


def test_tokens_have_a_mask_of_the_answers(tokenizer: Any, tmp_path: Path) -> None:
    text, lines = written(tokenizer, tmp_path / "text.jsonl", ExportLayout.speculators)
    for index, line in enumerate(lines):
        assert line["input_ids"] == text.document(index).tolist()
        answer = [token for token, mask in zip(line["input_ids"], line["loss_mask"], strict=True) if mask]
        assert tokenizer.decode(answer).startswith(TURNS[index][1][:5])
        assert sum(line["loss_mask"]) == len(answer)


def test_speculators_reads_its_file(tokenizer: Any, tmp_path: Path) -> None:
    reader = pytest.importorskip("speculators.data_generation.preprocessing")
    path = tmp_path / "text.jsonl"
    _, lines = written(tokenizer, path, ExportLayout.speculators)
    raw, _ = reader.load_raw_dataset(str(path))
    read = reader.build_speculator_training_dataset(raw, tokenizer, num_proc=1)
    assert [row["input_ids"].tolist() for row in read] == [line["input_ids"] for line in lines]
    assert [row["loss_mask"].tolist() for row in read] == [line["loss_mask"] for line in lines]


def test_specforge_reads_both_files(tokenizer: Any, tmp_path: Path) -> None:
    parse, template = pytest.importorskip("specforge.data.parse"), pytest.importorskip("specforge.data.template")
    builder = pytest.importorskip("specforge.data.prompt_builder")
    text, lines = written(tokenizer, tmp_path / "text.jsonl", ExportLayout.specforge)
    kind = template.ChatTemplate(
        assistant_header="<|assistant|>\n", user_header="<|user|>\n", end_of_turn_token="<|end|>"
    )
    parser = parse.GeneralParser(tokenizer, kind)
    for index, line in enumerate(lines):
        ids, mask = parser.parse(line["conversations"], 512)
        document, answer = text.document(index).tolist(), int(text.answers[index])
        assert ids[: len(document)].tolist() == document
        assert mask.nonzero()[0].item() == answer
    path = tmp_path / "tokens.jsonl"
    _, lines = written(tokenizer, path, ExportLayout.speculators)
    options: dict[str, Any] = dict.fromkeys(("chat_template", "cache_dir", "cache_key", "num_proc"))
    flags = {"is_preformatted": False, "train_only_last_turn": False}
    tasks = builder.prepare_prompt_tasks(path, tokenizer, max_length=512, **options, **flags)
    assert [task["payload"] for task in tasks] == lines


def test_a_file_that_cannot_be_written_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="can't be written to"):
        written(tokenizer, tmp_path / "file" / "text.jsonl", ExportLayout.specforge)
