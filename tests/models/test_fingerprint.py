"""A model's fingerprint: it changes with whatever changes what the model computes, and with nothing else."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.models import fingerprint
from specdec.models.fingerprint import fingerprint_of, unchanging
from specdec.models.weights.tensor import checksum_of
from tests.support import families
from tests.support.model_changes import CHANGES, patch_module, tiny


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_any_change_is_seen(change: Callable[[Any], object]) -> None:
    model, other = tiny(), tiny()
    before = fingerprint_of(model)
    assert fingerprint_of(model) == before == fingerprint_of(other)
    change(model)
    assert fingerprint_of(model) != before
    assert fingerprint_of(other) == before


def test_what_stands_outside_of_the_modules_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, strength = tiny(), [0.0]
    model.model.layers[0].register_forward_hook(lambda _module, _inputs, output: output + strength[0])
    before = fingerprint_of(model)
    strength[0] = 0.5
    assert fingerprint_of(model) != before
    strength[0] = 0.0
    assert fingerprint_of(model) == before
    patch_module(monkeypatch)
    assert fingerprint_of(model) != before


def test_running_and_training_modes_are_as_they_were() -> None:
    model = families.make(families.TREES["llama"][0], {**families.TREES["llama"][1], "attention_dropout": 0.5})
    model.train()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second = fingerprint_of(model), fingerprint_of(model)
    assert torch.equal(torch.rand(3), expected)
    assert first == second != fingerprint_of(model.eval())


def test_adapters_that_are_switched_and_rescaled_are_seen() -> None:
    peft = pytest.importorskip("peft")
    model = tiny()
    torch.manual_seed(0)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, r=2, task_type="CAUSAL_LM")
    ).eval()
    seen = {fingerprint_of(model)}
    with adapted.disable_adapter():
        seen.add(fingerprint_of(model))
    assert fingerprint_of(model) in seen
    model.model.layers[0].self_attn.q_proj.scaling["default"] *= 2
    seen.add(fingerprint_of(model))
    assert len(seen) == 3


def test_while_a_model_is_unchanging_its_numbers_are_read_once() -> None:
    model = tiny()
    with unchanging(model):
        before = fingerprint_of(model)
        model.model.norm.weight.data.mul_(2.0)
        assert fingerprint_of(model) == before
    assert fingerprint_of(model) != before


def test_while_a_model_is_unchanging_its_structure_is_read_once_for_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reads, facts_of = tiny(), list[int](), fingerprint.facts_of

    def counting(modules: Sequence[torch.nn.Module]) -> list[object]:
        reads.append(len(modules))
        return facts_of(modules)

    monkeypatch.setattr(fingerprint, "facts_of", counting)
    with unchanging(model):
        before = {fingerprint_of(model) for _ in range(3)}
        model.model.norm = torch.nn.Identity()  # as the self-test hides layers
        after = {fingerprint_of(model) for _ in range(3)}
    assert (len(reads), len(before), len(after)) == (2, 1, 1)
    assert before.isdisjoint(after)


def test_another_process_finds_the_same_one() -> None:
    code = "import torch; from tests.support.model_changes import tiny; "
    code += "from specdec.models.fingerprint import fingerprint_of"
    code += "; torch.set_num_threads(1); print(fingerprint_of(tiny()))"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(fingerprint_of(tiny()))


@given(st.integers(1, 40_000), st.data())
def test_a_changed_bit_changes_the_checksum(size: int, data: st.DataObject) -> None:
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(size))
    before = checksum_of(numbers)
    index, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 31))
    changed = numbers.clone()
    changed.view(torch.int32)[index] ^= -(2**31) if bit == 31 else 1 << bit
    assert checksum_of(changed) != before
    assert checksum_of(numbers.clone()) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(
    "shape", [(3,), (64, 32), (700, 576), (5, 4096, 16)], ids=["few", "a layer", "several rows", "experts"]
)
def test_exchanged_rows_columns_and_numbers_change_the_checksum(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    numbers = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    seen = {checksum_of(numbers)}
    for dim in range(len(shape)):
        seen.add(checksum_of(numbers.roll(1, dim)))
        order = torch.arange(shape[dim])
        order[[0, -1]] = order[[-1, 0]]
        seen.add(checksum_of(numbers.index_select(dim, order)))
    flat = numbers.flatten()
    flat[[0, 2]] = flat[[2, 0]]
    seen.add(checksum_of(flat.view(shape)))
    assert len(seen) >= (2 if len(shape) == 1 else 2 + 2 * len(shape) - 1)


def test_a_checksum_is_of_elements_in_their_order() -> None:
    matrix = torch.randn(8, 300)
    assert checksum_of(matrix.T) == checksum_of(matrix.T.contiguous()) != checksum_of(matrix)
    assert checksum_of(copy.deepcopy(matrix)) == checksum_of(matrix)
