"""Numbers that take one copy."""

import torch

from specdec.machine.number_block import NumberBlock
from tests.support.pretend_device import NAME, pretend_device

CPU = torch.device("cpu")
TENSORS = {
    "ids": torch.tensor([[1, 2, 3]]),
    "table": torch.arange(14, dtype=torch.int32).view(2, 7),
    "seen": torch.tensor([True, False, True]),
    "none": torch.zeros(0, 4),
    "weights": torch.tensor([0.5, -2.0], dtype=torch.bfloat16),
}


def test_each_tensor_is_found_as_it_was() -> None:
    block = NumberBlock.of(TENSORS, is_pinned=False).on(CPU)
    for name, tensor in TENSORS.items():
        assert block[name].dtype == tensor.dtype
        assert torch.equal(block[name], tensor)
        assert block[name].storage_offset() * tensor.element_size() % 16 == 0


def test_another_pass_is_copied_into_the_same_memory() -> None:
    block = NumberBlock.of(TENSORS, is_pinned=False).on(CPU)
    ids = block["ids"]
    other = NumberBlock.of({**TENSORS, "ids": torch.tensor([[7, 8, 9]])}, is_pinned=False)
    assert other.parts == block.parts
    block.copy_(other)
    assert ids.tolist() == [[7, 8, 9]]
    assert torch.equal(block["table"], TENSORS["table"])


def test_a_device_gets_all_in_one_copy() -> None:
    with pretend_device() as device:
        block = NumberBlock.of(TENSORS, is_pinned=False).on(torch.device(NAME, 0))
        assert (device.uploads, device.waits) == (1, 0)
        assert block["table"].tolist() == TENSORS["table"].tolist()
