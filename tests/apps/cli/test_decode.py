"""The command line: what goes to which stream, and with which exit code it ends."""

import errno
import io
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from safetensors import SafetensorError

from specdec import Generator, ModelError, Proposer, Result, hookimpl
from specdec.apps.cli.decode import print_stream
from specdec.decoding.result import Chunk
from specdec.decoding.stats import Stats
from specdec.numerics import Numerics
from specdec.plugins.registry import load_plugins
from specdec.strategies.autoregressive import AutoregressiveProposer
from tests.support.entry_points import FakeEntryPoint
from tests.support.fresh_process import modelling

PROMPT = "def add(a, b):\n"
FEW = ("--max-new-tokens", "12")


def plain(built_in: tuple[Any, Any], prompt: Any = PROMPT, **settings: Any) -> Result:
    """The result of plain decoding."""
    decoder = Generator(*built_in, proposer="autoregressive")
    result: Result = decoder.generate(prompt, **{"max_new_tokens": 12, **settings})
    assert result.text
    return result


def test_plugins_lists_each_with_its_distribution_options_and_defaults(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run("plugins")
    assert (code, err) == (0, "")
    rows = [tuple(line.split()) for line in out.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in out.splitlines() if line.startswith("    N=")] == ["N=5"]
    registry = load_plugins()
    found = [(plugin.kind[:-1], registry.name_of(plugin), plugin.distribution) for plugin in registry.plugins]
    assert found == rows


def test_plugins_as_json_is_one_line_for_each(run: Any) -> None:
    code, out, _ = run("plugins", "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    registry = load_plugins()
    found = [(plugin.kind, registry.name_of(plugin), plugin.distribution) for plugin in registry.plugins]
    assert [(entry["kind"], entry["name"], entry["from"]) for entry in entries] == found
    lookahead = next(entry for entry in entries if entry["name"] == "lookahead")
    assert lookahead["options"]["N"]["default"] == "5"


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_plugins_reports_a_broken_distribution_on_standard_error(
    run: Any, monkeypatch: pytest.MonkeyPatch, as_json: tuple[str, ...]
) -> None:
    broken = FakeEntryPoint("their-dist", lambda: 1 // 0)
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [broken])
    code, out, err = run("plugins", *as_json)
    assert (code, err) == (0, "broken: their-dist: ZeroDivisionError: integer division or modulo by zero\n")
    assert "their-dist" not in out
    assert "lookahead" in out


class Theirs(AutoregressiveProposer):
    """A third party's strategy."""


def offering(*names: str) -> Any:
    """A third party's module with a strategy of each name."""

    @hookimpl
    def specdec_proposers() -> dict[str, type[Proposer]]:
        return dict.fromkeys(names, Theirs)

    return SimpleNamespace(specdec_proposers=specdec_proposers)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_plugins_lists_each_by_the_name_that_works_and_says_why_it_is_a_longer_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, as_json: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    modules = {"a-dist": offering("mine"), "b-dist": offering("mine", "jacobi", "other"), "c-dist": offering("mine")}
    entry_points = [FakeEntryPoint(name, partial(modules.get, name)) for name in modules]
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: entry_points)
    code, out, err = run("plugins", *as_json)
    lines = [line for line in out.splitlines() if not line.startswith(" ")]
    listed = [json.loads(line)["name"] if as_json else line.split()[1] for line in lines]
    theirs = ["a-dist/mine", "b-dist/mine", "b-dist/jacobi", "other", "c-dist/mine"]
    assert code == 0
    assert [name for name in listed if name.startswith(("a-", "b-", "c-", "other"))] == theirs
    assert "jacobi" in listed
    for name in listed:
        if name in theirs:
            assert run("generate", "a", "--proposer", name, "--max-new-tokens", "1")[0] == 0
    assert err.splitlines() == [
        "a-dist/mine: use the full name, since there is a proposer mine in b-dist and c-dist too",
        "b-dist/mine: use the full name, since there is a proposer mine in a-dist and c-dist too",
        "b-dist/jacobi: use the full name, since there is a proposer jacobi in specdec too",
        "c-dist/mine: use the full name, since there is a proposer mine in a-dist and b-dist too",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "a", "--proposer", "padded"),
        ("generate", "a", "--verifier", "padded"),
        ("compare", "padded"),
        ("compare", "jacobi", "--verifier", "padded"),
        ("tune", "padded"),
        ("audit", "--proposer", "padded"),
        ("audit", "--verifier", "padded"),
        ("mask", "--proposer", "padded"),
        ("trace", "--proposer", "padded"),
        ("race", "jacobi", "padded"),
    ],
)
def test_every_command_mentions_broken_distributions_where_a_name_is_not_found(
    run: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    broken = [FakeEntryPoint("their-dist", lambda: 1 // 0), FakeEntryPoint("other-dist", lambda: {}["key"])]
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: broken)
    code, out, err = run(*arguments)
    first, *lines = err.splitlines()
    assert (code, out) == (2, "")
    assert re.match(r"error: unknown (proposer|verifier) 'padded': ", first)
    assert lines == [
        "their-dist is installed but broken: ZeroDivisionError: integer division or modulo by zero",
        "other-dist is installed but broken: KeyError: 'key'",
    ]


def test_a_prompt_comes_as_an_argument_from_a_file_or_from_standard_input(
    run: Any, built_in: tuple[Any, Any], tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    expected = plain(built_in).text + "\n"
    for arguments, stdin in (((PROMPT,), ""), (("--file", str(file)), ""), ((), PROMPT)):
        code, out, err = run("generate", *arguments, *FEW, stdin=stdin)
        assert (code, out) == (0, expected)
        assert re.search(
            r"\d+ tokens in \d+ steps, .* finished: (length|stop); numerics: exact$",
            " ".join(err.split()),
        )


def test_options_reach_the_settings(run: Any, built_in: tuple[Any, Any]) -> None:
    options = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 3}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    code, out, _ = run("generate", PROMPT, *FEW, *flags, "--no-repeat-ngram-size", "4", "--proposer", "jacobi:n=3")
    assert (code, out) == (0, plain(built_in, no_repeat_ngram_size=4, **options).text + "\n")
    whole = plain(built_in)
    assert whole.text is not None
    stop = whole.text[3:5]
    out = run("generate", PROMPT, *FEW, "--stop", stop, "--stop", "never said")[1]
    assert out == whole.text[: whole.text.find(stop)] + "\n"
    end = built_in[1].eos_token
    assert run("generate", PROMPT, *FEW, "--stop", end)[0] == 2  # the text leaves it out
    assert run("generate", PROMPT, *FEW, "--stop", end, "--no-skip-special-tokens")[:2] == (0, whole.text + "\n")
    first = whole.token_ids[0]
    _, out, _ = run("generate", PROMPT, "--json", "--eos-token-id", "1", "--eos-token-id", str(first))
    assert json.loads(out)["token_ids"] == [first]


def test_the_figures_name_the_numerics_and_json_has_the_reason(run: Any) -> None:
    asked = ("generate", PROMPT, *FEW, "--numerics", "fast")
    code, _, err = run(*asked)
    assert code == 0
    assert err.splitlines()[-1].endswith("; numerics: fast")
    told = json.loads(run(*asked, "--json")[1])["numerics"]
    assert (told["mode"], told["bit_exact"]) == ("fast", False)
    assert len(told["reason"]) > 20


def warning_of(category: type[Warning], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have decoding warn, on two lines."""
    generate = Generator.generate

    def warned(self: Generator, prompt: Any, **settings: Any) -> Any:
        warnings.warn("decoding with [fast] numerics:\n  another text may come", category, stacklevel=2)
        return generate(self, prompt, **settings)

    monkeypatch.setattr(Generator, "generate", warned)


@pytest.mark.filterwarnings("default:decoding with")
def test_a_warning_is_one_line_on_standard_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warning_of(UserWarning, monkeypatch)
    code, out, err = run("generate", PROMPT, *FEW, "--json")
    assert (code, err) == (0, "warning: decoding with [fast] numerics: another text may come\n")
    assert len(out.splitlines()) == 1


@pytest.mark.filterwarnings("default:decoding with")
def test_a_warning_is_dim_in_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warning_of(UserWarning, monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert (
        "\x1b[2mwarning: decoding with [fast] numerics: another text may come\x1b[0m"
        in run("generate", PROMPT, "--json")[2]
    )


@pytest.mark.filterwarnings("default:decoding with")
def test_a_warning_for_programmers_is_shown_as_python_does(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warning_of(FutureWarning, monkeypatch)
    err = run("generate", PROMPT, *FEW, "--json")[2]
    assert re.search(r"^\S+\.py:\d+: FutureWarning: decoding with \[fast\] numerics:\n", err)


def test_warnings_are_shown_as_before_once_the_command_is_over(run: Any) -> None:
    before, filters = warnings.showwarning, list(warnings.filters)
    assert run("generate", "--no-such-option")[0] == 2
    assert run("generate", PROMPT, *FEW)[0] == 0
    assert warnings.showwarning is before
    assert warnings.filters == filters


def test_a_terminal_is_told_what_takes_its_time_and_the_line_vanishes(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for as_json in ((), ("--json",)):
        _, out, err = run("generate", PROMPT, *FEW, *as_json)
        *lines, rest = err.split("\x1b[2K")  # which erases a line
        shown = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line).strip() for line in lines if "…" in line]
        assert list(dict.fromkeys(shown)) == ["starting…", "loading demo…", "trying the model out…", "decoding…"]
        assert "…" not in out + rest


def test_what_is_said_of_decoding_vanishes_before_the_text_comes() -> None:
    written = io.StringIO()
    chunks = iter([Chunk((1,), "one "), Chunk((2,), "two")])
    print_stream(Console(file=written, force_terminal=True), chunks, lambda: written.write("|"))
    assert written.getvalue() == "|one |two\n"
    print_stream(Console(file=written), iter([Chunk((1,), "piped")]), lambda: written.write("|"))
    assert written.getvalue() == "|one |two\npiped\n"


def test_json_is_one_line_with_text_tokens_reason_seed_and_figures(run: Any, built_in: tuple[Any, Any]) -> None:
    code, out, err = run("generate", PROMPT, *FEW, "--json")
    (line,) = out.splitlines()
    result = json.loads(line)
    assert (code, err) == (0, "")
    expected = plain(built_in)
    assert (result["text"], result["finish_reason"]) == (expected.text, expected.finish_reason)
    assert result["token_ids"] == list(expected.token_ids)
    assert result["stats"]["num_tokens"] == sum(result["stats"]["accepted_lengths"]) == len(expected.token_ids)
    again = run("generate", PROMPT, *FEW, "--json", "--temperature", "1", "--seed", str(result["seed"]))
    assert json.loads(again[1])["seed"] == result["seed"]


def test_chat_sends_the_prompt_through_the_template(run: Any, built_in: tuple[Any, Any]) -> None:
    expected = plain(built_in, [{"role": "user", "content": "hello"}]).text
    assert run("generate", "hello", "--chat", *FEW)[:2] == (0, f"{expected}\n")


def streaming(*texts: str, error: BaseException | None = None) -> Any:
    def stream(self: Generator, prompt: Any, **settings: Any) -> Iterator[Chunk]:
        for text in texts[:-1]:
            yield Chunk((1, 2), text)
        if error is not None:
            raise error
        yield Chunk((3,), texts[-1], 0, Result((1, 2, 3), "".join(texts), "length", Stats(), 0, Numerics("exact")))

    return stream


def test_a_pipe_gets_the_text_to_the_letter(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("all:\n\tcc -o a\r\n", "  [bold]x[/] \f\x07", "x" * 300, " :smile: \n\n")
    monkeypatch.setattr(Generator, "stream", streaming(*texts))
    assert run("generate", PROMPT)[:2] == (0, "".join(texts) + "\n")


def test_a_terminal_gets_a_colour_for_each_step_of_several_tokens(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Generator, "stream", streaming("one ", "two ", "three"))
    _, out, _ = run("generate", PROMPT)
    assert out == "\x1b[36mone \x1b[0m\x1b[35mtwo \x1b[0mthree\n"


def test_an_interruption_exits_with_130_and_leaves_what_was_printed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "stream", streaming("so far", " and no", "further", error=KeyboardInterrupt()))
    code, out, err = run("generate", PROMPT)
    assert (code, out) == (130, "so far and no")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("generate", PROMPT, "--proposer", "lookahead:N=1"), "error: options of proposer 'lookahead' refused: N=1"),
        (("generate",), "error: the prompt is empty: give at least one token"),
        (("generate", "", "--json"), "error: the prompt is empty: give at least one token"),
        (("generate", PROMPT, "--file", "x"), "error: a prompt and --file were both given: choose one"),
        (("generate", "--file", "no/such/file"), "error: --file no/such/file can't be read: No such file or directory"),
        (("generate", PROMPT, "--stop", ""), "error: settings refused: stop contains an empty string"),
        (("generate", PROMPT, "--model", "/no/such [model]"), "error: can't load '/no/such [model]': there is no such"),
        (("generate", PROMPT, "--max-new-tokens", "100000"), "error: the prompt has "),
        (("generate", PROMPT, "--max-new-tokens", "0"), "error: --max-new-tokens '0': it must be at least 1"),
        (("generate", PROMPT, "--model", ""), "error: the model's name is empty. Give a folder"),
        (("generate", "\udcff"), "error: the argument is not UTF-8 text"),
    ],
)
def test_what_is_refused_exits_with_2_and_the_reason_on_standard_error(
    run: Any, arguments: tuple[str, ...], fault: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(fault)
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_an_output_that_cannot_be_written_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:  # closing it would fail if the rest were written again
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = run("generate", PROMPT, "--max-new-tokens", "3")
    assert code == 1
    assert "error: the output can't be written: No space left on device" in err.splitlines()
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "RuntimeError: DefaultCPUAllocator: can't"),
        (MemoryError(), "MemoryError): free memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "OSError: [Errno 12] Cannot allocate memory): free memory"),
        (SafetensorError("Cannot allocate memory (os error 12)"), "SafetensorError: Cannot allocate memory"),
        (ImportError("failed to map segment: Cannot allocate memory"), "ImportError: failed to map"),
        (RuntimeError("can't start new thread"), "RuntimeError: can't start new thread): free memory"),
        (RuntimeError("Failed to allocate 3538944 bytes of memory"), "RuntimeError: Failed to allocate 3538944 bytes"),
    ],
)
def test_memory_that_runs_out_is_one_line_with_the_remedy(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    def full(*_: object, **__: object) -> None:
        monkeypatch.setattr("specdec.apps.cli.command_line.Console", full)  # for which there is no memory either
        raise error

    def refused(*_: object, **__: object) -> None:
        try:
            full()
        except Exception as fault:
            raise ModelError("the file is damaged") from fault

    for name, failing in (("stream", full), ("stream", refused), ("__init__", refused)):
        with monkeypatch.context() as patched:
            patched.setattr(Generator, name, failing)
            code, _, err = run("generate", PROMPT)
        assert code == 1
        assert f"error: memory ran out ({shown}" in err
        assert "load the model in bfloat16" in err
        assert "damaged" not in err


def test_a_process_with_little_memory_says_so_in_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WITH_LITTLE_MEMORY, "generate", PROMPT, "--model", "demo"],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    # What torch does at exit may fail as well.
    line = r"error: memory ran out \([^\n]*\): free memory, or load the model in bfloat16 [^\n]*\n"
    assert re.match(line + r"(Exception ignored in atexit|\Z)", ended.stderr), ended.stderr


_WITH_LITTLE_MEMORY = """
import resource
import specdec.generator, transformers.models.llama.modeling_llama
from specdec.apps.cli import main
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
main()
"""


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("generate", "--no-such-option"), "--no-such-option"),
        (("generate", PROMPT, "--max-new-tokens", "many"), "--max-new-tokens"),
        (("genrate",), "genrate"),
    ],
)
def test_wrong_usage_exits_with_2(run: Any, arguments: tuple[str, ...], fault: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert fault in err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("generate", PROMPT, "--max-new-tokens", "abc"), "--max-new-tokens 'abc': give a whole number"),
        (("compare", "jacobi", "--temperature", "hot\n"), "--temperature 'hot\\n': give a number"),
        (("serve", "--port", "70000"), "--port '70000': it must be at most 65535"),
        (("compare", "jacobi", "--threads", "0"), "--threads '0': it must be at least 1"),
    ],
)
def test_a_value_of_an_option_is_refused_in_one_line_with_what_was_given(
    run: Any, arguments: tuple[str, ...], fault: str
) -> None:
    assert run(*arguments) == (2, "", f"error: {fault}\n")


def test_as_a_process_it_reads_a_pipe_writes_one_without_escape_codes_and_imports_nothing_that_others_need(
    built_in: tuple[Any, Any],
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "specdec", "generate", *FEW],
        input=PROMPT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{plain(built_in).text}\n")
    assert "\x1b" not in done.stderr
    assert " tokens per step, " in done.stderr
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert modelling(imported)  # or it would prove nothing
    assert not imported & {"specdec.apps.comparison", "specdec.apps.pictures", "specdec.apps.auditing", "matplotlib"}


def test_figures_of_one_token_have_no_plural_and_greedy_ones_no_seed(run: Any) -> None:
    one = ("generate", "def add(a, b):\n", "--max-new-tokens", "1")
    _, _, err = run(*one)
    assert "1 token in 1 step, 1.00 tokens per step, " in err
    assert "seed" not in err
    _, _, err = run(*one, "--temperature", "0.7", "--seed", "3")
    assert "; seed 3; numerics: " in err
    _, out, _ = run("trace", "def add(a, b):\n", "--max-new-tokens", "1")
    assert not re.search(r"\b1 (?:tokens|steps|nodes)\b", out)


def test_a_reference_is_a_file_that_is_drafted_from(built_in: tuple[Any, Any], run: Any, tmp_path: Path) -> None:
    expected, file = plain(built_in), tmp_path / "answer.txt"
    file.write_bytes(b"\xef\xbb\xbf" + str(expected.text).encode())
    code, out, err = run("generate", PROMPT, *FEW, "--reference", str(file), "--proposer", "reference")
    assert (code, out) == (0, f"{expected.text}\n")
    assert "reference proposed" in err
    code, out, err = run("generate", PROMPT, *FEW, "--reference", str(file), "--proposer", "prompt_lookup")
    assert (code, out) == (2, "")
    assert "doesn't draft from a reference: use proposer='auto'" in err.replace("\n", " ")


def test_a_reference_that_cant_be_read_is_refused_before_the_model_is_loaded(run: Any, tmp_path: Path) -> None:
    missing, latin = tmp_path / "missing.txt", tmp_path / "latin.txt"
    latin.write_bytes("é".encode("latin-1"))
    for file, reason in ((missing, "can't be read: No such file"), (latin, "is not UTF-8 text")):
        code, _, err = run("generate", PROMPT, "--reference", str(file), "--model", "no-such-model")
        assert code == 2
        assert f"--reference {file} {reason}".replace(" ", "") in err.replace("\n", "").replace(" ", "")
