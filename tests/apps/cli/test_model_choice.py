"""What decodes is said in the same words, with the same defaults and the same refusals, on every command."""

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from specdec import Generator, ModelError, demo
from specdec.apps import cli
from specdec.errors import HubUnreachableError
from specdec.runtime import backend_choice
from tests.apps.cli.test_options import COMMANDS
from tests.support import built_in_model
from tests.support.preferred_engine import install

SAME = ("model", "dtype", "device", "numerics", "weights", "backend")
DECODE_NOTHING = {"bench-serve", "heads", "plugins", "report"}
CHOOSES_ITSELF = {"demo", "train"}  # a model that answers on the recommended engine; torch, which trains


def options_of(name: str) -> dict[str, Any]:
    group: Any = get_command(cli.app)
    return {option.name: option for option in group.commands[name].params}


def test_every_command_that_decodes_has_these_options_and_they_are_the_same() -> None:
    group: Any = get_command(cli.app)
    names = set(group.commands) - CHOOSES_ITSELF
    assert names > DECODE_NOTHING
    declared: dict[str, list[tuple[Any, ...]]] = {
        name: [
            (option.name, option.opts, option.help, option.default, option.required, option.multiple)
            for option in map(options_of(name).get, SAME)
            if option is not None
        ]
        for name in names
    }
    assert {name for name in names if not declared[name]} == DECODE_NOTHING - {"index", "bench-serve"}
    for name in names - DECODE_NOTHING:
        assert [each[0] for each in declared[name]] == list(SAME), name
        assert declared[name] == declared["generate"], name
    assert all(each[2] for each in declared["generate"])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [
        ("--model", "/nowhere", "error: "),
        ("--dtype", "wrong", "error: dtype='wrong': it must be bfloat16, float16, float32 or float64"),
        ("--device", "wrong", "error: device='wrong' can't be used here: "),
        ("--numerics", "wrong", "error: numerics='wrong': it must be one of auto, exact, fast"),
        ("--weights", "wrong", "error: weights='wrong'"),
        ("--backend", "wrong", "error: unknown backend 'wrong': "),
    ],
)
def test_no_command_ignores_one_of_them(run: Any, command: str, option: str, value: str, fault: str) -> None:
    code, out, err = run(command, *COMMANDS[command], option, value)
    assert (code, out) == (2, "")
    assert err.startswith(fault)
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["trace", "race", "mask"])
def test_pictures_are_of_the_model_as_it_was_asked_for(run: Any, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    asked: list[dict[str, str]] = []

    def load(**given: str) -> tuple[Any, Any]:
        asked.append(given)
        return built_in_model.own_built_in()

    monkeypatch.setattr(demo, "load", load)
    made: list[Any] = []
    init = Generator.__init__

    def noting(self: Any, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        made.append((self.numerics.mode, str(self.weights)))

    monkeypatch.setattr(Generator, "__init__", noting)
    arguments = ("--dtype", "bfloat16", "--numerics", "fast", "--weights", "stock", "--max-new-tokens", "8")
    code, _, _ = run(command, *COMMANDS[command], *arguments)
    assert code == 0
    assert asked == [{"dtype": "bfloat16"}]
    assert {mode for mode, _ in made} == {"fast"}
    assert not [weights for _, weights in made if weights.startswith("packed")]


FOLDER = str(Path(demo.__file__).parent / "model")


@pytest.mark.parametrize(
    ("failing", "options", "line"),
    [
        ({}, (), "decoding with swift; backend hf decodes with torch\n"),
        (
            {},
            ("--weights", "stock"),
            "decoding with torch, not with swift: weights='stock' applies to torch's layers\n",
        ),
        ({}, ("--proposer", "draft_model:layers=2"), "decoding with torch, not with swift: DraftModelProposer drafts "),
        ({"declines": "no graph"}, (), "decoding with torch, not with swift: no graph\n"),
        ({"read": ModelError("no gather")}, (), "decoding with torch, not with swift: no gather\n"),
        ({}, ("--backend", "hf"), ""),
    ],
    ids=str,
)
def test_a_command_says_once_which_engine_decodes(
    run: Any, monkeypatch: pytest.MonkeyPatch, failing: Any, options: tuple[str, ...], line: str
) -> None:
    install(monkeypatch, [], **failing)
    settings = "--model", FOLDER, "--max-new-tokens", "2", "--numerics", "fast"
    code, _, err = run("generate", "# heapq", *settings, *options)
    assert code == 0
    assert err.startswith(line)
    assert err.count("swift") == bool(line)


def test_so_does_a_command_that_draws(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [])
    code, _, err = run("trace", "# heapq", "--model", FOLDER, "--max-new-tokens", "2", "--numerics", "fast")
    assert (code, err) == (0, "decoding with swift; backend hf decodes with torch\n")


def test_a_misspelt_name_of_a_model_that_specdec_has_is_answered_with_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = [ModelError]

    def read_models(*_: Any) -> None:
        raise failure[0]("can't load it")

    monkeypatch.setattr(backend_choice, "read_models", read_models)
    answers = {
        "smolm2": "; did you mean --model smollm2?",
        "HuggingFaceTB/SmolLM2-135M-Instruct": "",
        "owner/gpt2": "",
    }
    for given, answer in answers.items():
        assert run("generate", "x", "--model", given) == (2, "", f"error: can't load it{answer}\n")
    failure[0] = HubUnreachableError
    expected = "error: can't load it; --model smollm2 needs no hub\n"
    assert run("generate", "x", "--model", "HuggingFaceTB/SmolLM2-135M-Instruct") == (2, "", expected)


def test_an_unquoted_prompt_is_answered_with_quotes(run: Any) -> None:
    code, out, err = run("generate", "hello", "world")
    assert (code, out) == (2, "")
    assert err.endswith("(world)\nPut the prompt in quotes: a prompt is one argument.\n")
    assert "quotes" not in run("report", "a.jsonl", "--nothing")[2]
    assert "quotes" not in run("plugins", "world")[2]


def test_a_value_without_its_option_is_answered_with_the_option(run: Any) -> None:
    assert run("serve", "smollm2")[2].endswith("(smollm2)\nGive a model with --model, a strategy with --proposer.\n")
    assert run("demo", "smollm2")[2].endswith("(smollm2)\nGive a model with --model.\n")
    assert "Give" not in run("tune", "jacobi", "smollm2")[2]


def test_the_built_in_model_is_torchs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    install(monkeypatch, heard)
    code, _, err = run("generate", "# heapq", "--max-new-tokens", "2", "--numerics", "fast")
    assert (code, heard) == (0, [])
    assert "swift" not in err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--strategy", "--proposer"),
        ("--torch-dtype", "--dtype"),
        ("--device-map", "--device"),
        ("--max-tokens", "--max-new-tokens"),
        ("--engine", "--backend"),
        ("--propser", "--proposer"),
        ("--numeric", "--numerics"),
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_was_meant(run: Any, given: str, meant: str) -> None:
    code, out, err = run("generate", "x", given, "y")
    assert (code, out) == (2, "")
    assert f"No such option: {given}" in err
    assert meant in err.partition(f"No such option: {given}")[2]
    assert "--temperature" not in err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gen", "Did you mean 'generate'?"),
        ("strategies", "Did you mean 'plugins'?"),
        ("comparr", "Did you mean 'compare'?"),
        ("trian", "Did you mean 'train', 'trace'?"),
        ("train haed", "Did you mean 'head'?"),
        ("train medusa", "Commands: head"),
        ("train list", "Commands: head"),
        ("nonsense", "Commands: demo, generate, chat, serve, bench-serve, plugins, compare,"),
    ],
)
def test_an_unknown_command_is_answered_with_a_known_one(run: Any, name: str, hint: str) -> None:
    code, out, err = run(*name.split())
    assert (code, out) == (2, "")
    assert err.count(hint) == 1
