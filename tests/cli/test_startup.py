"""The imports of a command before it knows that there is something to do."""

import json

import pytest

from specdec.cli import app
from tests.support.fresh_process import modelling, run_commands

SLOW_TO_IMPORT = {"torch", "transformers", "numpy", "matplotlib", "scipy"}
COMMANDS = [
    command.callback.__name__.replace("_", "-") for command in app.registered_commands if command.callback is not None
]


def test_help_and_misspelt_commands_and_options_import_no_library_that_takes_long() -> None:
    assert len(COMMANDS) >= 11
    commands = [["--help"], *([name, "--help"] for name in COMMANDS)]
    commands += [["train", "--help"], ["train", "consistency", "--help"]]
    commands += [["genrate"], ["generate", "--no-such-option"], ["generate", "x", "--max-new-tokens", "many"]]
    ended = run_commands(commands)
    assert [command.code for command in ended] == [0] * (3 + len(COMMANDS)) + [2, 2, 2]
    assert ended[-1].modules & SLOW_TO_IMPORT == set()


def test_a_prompt_a_file_or_a_model_that_is_not_there_imports_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commands = [["generate", ""], ["generate", "--file", "no/such/file"], ["demo", "--max-new-tokens", "0"]]
    models = {
        "/no/such/model": "there is no such folder. Give",
        "no/such": "there is no such folder here, it isn't in the hub's cache, and the hub can't be reached",
        "no such": "it can't be a hub name",
        "smolm2": "; did you mean --model smollm2?",
    }
    ended = run_commands([*commands, *(["demo", "--model", model] for model in models)])
    assert [command.code for command in ended] == [2] * 7
    for command, fault in zip(ended[3:], models.values(), strict=True):
        assert fault in command.err
    assert ended[-1].modules & {"torch", "transformers"} == set()


PROMPT = "def add(a, b):\n"
# Each with a part of the message, so that a command isn't refused for another reason than the one meant.
MISSPELT = [
    (["generate", PROMPT, "--proposer", "lookahed"], "did you mean lookahead?"),
    (["generate", PROMPT, "--proposer", "lookahead:n=4"], "unknown name 'n'"),
    (["generate", PROMPT, "--proposer", "auto+eagle3:head=/no/such/head"], "there is no folder /no/such/head"),
    (["generate", PROMPT, "--proposer", "p_eagle:head=tests"], ": give the folder of a P-EAGLE head, in speculators'"),
    (["generate", PROMPT, "--proposer", "eagle:head=tests"], ": give the folder of an EAGLE head that was trained"),
    (["generate", PROMPT, "--verifier", "mach"], "did you mean match?"),
    (["generate", PROMPT, "--top-k", "5"], "top_k needs sampling"),
    (["generate", PROMPT, "--numerics", "good"], "numerics='good'"),
    (["generate", PROMPT, "--dtype", "int4"], "dtype='int4'"),
    (["generate", PROMPT, "--device", "abacus"], "device='abacus'"),
    (["generate", PROMPT, "--model", "/no/such/model"], "there is no such folder"),
    (["demo", "--max-new-tokens", "0"], "--max-new-tokens 0: it must be at least 1"),
    (["demo", "--model", "/no/such/model"], "there is no such folder"),
    (["compare", "lookahed"], "did you mean lookahead?"),
    (["compare", "jacobi", "medusa:head=/no/such/head"], "there is no folder /no/such/head"),
    (["compare", "jacobi", "--verifier", "mach"], "did you mean match?"),
    (["compare", "jacobi", "--temperature", "-1"], "temperature=-1"),
    (["compare", "jacobi", "--numerics", "good"], "numerics='good'"),
    (["compare", "jacobi", "--repeats", "0"], "repeats=0"),
    (["compare", "jacobi", "--prompts", "no/such.jsonl"], "No such file"),
    (["compare", "jacobi", "--report", "no/such/report.html"], "can't be written"),
    (["compare", "jacobi", "--run", "no/such/runs.jsonl"], "can't be written"),
    (["compare", "jacobi", "--run", "README.md"], "README.md is not a run file"),
    (["compare", "jacobi", "--temperature", "0", "--temperature", "-1"], "temperature=-1"),
    (["tune", "lookahed"], "did you mean lookahead?"),
    (["tune", "jacobi", "--option", "m=1,2"], "unknown name 'm'"),
    (["tune", "jacobi", "--minutes", "0"], "minutes=0.0"),
    (["tune", "jacobi", "--numerics", "good"], "numerics='good'"),
    (["tune", "jacobi", "--temperature", "-1"], "temperature=-1"),
    (["audit", "--proposer", "datastore:path=/no/such.index"], "/no/such.index can't be read"),
    (["audit", "--proposer", "lookahed"], "did you mean lookahead?"),
    (["audit", "--verifier", "mach"], "did you mean match?"),
    (["audit", "--numerics", "good"], "numerics='good'"),
    (["audit", "--temperature", "-1"], "temperature=-1"),
    (["mask", "--proposer", "lookahed"], "did you mean lookahead?"),
    (["mask", "--max-new-tokens", "0"], "max_new_tokens=0"),
    (["trace", PROMPT, "--proposer", "lookahed"], "did you mean lookahead?"),
    (["trace", PROMPT, "--html", "no/such/trace.html"], "can't be written"),
    (["race", "jacobi", "draft_model:model=/no/such/model"], "there is no such folder"),
    (["race", "jacobi", "lookahed"], "did you mean lookahead?"),
    (["race", "jacobi", "lookahead", "--numerics", "good"], "numerics='good'"),
    (["report", "no/such.jsonl"], "No such file"),
]


def test_what_is_misspelt_is_refused_before_a_model_s_code_is_imported_and_every_backend_is_listed() -> None:
    *ended, listed = run_commands([*(command for command, _ in MISSPELT), ["plugins", "--json"]])
    wrong = [
        (command, end.code, end.err)
        for (command, fault), end in zip(MISSPELT, ended, strict=True)
        if end.code != 2 or end.out or fault not in end.err or end.err.count("\n") != 1
    ]
    assert wrong == []
    first = next((command for (command, _), end in zip(MISSPELT, ended, strict=True) if modelling(end.modules)), None)
    assert first is None, f"{first} imported transformers' models"
    assert "torch" in ended[-1].modules  # or it would prove nothing
    entries = map(json.loads, listed.out.splitlines())
    assert {"hf", "static", "toy"} <= {entry["name"] for entry in entries if entry["kind"] == "backends"}
