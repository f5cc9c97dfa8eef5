"""The command that makes an index, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from specdec_datastore.index.corpus import Corpus, Encoder
from specdec_datastore.index.lookup import Index

from tests.support.byte_tokenizer import trained
from tests.support.fresh_process import run_commands

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]}


@pytest.fixture(name="corpus")
def _corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "a.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "deep" / "er" / "b.txt").write_text("def add(a, b):\n    return b + a\n")
    (folder / ".git" / "config").write_text("hidden")
    (folder / "empty.txt").write_text("")
    (folder / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    (folder / "zeros.bin").write_bytes(b"text, and then\0\0")
    lines = [CHAT, {"prompt": "one ", "completion": "two"}, {"text": "three", "source": "more fields"}]
    (folder / "talk.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return folder


def test_a_folder_is_indexed_and_the_option_that_uses_it_works(
    run: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    output = tmp_path / "my.index"
    code, out, err = run("index", str(corpus), "--output", str(output))
    assert (code, err) == (0, "")
    assert "skipped, not UTF-8 text: 2 files" in out
    header, figures = out.splitlines()[:2]
    assert header.split() == ["index", "documents", "tokens", "MB", "seconds"]
    assert figures.split()[-4] == "5"
    option = out.splitlines()[-1].removeprefix("use it: --proposer ")
    assert option == f"auto+datastore:path={output}"
    code, out, _ = run("generate", "def add(a, b):\n", "--proposer", option, "--max-new-tokens", "8")
    assert (code, out) == (0, run("generate", "def add(a, b):\n", "--max-new-tokens", "8")[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "my.index"]


def test_documents_are_encoded_each_on_its_own_and_in_order(corpus: Path) -> None:
    tokenizer = trained()
    files = Corpus.of([corpus, corpus / "a.py"])
    names = [path.name for path in files.files]
    assert names == ["a.py", "empty.txt", "picture.png", "talk.jsonl", "zeros.bin", "b.txt"]
    documents = Encoder(tokenizer).encode(each for path in files.files for each in files.documents(path))
    assert [tokenizer.decode(ids) for ids in documents if ids] == [
        "def add(a, b):\n    return a + b\n",
        "Hi\nHello there",
        "one two",
        "three",
        "def add(a, b):\n    return b + a\n",
    ]


def test_long_texts_are_encoded_in_pieces_that_make_the_same_text(tmp_path: Path) -> None:
    text = "".join(f"the cat sat {nth}\n" for nth in range(30_000)) + "x" * 250_000
    (tmp_path / "long.txt").write_text(text)
    files = Corpus.of([tmp_path])
    (ids,) = Encoder(trained()).encode(each for path in files.files for each in files.documents(path))
    assert trained().decode(ids) == text


def test_conversations_go_through_the_chat_template_where_there_is_one() -> None:
    class Templated:
        chat_template = "one"

        def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool) -> str:
            return "".join(f"<{message['role']}>{message['content']}" for message in messages)

        def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
            return {"input_ids": [list(text.encode()) for text in texts]}

    (ids,) = Encoder(Templated()).encode(iter([CHAT["messages"]]))
    assert bytes(ids) == b"<user>Hi<assistant>Hello there"


@pytest.mark.parametrize(
    ("paths", "options", "message"),
    [
        (["nowhere"], [], "nowhere doesn't exist: give text files"),
        (["corpus/deep", "nowhere"], [], "nowhere doesn't exist"),
        (["corpus/empty.txt"], [], "the corpus is empty: give files or folders that contain text"),
        (["corpus/picture.png"], [], "the corpus is empty: give files or folders that contain text"),
        (["corpus/.git/none"], [], "doesn't exist"),
        (["bare"], [], "the corpus is empty: there are no files below"),
        (["odd.jsonl"], [], 'odd.jsonl, line 2 has an unknown layout: each line is one of {"messages": […]}'),
        (["cut.jsonl"], [], "cut.jsonl, line 1 isn't JSON"),
        (["corpus"], ["--output", "there.index"], "there.index exists already: add --overwrite"),
        (["corpus"], ["--output", "corpus"], "corpus is a folder: give a file"),
        (["corpus"], ["--output", "no/such/folder/x"], "can't be written"),
        (["corpus"], ["--output", "c++.index"], "give a name without '+' and ','"),
        (["corpus"], ["--model", "/no/such/model"], "there is no such folder"),
        (["corpus"], ["--model", "bare"], "has no tokenizer"),
    ],
)
def test_what_can_not_be_indexed_is_refused_in_one_line(
    run: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], options: list[str], message: str
) -> None:
    monkeypatch.chdir(corpus.parent)
    Path("bare").mkdir()
    Path("odd.jsonl").write_text('{"text": "one"}\n{"messages": []}\n')
    Path("cut.jsonl").write_text('{"text": \n')
    Path("there.index").write_text("somebody's")
    code, out, err = run("index", *paths, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert Path("there.index").read_text() == "somebody's"
    assert not Path("datastore.index").exists()
    assert not list(Path().glob(".*"))


def test_a_file_is_replaced_where_that_is_said(run: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus.parent)
    Path("datastore.index").write_text("old")
    assert run("index", "corpus", "--overwrite")[0] == 0
    index = Index(Path("datastore.index"), 16)
    assert index.header.num_documents == 5
    index.close()


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xef\xbb\xbfonce")
    assert [*Corpus.of([text]).documents(text)] == ["once"]


def test_its_help_and_its_refusals_import_no_torch() -> None:
    commands = [["--help"], ["index", "-h"], ["index", "--version"], ["index", "no/file"]]
    commands += [["index", "tests/conftest.py", "--model", "/no/such/model"]]
    *asked, missing, unknown = run_commands(commands)
    assert [end.code for end in asked] == [0] * 3
    assert "  index " in asked[0].out
    assert "Index a corpus for the strategy `datastore`." in asked[0].out
    assert (missing.code, unknown.code) == (2, 2)
    assert "no/file doesn't exist" in missing.err
    assert "there is no such folder" in unknown.err
    assert unknown.modules & {"torch", "transformers"} == set()


def test_no_line_of_help_is_cut_off_and_each_option_says_what_it_is_for(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("index", "--help")[1].splitlines()[2:]
    assert [line for line in lines if line.endswith(("…", "...")) or len(line) > 80] == []
    assert [line for line in lines if line.lstrip().startswith("--") and len(line.split()) < 2] == []
