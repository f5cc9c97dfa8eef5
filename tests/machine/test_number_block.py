"""Numbers that take one copy."""

import numpy as np
import torch

from specdec.machine.number_block import NumberBlock
from tests.support.pretend_device import NAME, pretend_device

CPU = torch.device("cpu")
ARRAYS = {
    "ids": np.array([[1, 2, 3]]),
    "table": np.arange(28, dtype=np.int32).reshape(2, 14)[:, ::2],
    "seen": np.array([True, False, True]),
    "none": np.zeros((0, 4)),
    "weights": np.array([0.5, -2.0], np.float32),
}


def test_each_tensor_is_found_as_it_was() -> None:
    block = NumberBlock.of(ARRAYS, is_pinned=False).on(CPU)
    for name, array in ARRAYS.items():
        assert block[name].dtype == torch.from_numpy(array).dtype
        assert block[name].tolist() == array.tolist()
        assert block[name].storage_offset() * array.itemsize % 16 == 0


def test_another_pass_is_copied_into_the_same_memory() -> None:
    block = NumberBlock.of(ARRAYS, is_pinned=False).on(CPU)
    ids = block["ids"]
    other = NumberBlock.of({**ARRAYS, "ids": np.array([[7, 8, 9]])}, is_pinned=False)
    assert other.parts == block.parts
    block.copy_(other)
    assert ids.tolist() == [[7, 8, 9]]
    assert block["table"].tolist() == ARRAYS["table"].tolist()


def test_a_device_gets_all_in_one_copy() -> None:
    with pretend_device() as device:
        block = NumberBlock.of(ARRAYS, is_pinned=False).on(torch.device(NAME, 0))
        assert (device.uploads, device.waits) == (1, 0)
        assert block["table"].tolist() == ARRAYS["table"].tolist()
