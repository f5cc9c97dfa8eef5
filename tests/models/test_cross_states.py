"""Stacks of rows' keys and values: made once for the same rows, in their order, and held once."""

from typing import Any

import pytest
import torch

from specdec import RequestError
from specdec.models.cross_states import CrossStack
from specdec.models.encoder_decoders import EncoderOutput, KeysAndValues


def read(prompt: EncoderOutput) -> list[KeysAndValues]:
    states = prompt.output
    return [(states[:, None] + layer, states[:, None] - layer) for layer in range(2)]


def prompt_of(number: int, num_states: int) -> EncoderOutput:
    return EncoderOutput(torch.full((1, num_states, 4), float(number)))


def keys_of(stack: CrossStack, *rows: EncoderOutput) -> Any:
    return stack.of(rows).cache.layers[1].keys


def test_a_stack_has_its_rows_in_order_and_serves_them_again() -> None:
    stack, (one, two) = CrossStack(read, takes_mask=True), (prompt_of(1, 3), prompt_of(2, 3))
    keys = keys_of(stack, one, two)
    assert keys[:, 0, 0, 0].tolist() == [2, 3]
    assert keys_of(stack, one, two) is keys
    assert keys_of(stack, two, one)[:, 0, 0, 0].tolist() == [3, 2]
    assert keys_of(stack, two)[:, 0, 0, 0].tolist() == [3]


def test_rows_of_different_lengths_are_padded_under_a_mask() -> None:
    stack, rows = CrossStack(read, takes_mask=True), [prompt_of(1, 3), prompt_of(2, 5)]
    states = stack.of(rows)
    assert states.num_states == [3, 5]
    wide: Any = states.mask_of(4)  # some decoders, such as MVP's, refuse a mask of one row
    assert wide.shape == (2, 1, 4, 5)
    assert wide.num_states == [3, 5]
    assert states.mask is not None
    assert (states.mask[:, 0, 0] == 0).sum(-1).tolist() == [3, 5]
    assert stack.of(rows[:1]).cache.layers[0].keys.shape[2] == 3
    with pytest.raises(RequestError, match="max_batch_size=1"):
        CrossStack(read, takes_mask=False).of(rows)


def test_rows_keep_views_of_the_stack_which_goes_with_the_first_of_them() -> None:
    stack, rows = CrossStack(read, takes_mask=True), [prompt_of(1, 3), prompt_of(2, 3)]
    keys = keys_of(stack, *rows)
    assert [row.layers[1][0].untyped_storage().data_ptr() for row in rows] == [keys.untyped_storage().data_ptr()] * 2
    del rows[0]
    assert stack._states is None
