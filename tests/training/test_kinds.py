"""Heads that draft all steps at once: their training computes what the references and their strategies compute."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from specdec.heads.kinds import STRATEGIES, HeadKind
from specdec.plugins.builtins import specdec_proposers
from specdec.strategies.auto import READERS
from specdec.training.base import DEPTH, HeadTraining
from specdec.training.eagle3_training import Eagle3Training
from specdec.training.kinds import KINDS
from specdec.training.losses import Batch, labels
from specdec.training.medusa_training import MedusaTraining
from specdec.training.p_eagle_training import PEagleTraining
from specdec.training.packing import PackedRows
from specdec.training.target import TargetStates
from tests.support.medusa_reference import reference_log_probs
from tests.support.p_eagle_reference import p_eagle_log_probs
from tests.support.target_of_heads import KEPT, VOCAB, target_of_heads


@pytest.fixture(scope="module", name="model")
def _model() -> LlamaForCausalLM:
    return target_of_heads()


def randomised(training: HeadTraining) -> HeadTraining:
    """The head with random weights, and with factors on the states that it reads; all are numbers of bfloat16."""
    draw = torch.Generator().manual_seed(3)
    for name, parameter in training.head.named_parameters():
        drawn = torch.randn(parameter.shape, generator=draw) / (
            parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1
        )
        parameter.data = (1 + 0.2 * drawn if "norm" in name else drawn).bfloat16().float()
    training.scales = torch.tensor([0.5, 2.0]).repeat(training.states_size // 2)
    return training


def packed(draw: torch.Generator) -> PackedRows:
    """A row of two documents, with padding, and a row of one."""
    documents = torch.tensor([[0] * 9 + [1] * 7 + [-1] * 4, [2] * 20])
    positions = torch.tensor([[*range(9), *range(7), *range(16, 20)], [*range(20)]])
    is_answer = (documents >= 0) & (positions >= 3)
    return PackedRows(torch.randint(VOCAB, documents.shape, generator=draw), documents, positions, is_answer)


def documents(rows: PackedRows) -> Iterator[tuple[int, torch.Tensor]]:
    """The row and the places of each document."""
    for row in range(len(rows)):
        for document in rows.documents[row].unique():
            if document >= 0:
                yield row, (rows.documents[row] == document).nonzero()[:, 0]


def test_the_tables_and_the_page_have_the_same_kinds() -> None:
    kinds = set(get_args(HeadKind))
    assert kinds == KINDS.keys() == READERS.keys()
    assert READERS.items() <= specdec_proposers().items()
    assert kinds <= set(STRATEGIES.values()) <= specdec_proposers().keys()
    page = (Path(__file__).parents[2] / "docs/heads.md").read_text(encoding="utf-8")
    assert {kind for kind in specdec_proposers() if f"\n| `{kind}` | " in page.split("### Other kinds")[1]} == kinds


@pytest.mark.parametrize("kind", [MedusaTraining, PEagleTraining])
@torch.no_grad()
def test_every_step_is_the_references_of_the_written_folder(
    model: LlamaForCausalLM, kind: type[HeadTraining], tmp_path: Path
) -> None:
    draw = torch.Generator().manual_seed(1)
    training = randomised(kind.untrained(model, KEPT))
    rows = packed(draw)
    states = torch.randn(*rows.tokens.shape, training.states_size, generator=draw)
    outs = training.outs(states, rows, rows.visible(), DEPTH)
    training.write(tmp_path)
    tensors = {name: each.float() for name, each in load_file(tmp_path / "model.safetensors").items()}
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))

    def reference(row: int, places: torch.Tensor) -> torch.Tensor:
        """The log-probabilities of all steps, drafted after the last of these places of a document."""
        if kind is MedusaTraining:
            blocks = {f"{h}.0.linear.{each}": tensors[f"blocks.{h}.layers.0.{each}"] for h in range(DEPTH)
                      for each in ("weight", "bias")}  # fmt: skip
            outputs = [tensors[f"lm_heads.{head}.weight"] for head in range(DEPTH)]
            return reference_log_probs(blocks, outputs, states[row, places[-1]])
        tokens = rows.tokens[row, places + 1].tolist()
        embeddings = model.get_input_embeddings().weight
        return p_eagle_log_probs(tensors, settings, embeddings, states[row, places], tokens, DEPTH)

    compared = 0
    for row, places in documents(rows):
        for last in range(len(places) - 1):
            expected = reference(row, places[: last + 1])
            found = torch.stack([
                training.logits(out[row, places[last]], step).log_softmax(-1) for step, out in enumerate(outs)
            ])  # fmt: skip
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared > 30
    states, rows.tokens[:] = torch.zeros_like(states), 0
    drafted = KEPT[reference(1, torch.arange(8)).argmax(-1)].tolist()
    for length in (1, 3, DEPTH):
        assert training.drafter(6)(length).tolist() == drafted[:length]


class _OfAllPositions(PEagleTraining):
    retained = 1.0


@pytest.mark.parametrize("kind", [Eagle3Training, MedusaTraining, _OfAllPositions])
@torch.no_grad()
def test_the_loss_is_the_mean_cross_entropy_of_the_tokens_that_the_strategy_drafts(
    model: LlamaForCausalLM, kind: type[HeadTraining]
) -> None:
    """With the weight of one step at a time; a token is drafted s + 2 places before it by step s."""
    training, rows = randomised(kind.untrained(model, KEPT)), packed(torch.Generator().manual_seed(1))
    states = TargetStates(model, training.layer_ids).of(rows.tokens, rows.positions, rows.visible())
    in_vocabulary = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, KEPT, True)
    indices = labels(rows, in_vocabulary, DEPTH)
    batch = Batch(rows, rows.visible(), states, indices, rows.num_answer_tokens)
    outs = training.outs(training.read(states), rows, rows.visible(), DEPTH)
    teacher = torch.nn.functional.linear(states.final, model.lm_head.weight[KEPT]).softmax(-1)
    for step in range(DEPTH):
        losses = []
        for row, places in documents(rows):
            for order in range(DEPTH + 1, len(places)):  # tokens that all steps draft
                place = int(places[order])
                if rows.is_answer[row, place] and in_vocabulary[rows.tokens[row, place]]:
                    found = training.logits(outs[step][row, place - 2 - step], step).log_softmax(-1)
                    losses.append(-(teacher[row, place - 1] * found).sum())
        weights = [float(each == step) for each in range(DEPTH)]
        found = training.loss(batch, weights, torch.Generator())
        expected = torch.stack(losses).mean() / (DEPTH if kind is _OfAllPositions else 1)
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_p_eagles_sampled_positions_have_the_outputs_of_all_positions(model: LlamaForCausalLM) -> None:
    training, rows = randomised(PEagleTraining.untrained(model, KEPT)), packed(torch.Generator().manual_seed(1))
    assert isinstance(training, PEagleTraining)
    states = torch.randn(*rows.tokens.shape, training.states_size)
    every = training.outs(states, rows, rows.visible(), 4)
    order = torch.stack([torch.randperm(20), torch.randperm(20)])
    places = [order[:, :count] for count in (13, 9, 2)]
    for step, out in enumerate(training.sampled_outs(states, rows, rows.visible(), places)[1:], 1):
        index = places[step - 1][..., None].expand(-1, -1, out.shape[-1])
        torch.testing.assert_close(out, every[step].gather(1, index), rtol=1e-4, atol=1e-4)
