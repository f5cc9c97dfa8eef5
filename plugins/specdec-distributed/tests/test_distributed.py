"""Groups of processes: the same text as one process, whatever is shared; a rank that ends, and ranks that differ."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_worker import NUM_TOKENS, PROMPTS, run

from specdec import Generator, ModelError, demo
from tests.support import families
from tests.support.fresh_process import ROOT
from tests.support.plain import decode_model

FAMILIES = ["qwen3", "mistral-window", "gemma3", "phi3", "qwen3_moe"]
# Heads and vocabulary divide by three.
THIRDS = "LlamaConfig", {**families.SMALL, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
MODELS = {**families.TREES, "llama-thirds": THIRDS}
processes = pytest.mark.processes
# Ranks are forked from one process, which has imported what they need: that takes longer than most of what they do.
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload([run.__module__, "transformers.models.llama.modeling_llama"])
# These are interpreters of their own, so each has sets of strings in another order.
_SPAWNED = multiprocessing.get_context("spawn")


class Rank:
    """A rank's process, and what it has written."""

    def __init__(self, arguments: list[str], files: str, is_forked: bool) -> None:
        self._out, self._err = Path(f"{files}.out"), Path(f"{files}.err")
        ranks = _FORKED if is_forked else _SPAWNED
        self.process: BaseProcess = ranks.Process(target=run, args=(arguments, self._out, self._err))
        self.process.start()

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    def end(self, seconds: float) -> int | None:
        """Wait for its end, and return the exit code; None if it goes on."""
        self.process.join(seconds)
        return self.process.exitcode


