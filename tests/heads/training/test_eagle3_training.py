"""A head in training: its loss is that of the tokens it drafts, and its folder computes what it computes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specdec.heads.training.eagle3_training import DEPTH, Eagle3Training
from specdec.heads.training.losses import TrainingBatch, labels
from specdec.heads.training.packing import PackedRows
from specdec.heads.training.target import TargetStates

VOCAB, KEPT = 48, torch.arange(1, 48, 2)  # KEPT is the draft vocabulary


@pytest.fixture(scope="module", name="model", params=["Llama's logits", "scaled logits"])
def _model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A small model with the layers that the head's states are taken from."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes |= {"vocab_size": VOCAB, "num_hidden_layers": 7, "initializer_range": 0.3}
    if request.param == "scaled logits":
        return GraniteForCausalLM(GraniteConfig(**sizes, logits_scaling=8.0)).eval().requires_grad_(False)
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval().requires_grad_(False)


@pytest.fixture(name="training")
def _training(model: PreTrainedModel) -> Eagle3Training:
    """A head with random weights, and with factors on the states that it reads; all are numbers of bfloat16."""
    draw, training = torch.Generator().manual_seed(3), Eagle3Training.untrained(model, KEPT)
    for name, parameter in training.head.named_parameters():
        drawn = torch.randn(parameter.shape, generator=draw) / (
            parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1
        )
        parameter.data = (1 + 0.2 * drawn if "norm" in name else drawn).bfloat16().float()
    training.scales = torch.tensor([0.5, 2.0]).repeat(training.head.config.states_size // 2)
    return training


@pytest.fixture(name="rows")
def _rows() -> PackedRows:
    """A row of two documents, with padding, and a row of one."""
    documents = torch.tensor([[0] * 9 + [1] * 7 + [-1] * 4, [2] * 20])
    positions = torch.tensor([[*range(9), *range(7), *range(16, 20)], [*range(20)]])
    is_answer = (documents >= 0) & (positions >= 3)
    draw = torch.Generator().manual_seed(1)
    return PackedRows(torch.randint(VOCAB, documents.shape, generator=draw), documents, positions, is_answer)


def documents(rows: PackedRows) -> Iterator[tuple[int, torch.Tensor]]:
    """The row and the places of each document."""
    for row in range(len(rows)):
        for document in rows.documents[row].unique():
            if document >= 0:
                yield row, (rows.documents[row] == document).nonzero()[:, 0]


@torch.no_grad()
def test_the_loss_is_the_mean_cross_entropy_of_the_tokens_that_the_strategy_drafts(
    model: PreTrainedModel, training: Eagle3Training, rows: PackedRows
) -> None:
    """With the weight of one step at a time; a token is drafted s + 2 places before it by step s."""
    states = TargetStates(model, training.layer_ids).of(rows.tokens, rows.positions, rows.visible())
    in_vocabulary = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, KEPT, True)
    batch = TrainingBatch(rows, rows.visible(), states, labels(rows, in_vocabulary, DEPTH), rows.num_answer_tokens)
    outs = training.outs(states.layers, rows, rows.visible(), DEPTH)
    teacher = torch.zeros(*rows.tokens.shape, len(KEPT))
    for row, places in documents(rows):
        teacher[row, places] = model(rows.tokens[row, places][None]).logits[0][:, KEPT].softmax(-1)
    for step in range(DEPTH):
        losses = []
        for row, places in documents(rows):
            for order in range(DEPTH + 1, len(places)):  # tokens that all steps draft
                place = int(places[order])
                if rows.is_answer[row, place] and in_vocabulary[rows.tokens[row, place]]:
                    found = training.head.logits(outs[step][row, place - 2 - step]).log_softmax(-1)
                    losses.append(-(teacher[row, place - 1] * found).sum())
        found = training.loss(batch, [float(each == step) for each in range(DEPTH)])
        torch.testing.assert_close(found, torch.stack(losses).mean())


@torch.no_grad()
def test_a_written_head_computes_from_plain_states_what_it_computed_in_training(
    model: PreTrainedModel, training: Eagle3Training, rows: PackedRows, tmp_path: Path
) -> None:
    states = torch.randn(*rows.tokens.shape, len(training.scales), generator=torch.Generator().manual_seed(2))
    expected = training.outs(states, rows, rows.visible(), DEPTH)
    training.write(tmp_path)
    written = Eagle3Training.from_folder(model, tmp_path)
    assert torch.equal(written.head.target_ids, KEPT)
    torch.testing.assert_close(written.outs(states, rows, rows.visible(), DEPTH), expected)
    torch.testing.assert_close(training.outs(states, rows, rows.visible(), DEPTH), expected, rtol=0, atol=0)
