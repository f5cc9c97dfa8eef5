"""States of packed documents are those of each document alone."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from specdec import ModelError
from specdec.heads.training.kept_states import KeptStates
from specdec.heads.training.packing import PackedRows, pack
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def packed() -> PackedRows:
    """One row of three documents, without padding."""
    draw = np.random.default_rng(0)
    documents = [draw.integers(61, size=size).astype(np.int32) for size in (9, 4, 7)]
    return pack(TrainingText.of(documents, [2, 2, 2]), 20, draw)


def check(model: PreTrainedModel) -> None:
    rows, target = packed(), TargetStates(model, [1, 3])
    states = target.of(rows.tokens, rows.positions, rows.visible())
    for document in range(3):
        places = rows.documents[0] == document
        with torch.no_grad():
            alone = model(rows.tokens[:, places], output_hidden_states=True).hidden_states
        torch.testing.assert_close(states.layers[:, places], torch.cat((alone[1], alone[3]), -1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states.final[:, places], alone[-1])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_documents_of_a_row_do_not_see_each_other(attention: str) -> None:
    torch.manual_seed(0)
    check(LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3, attn_implementation=attention)).eval())


def test_rows_fit_into_the_window_or_are_refused() -> None:
    torch.manual_seed(0)
    check(MistralForCausalLM(MistralConfig(**SIZES, initializer_range=0.3, sliding_window=20)).eval())
    shorter = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=19)).eval()
    rows, target = packed(), TargetStates(shorter, [1])
    target.of(rows.tokens)
    with pytest.raises(ModelError, match="a window of 19 tokens, and rows of 20 tokens don't fit"):
        target.of(rows.tokens, rows.positions, rows.visible())


def test_states_are_kept_while_they_fit() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    rows, target, calls = packed(), TargetStates(model, [1, 3]), list[int]()
    model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(1))
    one = target.of(rows.tokens, rows.positions, rows.visible())
    size = one.layers.nbytes + one.final.nbytes
    for most, expected in ((size, 1), (size - 1, 3), (0, 3)):
        calls.clear()
        kept = KeptStates(target, most)
        found = [kept.of(rows[:1]) for _ in range(3)]
        assert len(calls) == expected
        assert kept.num_bytes == (size if expected == 1 else 0)
        for states in found:
            torch.testing.assert_close(states.layers, one.layers, rtol=0, atol=0)
            torch.testing.assert_close(states.final, one.final, rtol=0, atol=0)
    others = pack(TrainingText.of([np.arange(9, dtype=np.int32)], [2]), 20, np.random.default_rng(0))
    assert not torch.equal(kept.of(others).final, one.final)
