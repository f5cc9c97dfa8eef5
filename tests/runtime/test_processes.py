"""Decoding around processes and global switches: autocast, other threads, fork, spawn and data loaders."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdec import Generator, RequestError
from tests.support import families
from tests.support.plain import decode_model

PROMPTS = [[1, 2, 3, 1, 2], [9, 8], [40, 41, 42, 40]]
FORKING = """
import os, sys
import torch
from specdec import Generator, RequestError
from specdec.backends.hf import HFBackend
from tests.support import families

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return text()

def text(**options):
    return list(generator.generate([1, 2, 3, 1, 2], max_new_tokens=8, eos_token_id=(), **options).token_ids)

def refused(generator, **options):
    try:
        generator.generate([1, 2, 3, 1, 2], max_new_tokens=8, **options)
    except RequestError as error:
        print(error, flush=True)

torch.set_num_threads(2)
generator = Generator(families.make(*families.TREES["llama"]), proposer="jacobi")
own = text()
HFBackend.runs_layers = False
copying = Generator(generator.model, proposer="autoregressive")
from torch.utils.data import DataLoader
loader = DataLoader(Texts(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=30)
assert list(loader) == [own], "a worker has one thread"
sys.stdout.flush()
if not os.fork():
    refused(generator)
    refused(generator, context=generator.context())
    refused(copying)
    torch.set_num_threads(1)
    print(text() == own, generator.numerics, flush=True)
    os._exit(0)
os.wait()
print(text() == own, generator.numerics)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_decodes_in_one_thread_and_refuses_to_hang_in_two() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FORKING]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stderr
    *refusals, of_copy, child, parent = ran.stdout.splitlines()
    for refusal in refusals:
        assert "would hang here: call torch.set_num_threads(1) first, or start processes with" in refusal
    assert len(refusals) == 2
    assert "would hang here: use backend='hf' and torch.set_num_threads(1), or start processes with" in of_copy
    assert child == "True exact, not bit-exact: torch had 2 threads when it was probed, and now has 1"
    assert parent == "True exact, bit-exact"


def test_a_generator_is_not_sent_to_a_spawned_process() -> None:
    generator = Generator(families.make(*families.TREES["llama"]), proposer="autoregressive")
    with pytest.raises(RequestError, match="can't be copied or pickled"):
        pickle.dumps(generator)


def test_autocast_around_a_generator_changes_no_bit() -> None:
    model = families.deep("llama", 4)
    plain = [decode_model(model, prompt, 30, None, eos=()) for prompt in PROMPTS]
    before = Generator(model, proposer="jacobi")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [decode_model(model, prompt, 30, None, eos=()) for prompt in PROMPTS] != plain
        within = Generator(model, proposer="jacobi")
        for generator in (before, within):
            assert generator.numerics.is_bit_exact
            assert [_text(generator, prompt) for prompt in PROMPTS] == plain
    assert [_text(within, prompt) for prompt in PROMPTS] == plain


def test_another_number_of_threads_after_loading_changes_no_text_and_is_reported() -> None:
    model, threads = families.make(*families.TREES["llama"]), torch.get_num_threads()
    generator = Generator(model, proposer="jacobi")
    try:
        torch.set_num_threads(threads + 1)
        for prompt in PROMPTS:
            assert _text(generator, prompt) == decode_model(model, prompt, 30, None, eos=())
        assert f"and now has {threads + 1}" in generator.numerics.inexact
    finally:
        torch.set_num_threads(threads)
    assert generator.numerics.is_bit_exact


def _text(generator: Generator, prompt: list[int]) -> list[int]:
    return list(generator.generate(prompt, max_new_tokens=30, eos_token_id=()).token_ids)
