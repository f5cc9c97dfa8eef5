"""The imports of a command before it knows that there is something to do."""

import json
from pathlib import Path

import pytest

from specdec import Generator, PluginError, RequestError, SpecdecError, ToyModel, demo
from specdec.apps.cli import app
from specdec.apps.cli.early_checks import _WITH_HEADS, check_length, check_stages
from specdec.plugins.options import fields_of
from specdec.plugins.registry import load_plugins
from tests.support.entry_points import FakeEntryPoint
from tests.support.fresh_process import modelling, run_commands

FOLDER = str(Path(demo.__file__).parent / "model")

SLOW_TO_IMPORT = {"torch", "transformers", "numpy", "matplotlib", "scipy"}
COMMANDS = [
    command.callback.__name__.replace("_", "-") for command in app.registered_commands if command.callback is not None
]


def test_help_and_misspelt_commands_and_options_import_no_library_that_takes_long() -> None:
    assert len(COMMANDS) >= 11
    commands = [["--help"], *([name, "--help"] for name in COMMANDS)]
    commands += [["train", "--help"], ["train", "head", "--help"]]
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
    (["generate", PROMPT, "--proposer", "p_eagle:head=tests"], ": give the folder of a P-EAGLE head that was trained"),
    (["generate", PROMPT, "--proposer", "eagle:head=tests"], ": give the folder of an EAGLE head that was trained"),
    (["generate", PROMPT, "--verifier", "mach"], "did you mean match?"),
    (["generate", PROMPT, "--top-k", "5"], "top_k needs sampling"),
    (["generate", PROMPT, "--numerics", "good"], "numerics='good'"),
    (["generate", PROMPT, "--dtype", "int4"], "dtype='int4'"),
    (["generate", PROMPT, "--device", "abacus"], "device='abacus'"),
    (["generate", PROMPT, "--model", "/no/such/model"], "there is no such folder"),
    (["demo", "--max-new-tokens", "0"], "--max-new-tokens '0': it must be at least 1"),
    (["demo", "--model", "/no/such/model"], "there is no such folder"),
    (["compare", "lookahed"], "did you mean lookahead?"),
    (["compare", "jacobi", "medusa:head=/no/such/head"], "there is no folder /no/such/head"),
    (["compare", "jacobi", "--verifier", "mach"], "did you mean match?"),
    (["compare", "jacobi", "--temperature", "-1"], "temperature=-1"),
    (["compare", "jacobi", "--numerics", "good"], "numerics='good'"),
    (["compare", "jacobi", "--repeats", "0"], "--repeats '0': it must be at least 1"),
    (["compare", "jacobi", "--prompts", "no/such.jsonl"], "No such file"),
    (["compare", "jacobi", "--report", "no/such/report.html"], "can't be written"),
    (["compare", "jacobi", "--run", "no/such/runs.jsonl"], "can't be written"),
    (["compare", "jacobi", "--run", "README.md"], "README.md is not a run file"),
    (["compare", "jacobi", "--temperature", "0", "--temperature", "-1"], "temperature=-1"),
    (["tune", "lookahed"], "did you mean lookahead?"),
    (["tune", "jacobi", "--option", "m=1,2"], "unknown name 'm'"),
    (["tune", "jacobi", "--minutes", "0"], "--minutes 0: give more than 0"),
    (["tune", "jacobi", "--numerics", "good"], "numerics='good'"),
    (["tune", "jacobi", "--temperature", "-1"], "--temperature '-1': it must be"),
    (["audit", "--proposer", "lookahed"], "did you mean lookahead?"),
    (["audit", "--verifier", "mach"], "did you mean match?"),
    (["audit", "--numerics", "good"], "numerics='good'"),
    (["audit", "--temperature", "-1"], "--temperature '-1': it must be"),
    (["mask", "--proposer", "lookahed"], "did you mean lookahead?"),
    (["mask", "--max-new-tokens", "0"], "--max-new-tokens '0': it must be"),
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


