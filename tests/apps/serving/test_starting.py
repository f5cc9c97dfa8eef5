"""Starting: what takes its time is said, and options with which no request could be served are refused."""

import re
import sys
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from specdec import Generator, demo, generator
from specdec.apps import cli
from specdec.apps.cli.option_groups import with_option_groups
from specdec.apps.cli.serve import Access
from specdec.apps.serving import process
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.process import bind, check_memory
from specdec.errors import RequestError
from tests.support.built_in_model import built_in


def served_tokens(max_cache_bytes: int | None, **options: int) -> None:
    with Generator(*built_in(), proposer="autoregressive", max_cache_bytes=max_cache_bytes) as opened:
        opened.generate([0, 0], max_new_tokens=2)
        check_memory(opened, ServerOptions.model_validate({"name": "demo", **options}))


def test_too_little_memory_for_one_answer_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(RequestError, match=r"room for \d+ tokens") as refused:
        served_tokens(1 << 20)
    least = int(re.search(r"--cache-mb (\d+)", str(refused.value))[1])  # type: ignore[index]  # it is there
    assert least > 1
    served_tokens(least << 20)
    with pytest.raises(RequestError, match=f"--cache-mb {least} "):
        served_tokens((least - 1) << 20)


def test_prefixes_that_leave_no_memory_are_refused_too() -> None:
    with pytest.raises(RequestError, match="less to --prefix-mb"):
        served_tokens(None, max_prefix_bytes=1 << 60)
    served_tokens(None, max_prefix_bytes=1 << 20)


@pytest.mark.parametrize(
    ("variable", "options", "keys"),
    [
        ("one two", [], ["one", "two"]),
        ("one two", ["--api-key", "three", "--api-key", "four five"], ["three", "four five"]),
        ("", [], None),
        (None, [], None),
    ],
)
def test_keys_are_those_of_the_option_or_else_of_the_variable(
    variable: str | None, options: list[str], keys: list[str] | None
) -> None:
    app, default, found = typer.Typer(), Access(), list[Access]()

    @app.command()
    @with_option_groups
    def serve(access: Access = default) -> None:
        found.append(access)

    answer = CliRunner().invoke(app, options, env={"SPECDEC_API_KEY": variable})
    assert answer.exit_code == 0, answer.output
    assert found[0].api_key == keys


def test_an_origin_that_no_page_can_have_is_refused() -> None:
    Access(cors_origin=["https://example.org", "*"]).check()
    with pytest.raises(RequestError, match=r"^--cors-origin 'example\.org': give an origin such as "):
        Access(cors_origin=["example.org"]).check()
    for path in ("/", "/page"):
        with pytest.raises(RequestError, match=r"^--cors-origin .*: leave out the path: https://example\.org:8080$"):
            Access(cors_origin=[f"https://example.org:8080{path}"]).check()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--device", "abacus"], "device='abacus' can't be used here"),
        (["--dtype", "int4"], "dtype='int4': it must be"),
        (["--model", "/nowhere/at/all"], "there is no such folder"),
        (["--proposer", "eagle3:head=/nowhere"], "give the folder of a head that was trained"),
        (["--offer", "drafts=medusa:head=/nowhere"], "give the folder of a head that was trained"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_anything_is_loaded(
    options: list[str], fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["specdec", "serve", *options])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert fault in line


def test_the_command_says_what_it_does_and_why_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "load", built_in)
    options = ["--model", "demo", "--port", "0", "--threads", "1", "--cache-mb", "1", "--no-background-work"]
    monkeypatch.setattr(sys, "argv", ["specdec", "serve", *options])
    monkeypatch.setattr(generator, "HugePages", huge_pages := Mock())
    with bind("127.0.0.1", 0) as bound:
        monkeypatch.setattr(process, "bind", lambda *_: bound)
        with pytest.raises(SystemExit) as left:
            cli.main()
    assert left.value.code == 2
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert lines[:3] == [
        "loading demo…",
        "testing the model's passes on this machine…",
        "measuring passes and preparing strategies…",
    ]
    assert "--cache-mb" in lines[-1]
    assert "Traceback" not in err
    assert not huge_pages.called