@contextmanager
def started(
    tmp_path: Path, family: str, split: str, name: str, seconds: float = 60.0, size: int = 2, is_forked: bool = True
) -> Iterator[list[Rank]]:
    """Some ranks at work with a family's model; whatever is left of them is ended."""
    folder, meet = tmp_path / family, tmp_path / f"meet-{name}-{split}"
    if not folder.exists():
        families.make(*MODELS[family]).save_pretrained(folder)
    ranks = [
        Rank([str(rank), str(size), str(meet), str(folder), split, name, str(seconds)], f"{meet}-{rank}", is_forked)
        for rank in range(size)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
            rank.process.close()


def found_by(
    tmp_path: Path, family: str, split: str, name: str, size: int = 2, is_forked: bool = True
) -> dict[str, Any]:
    """Rank 0's findings, once all have ended well."""
    with started(tmp_path, family, split, name, size=size, is_forked=is_forked) as ranks:
        codes = [rank.end(240) for rank in ranks]
        assert codes == [0] * size, "\n".join(rank.err for rank in ranks)
        found: dict[str, Any] = json.loads(ranks[0].out.splitlines()[-1])
        assert not any(rank.out.strip() for rank in ranks[1:]), "the others have nothing to say"
        return found


@pytest.mark.parametrize(
    ("family", "split"),
    [
        ("llama", "tensors"),
        ("llama", "branches"),
        *(pytest.param(family, "tensors", marks=processes) for family in FAMILIES),
        *(pytest.param(family, "branches", marks=processes) for family in FAMILIES),
    ],
)
def test_every_strategy_writes_the_text_of_one_process(tmp_path: Path, family: str, split: str) -> None:
    found = found_by(tmp_path, family, split, "texts", is_forked=(family, split) != ("llama", "branches"))
    assert found["wrong"] == []
    if family != "qwen3_moe":  # whose experts are multiplied in groups, so that one process has none, either
        assert found["numerics"] == "exact, bit-exact"
    model = families.make(*families.TREES[family])
    for prompt, greedy in zip(PROMPTS, found["plain"][0], strict=True):
        assert greedy == decode_model(model, prompt, NUM_TOKENS, None, eos=())
    assert found["plain"][1] != found["plain"][0]


@processes
@pytest.mark.parametrize(("name", "size"), [("texts", 3), ("several_at_once", 2), ("early_exit", 2)])
def test_branches_are_shared_by_three_ranks_two_threads_and_beside_drafts_of_the_own_layers(
    tmp_path: Path, name: str, size: int
) -> None:
    found = found_by(tmp_path, "llama", "branches", name, size=size)
    assert found["wrong"] == []


@processes
def test_tensors_are_shared_by_three_ranks(tmp_path: Path) -> None:
    found = found_by(tmp_path, "llama-thirds", "tensors", "texts", size=3)
    assert found["wrong"] == []
    assert found["numerics"].startswith("fast, not bit-exact"), "three numbers have other sums in another order"
    model = families.make(*THIRDS)
    assert found["plain"][0] == [decode_model(model, prompt, NUM_TOKENS, None, eos=()) for prompt in PROMPTS]


@processes
def test_ids_that_are_no_numbers_spoil_their_drafts_alone(tmp_path: Path) -> None:
    """A draft of one rank's share has NaN for a vector; what the model writes has none."""
    found = found_by(tmp_path, "llama", "branches", "spoiled")
    assert found["numerics"] == "exact, bit-exact"
    assert found["wrong"] == []


@processes
@pytest.mark.parametrize(("split", "size"), [("tensors", 2), ("branches", 2), ("branches", 3)])
def test_a_group_keeps_the_laws_of_a_backend(tmp_path: Path, split: str, size: int) -> None:
    assert found_by(tmp_path, "gemma3", split, "laws", size=size)["wrong"] == []


@processes
def test_all_ranks_let_go_of_what_rank_0_lets_go(tmp_path: Path) -> None:
    assert found_by(tmp_path, "llama", "branches", "let_go")["counts"] == [[1, 1], [1, 1]]


def test_a_name_given_to_one_rank_is_refused_before_it_is_read() -> None:
    with pytest.raises(ModelError, match="every rank loads its own model"):
        Generator(str(Path(demo.__file__).parent / "model"), backend="distributed")


@processes
def test_an_error_on_rank_0_is_its_own_and_the_group_goes_on(tmp_path: Path) -> None:
    found = found_by(tmp_path, "llama", "branches", "short_of_memory")
    assert "out of memory" in found["error"]
    assert found["wrong"] == []


@processes
@pytest.mark.parametrize("split", ["tensors", "branches"])
def test_logits_are_those_of_one_process_to_rounding(tmp_path: Path, split: str) -> None:
    found = torch.tensor(found_by(tmp_path, "llama", split, "logits")["logits"])
    own = families.plain_logits(families.make(*families.TREES["llama"]), PROMPTS[1])[-1]
    assert float((found - own).abs().max()) < 1e-4


@processes
@pytest.mark.parametrize("split", ["tensors", "branches"])
def test_rules_that_read_laws_get_them_from_whoever_has_them(tmp_path: Path, split: str) -> None:
    expected = decode_model(families.make(*families.TREES["llama"]), PROMPTS[0], NUM_TOKENS, None, eos=())
    assert found_by(tmp_path, "llama", split, "signals")["texts"] == [expected] * 3


@pytest.mark.parametrize(
    ("split", "sent", "told"),
    [
        ("branches", signal.SIGKILL, "rank 1 has ended"),
        pytest.param("tensors", signal.SIGSTOP, "doesn't reply", marks=processes),
        pytest.param("tensors", signal.SIGKILL, "rank 1 has ended", marks=processes),
        pytest.param("branches", signal.SIGSTOP, "doesn't reply", marks=processes),
    ],
)
def test_a_rank_that_ends_or_hangs_ends_the_run_with_one_message(
    tmp_path: Path, split: str, sent: signal.Signals, told: str
) -> None:
    with started(tmp_path, "llama", split, "endless", seconds=4.0) as ranks:
        while not ranks[0].out:
            assert ranks[0].end(0.05) is None, ranks[0].err
        time.sleep(1.0)
        assert ranks[1].process.pid is not None
        os.kill(ranks[1].process.pid, sent)
        assert ranks[0].end(60) == 0, ranks[0].err
        out = ranks[0].out
    found = json.loads(out.splitlines()[-1])
    assert told in found["error"]
    assert found["seconds"] < 10.0
    assert told in found["again"]
    assert "restart all ranks" in found["again"]
    expected = decode_model(families.make(*families.TREES["llama"]), PROMPTS[0], 200, None, eos=())
    assert found["tokens"] == expected[: len(found["tokens"])], "nothing was emitted that wasn't verified"


def test_ranks_that_hold_different_weights_are_refused(tmp_path: Path) -> None:
    with started(tmp_path, "llama", "branches", "mismatched") as ranks:
        assert [rank.end(120) for rank in ranks] == [1, 1]
        said = [rank.out for rank in ranks]
    for each in said:
        assert "rank 1 and rank 0 differ in weights" in json.loads(each)["refusal"]


@processes
def test_the_program_of_the_page_decodes_under_torchrun(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python title=\"decode.py\"\n(.*?)```", page, flags=re.DOTALL | re.MULTILINE)
    folder = ROOT / "specdec" / "demo" / "model"
    path = tmp_path / "decode.py"
    path.write_text(program.replace("PATH", str(folder)), encoding="utf-8")
    said = _under_torchrun(str(path))
    model, tokenizer = demo.load("bfloat16")
    plain = Generator(model, tokenizer, proposer="autoregressive", numerics="fast")
    assert said == plain.generate("The seven wonders", max_new_tokens=64).text + "\n"


@processes
def test_a_command_under_torchrun_is_said_by_rank_0_alone() -> None:
    model, tokenizer = demo.load("bfloat16")
    said = _under_torchrun("-m", "specdec", "generate", "# shutil", "--max-new-tokens", "16")
    plain = Generator(model, tokenizer, proposer="autoregressive")
    assert said == plain.generate("# shutil", max_new_tokens=16).text + "\n"


def _under_torchrun(*program: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *program]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