LONG = "word " * 6000
# What a command refuses without torch, which takes a second to import and would be wasted.
AT_ONCE = [
    *(
        ([command, *rest, "--max-new-tokens", "-5"], "--max-new-tokens '-5': it must be at least 1")
        for command, rest in (
            ("generate", ["x"]), ("chat", []), ("compare", ["auto"]), ("tune", ["auto"]), ("audit", []), ("mask", []),
            ("trace", []), ("race", ["auto", "suffix"]), ("demo", []), ("bench-serve", ["http://localhost"]),
        )
    ),
    *((command, "unknown proposer 'sufix': did you mean suffix? installed: auto, autoregressive, ") for command in (
        ["generate", "x", "--proposer", "sufix"], ["generate", "x", "--proposer", "auto+sufix:depth=2"],
        ["chat", "--proposer", "sufix"], ["serve", "--proposer", "sufix"], ["serve", "--offer", "drafts=sufix"],
        ["compare", "auto", "mine=sufix"], ["tune", "sufix"], ["audit", "--proposer", "sufix"],
        ["mask", "--proposer", "sufix"], ["trace", "--proposer", "sufix"], ["race", "auto", "sufix"],
    )),
    *((command, "there is no folder /no/head: give the folder of a head") for command in (
        ["generate", "x", "--proposer", "auto+medusa:top_k=3,head=/no/head"],
        ["chat", "--proposer", "eagle3:head=/no/head"], ["compare", "eagle:head=/no/head"],
        ["serve", "--offer", "drafts=p_eagle:head=/no/head"],
    )),
    *((command, "can't load '/no/model': there is no such folder") for command in (
        ["generate", "x", "--model", "/no/model"], ["generate", "x", "--proposer", "draft_model:model=/no/model"],
        ["chat", "--model", "/no/model"], ["serve", "--model", "/no/model"], ["prepare", "--model", "/no/model"],
        ["compare", "auto", "--model", "/no/model"], ["tune", "auto", "--model", "/no/model"],
        ["train", "head", "--model", "/no/model"],
    )),
    *((command, "no/file can't be read: No such file") for command in (
        ["chat", "--load", "no/file"], ["generate", "--file", "no/file"], ["compare", "auto", "--prompts", "no/file"],
        ["train", "head", "--model", "demo", "--prompts", "no/file"],
        ["bench-serve", "http://x", "--prompts", "no/file"],
    )),
    (["train", "head", "--model", "demo", "--out", "/no/such", "--resume"], "/no/such has no text of an earlier run"),
    (["generate", LONG, "--model", "demo"], "positions, but the model supports 8448: shorten one of them"),
    (["trace", LONG, "--model", "demo"], "positions, but the model supports 8448: shorten one of them"),
    (["race", "auto", "suffix", "--prompt", LONG, "--model", "demo"], "positions, but the model supports 8448"),
    (["trace", ""], "the prompt is empty"),
    (["generate", "x", "--proposer", "suffix:depth"], "'depth' is not of the form key=value"),
    (["generate", "x", "--verifier", "mach"], "unknown verifier 'mach': did you mean match?"),
    (["generate", "x", "--backend", "torch"], "unknown backend 'torch': did you mean hf?"),
    (["generate", "x", "--weights", "int9"], "weights='int9': it must be one of auto, packed, stock, fb"),
    (["generate", "x", "--numerics", "good"], "numerics='good'"),
    (["generate", "x", "--dtype", "int4"], "dtype='int4'"),
    (["generate", "x", "--top-k", "5"], "top_k needs sampling"),
]  # fmt: skip


def test_a_mistake_is_refused_before_torch_is_imported() -> None:
    ended = run_commands([command for command, _ in AT_ONCE])
    assert [
        (command, end.code, end.err)
        for (command, fault), end in zip(AT_ONCE, ended, strict=True)
        if end.code != 2 or end.out or fault not in end.err or end.err.count("\n") != 1
    ] == []
    first = next((command for (command, _), end in zip(AT_ONCE, ended, strict=True) if "torch" in end.modules), None)
    assert first is None, f"{first} imported torch"


@pytest.mark.parametrize("given", ["sufix", "ngram", "", "match", "auto(head=1)", "succesor", "auto+sufix"])
def test_an_unknown_name_is_answered_alike_before_and_after_the_plug_ins_are_imported(given: str) -> None:
    with pytest.raises(PluginError) as early:
        check_stages([given], "match", "auto", "auto", "auto", {})
    with pytest.raises(PluginError) as late:
        load_plugins().make("proposers", given)
    assert str(early.value) == str(late.value)


def test_a_name_is_left_to_plug_ins_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = FakeEntryPoint("other", lambda: None)
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [entry])
    check_stages(["sufix"], "mach", "auto", "int9", "auto", {})


@pytest.mark.parametrize("option", ["eagle3:head", "eagle:head", "draft_model:model"])
def test_paths_of_options_are_read_before_torch_as_they_are_read_later(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specdec.plugins.names._installed", lambda: {"specdec", "specdec-example"})
    (tmp_path / "1.50").mkdir()
    for given in (f'{option}="{tmp_path}"', f"{option}=1.50", f'{option} = "1.50"', f"{option}=1.50+successor"):
        check_stages([given], "match", "auto", "auto", "auto", {})
    for given, path in ((f'{option}="{tmp_path}"', tmp_path), (f'{option} = "1.50"', Path("1.50"))):
        made = load_plugins().make("proposers", given)
        assert Path(getattr(made, option.partition(":")[2])) == path
    for given in (f'{option}="/no/such"', f"{option}=1.5"):
        if given != "draft_model:model=1.5":  # which may be a hub's
            with pytest.raises(SpecdecError, match=r"(/no/such|1\.5)[: ]|(/no/such|1\.5)'"):
                check_stages([given], "match", "auto", "auto", "auto", {})


def test_the_strategies_whose_head_is_looked_for_are_those_that_name_its_folder() -> None:
    plugins = load_plugins().of_kind("proposers")
    heads = {each.name: fields_of(each.cls)["head"].annotation for each in plugins if "head" in fields_of(each.cls)}
    assert set(_WITH_HEADS) == {name for name, kind in heads.items() if kind is not bool}


def test_a_text_that_fits_is_not_refused_whatever_its_bytes_or_its_model_s_folder_has(tmp_path: Path) -> None:
    text = "word " * 4000  # 20,000 bytes, of which the model has 8448 positions
    num_tokens = len(demo.load()[1].encode(text, add_special_tokens=False))
    assert num_tokens < 8448
    check_length(FOLDER, [text], 8449 - num_tokens)  # the last token takes no position
    with pytest.raises(RequestError, match="would need 8449 positions, but the model supports 8448: shorten") as early:
        check_length(FOLDER, ["short", text], 8450 - num_tokens)
    with pytest.raises(RequestError) as late:
        Generator(ToyModel(lambda _: [1.0], 1, 8448)).generate([0] * num_tokens, max_new_tokens=8450 - num_tokens)
    assert str(early.value) == str(late.value)
    for config in (None, "[", "[]", "{}"):
        if config is not None:
            (tmp_path / "config.json").write_text(config)
        check_length(str(tmp_path), [LONG], 64)
