"""Peers in processes of their own: the protocol, contenders that fail, and a whole comparison in small."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from benchmarks import compare, interleaved
from benchmarks.__main__ import measurements
from benchmarks.interleaved import Measurement, Run, measure
from benchmarks.peers.process import PeerError, Process, Setup
from benchmarks.peers.worker import options
from benchmarks.summary import Spread, summarize

STUB = """\
#!{python} -S
import json, sys
name = sys.argv[2].rpartition(".")[2]
print(json.dumps({{"versions": name + " 1.0"}}), flush=True)
for number, line in enumerate(sys.stdin):
    if name == "vllm" and number == 2:
        sys.exit("out of luck")
    request = json.loads(line)
    reply = {{"tokens": request["prompt"][:1] * request["max_new_tokens"], "seconds": 0.5, "steps": 2}}
    print(json.dumps({{**reply, "phases": None, "peak_bytes": 7}}), flush=True)
"""


@pytest.fixture
def setup(tmp_path) -> Setup:
    """Peers that are a script: the one called vllm ends at its third request."""
    stub = tmp_path / "stub"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    return Setup(tmp_path, "bfloat16", 1, {"transformers": str(stub), "vllm": str(stub), "lade": str(tmp_path / "no")})


def run(contender: str, prompt: int, repeat: int, seconds: float, tokens: tuple[int, ...] = (1, 2)) -> Run:
    return Run(contender, prompt, repeat, tokens, seconds, 1, {"forward": seconds / 2}, 2**20)


def test_a_comparison_with_transformers_and_specdec(tmp_path, monkeypatch, capsys):
    arguments = "--num-prompts 1 --max-new-tokens 6 --repeats 1 --threads 1 --contender specdec:prompt_lookup"
    monkeypatch.setattr(sys, "argv", ["compare", *arguments.split(), "--out", str(tmp_path / "small")])
    compare.main()
    report, found = (tmp_path / "small.md").read_text(), json.loads((tmp_path / "small.json").read_text())
    assert report in capsys.readouterr().out
    plain, lookup = found["rows"]
    assert (plain["contender"], lookup["contender"]) == ("transformers", "specdec:prompt_lookup")
    assert plain["num_different"] == lookup["num_different"] == 0
    assert plain["tokens_per_step"] == 1.0 <= lookup["tokens_per_step"]
    assert [entry["tokens"] for entry in found["runs"]] == [6, 6]
    assert plain["peak_bytes"] > 0 or sys.platform != "linux"
    assert set(lookup["phases"]) == {"propose", "compile", "forward", "verify", "commit"}
    assert len(found["costs"]["seconds"]) == len(found["costs"]["sizes"])
    assert "| `specdec:prompt_lookup` |" in report
    assert str(tmp_path) not in report


def test_a_contender_that_ends_is_reported_and_the_others_go_on(setup):
    found = measure(["transformers", "vllm", "lade"], setup, [[5], [6]], 3, repeats=2)
    assert [row.contender for row in summarize(found, "transformers")] == ["transformers"]
    assert found.versions["transformers"] == "transformers 1.0"
    assert "exit code 1" in found.failures["vllm"]
    assert "out of luck" in found.failures["vllm"]
    assert "doesn't start" in found.failures["lade"]
    plain = [entry for entry in found.runs if entry.contender == "transformers"]
    assert sorted((entry.repeat, entry.prompt, entry.tokens) for entry in plain) == [
        (repeat, prompt, (5 + prompt,) * 3) for repeat in range(2) for prompt in range(2)
    ]


def test_an_interrupt_leaves_no_process(setup, monkeypatch):
    started: list[Process] = []

    def interrupted(process: Process, *_: object) -> Run:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(interleaved, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(["transformers"], setup, [[5]], 3, repeats=1)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_an_unknown_peer_is_refused(setup):
    with pytest.raises(PeerError, match="'worker' is no peer; there are transformers, specdec, lade, vllm"):
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


def test_without_its_baseline_a_contender_has_its_own_figures_alone():
    found = Measurement({"own": ""}, [run("own", 0, 0, 2.0)], {"base": "ended"})
    [row] = summarize(found, "base")
    assert row.tokens_per_second == 1.0
    assert row.by_repeat is row.by_prompt is row.num_different is None


def test_contenders_of_other_environments_run_where_these_are_given():
    assert compare.contenders(None, {})[0] == "transformers"
    assert not any(name.startswith("vllm") for name in compare.contenders(None, {"lade": "python"}))
    assert "lade:N=5,W=7,G=7" in compare.contenders(None, {"lade": "python"})
    assert compare.contenders(["specdec", "transformers"], {}) == ["transformers", "specdec"]


def test_options_are_numbers_words_and_truths():
    assert options("n=2,x=0.5,eager=true,method=suffix") == {"n": 2, "x": 0.5, "eager": True, "method": "suffix"}
    with pytest.raises(SystemExit, match="'n' has no value"):
        options("n")


def test_every_measurement_is_listed_with_what_it_is():
    known = measurements()
    assert {"compare", "widened", "lossless"} <= set(known)
    assert all(known.values())
    assert "texts" not in known
    assert Path(compare.__file__).stem in known
