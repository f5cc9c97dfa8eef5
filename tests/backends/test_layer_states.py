"""States of recurrent and convolutional layers, and what of them is kept in memory."""

import pytest
import torch
from transformers import PreTrainedModel

from specdec.backends.hf import HFBackend
from specdec.backends.states.layer_states import State, StateLayer, after_each
from specdec.backends.states.stateful_cache import StatefulCache
from specdec.masks.dense import DenseCompiler
from specdec.target import Target
from tests.support import families
from tests.support.examined import examined

ONE_OF_EACH_KIND = ["lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1", "mamba2"]


def target_of(model: PreTrainedModel) -> tuple[Target, StatefulCache]:
    backend = examined(HFBackend.load(model, DenseCompiler()))
    cache = backend._cache
    assert isinstance(cache, StatefulCache)
    return Target(backend, DenseCompiler()), cache


def test_a_state_without_tokens_is_a_view_of_nothing_larger() -> None:
    chunks = torch.arange(12.0).view(1, 6, 2)
    for inputs in (None, torch.zeros(1, 3, 8)):
        cut = State(inputs, 3 if inputs is not None else 0, chunks[:, -1]).without(0)
        assert cut.recurrent is not None
        assert cut.recurrent.untyped_storage().nbytes() == cut.recurrent.nbytes
        assert cut.recurrent.tolist() == [[10.0, 11.0]]


def test_the_states_after_each_token_are_found_only_if_the_last_is_a_view_of_them() -> None:
    states = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))  # rows, heads, states, size
    last, before = states[:, :, -1], states[:, :, 0].clone()
    found = after_each(last, before, 2)
    assert found is not None
    assert torch.equal(found, states.transpose(1, 2))
    assert after_each(last.clone(), before, 2) is None
    assert after_each(last, before, 1) is None
    assert after_each(last, before + 1.0, 2) is None
    assert after_each(last, None, 2) is None


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_a_checkpoint_takes_the_bytes_that_are_reported(name: str) -> None:
    target, cache = target_of(families.make(*families.STATES[name]))
    row = target.open(capacity=256)
    target.read_all(row, list(range(2, 90)) * 2)
    states = [state for snapshot in cache._rows[0].checkpoints for layer in snapshot.layers for state in layer]
    parts = [part for state in states for part in (state.inputs, state.recurrent) if part is not None]
    assert parts
    assert [part.untyped_storage().nbytes() for part in parts] == [part.nbytes for part in parts]


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_no_layer_holds_states_between_passes(name: str) -> None:
    target, cache = target_of(families.make(*families.STATES[name]))
    row = target.open(capacity=64)
    target.read_all(row, list(range(2, 40)))
    layers = [layer for layer in cache.layers if isinstance(layer, StateLayer)]
    assert layers
    held = [
        part
        for layer in layers
        for index in range(layer.number_of_states)
        for part in (layer.conv_states[index], layer.recurrent_states[index])
    ]
    assert held == [None] * len(held)


@pytest.mark.parametrize("num_rows", [1, 2])
def test_layers_are_given_copies_which_their_code_may_change(num_rows: int) -> None:
    layer = StateLayer(1)
    rows = [[State(torch.zeros(1, 2, 3), 3, torch.zeros(1, 4))] for _ in range(num_rows)]
    layer.enter(rows)
    layer.conv_states[0] += 1.0
    layer.recurrent_states[0] += 1.0
    for (state,) in rows:
        assert state.inputs is not None
        assert state.recurrent is not None
        assert not state.inputs.any()
        assert not state.recurrent.any()
