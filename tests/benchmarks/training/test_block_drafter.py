"""A block drafter's training: its forward is drafting's, it learns, and what it writes drafts the same."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.training.block_drafter import Blocks, anchors_of, final_states, logits_of, train, untrained, write
from specdec.heads.block_folder import read_block_head
from specdec.heads.block_runner import BlockGrowth, BlockRunner
from specdec.heads.drafting import first_returned
from specdec.heads.files import TargetWeights
from specdec.heads.pair_cache import PairCache
from specdec.heads.training.packing import PackedRows, pack
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText
from tests.support.families import SMALL, VOCAB, make

ARGUMENTS = argparse.Namespace(
    layers=2, block=4, rank=6, vocabulary=64, anchors=12, rows=2, length=48, rate=4.0, minutes=0.04, seed=3
)


@pytest.fixture(scope="module")
def model() -> Any:
    return make("LlamaConfig", {**SMALL, "num_hidden_layers": 8, "max_position_embeddings": 512})


def text(num_documents: int = 60) -> TrainingText:
    """Documents that count upwards from a random token, of which the last two thirds are answers."""
    draw = np.random.default_rng(1)
    documents = [(draw.integers(VOCAB) + np.arange(draw.integers(9, 30))) % VOCAB for _ in range(num_documents)]
    return TrainingText.of([each.astype(np.int32) for each in documents], [len(each) // 3 for each in documents])


def drafter(model: Any) -> Any:
    """A drafter whose parts all have an effect."""
    head, output_rows = untrained(model, torch.arange(0, VOCAB, 2), ARGUMENTS)
    torch.manual_seed(5)
    for parameter in head.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return head.eval(), output_rows


@torch.no_grad()
def test_the_forward_of_training_is_draftings(model: Any) -> None:
    """Of every slot that is learnt from, alone and after its own document only."""
    head, _ = drafter(model)
    rows = pack(text(), 48, np.random.default_rng(2))[:2]
    blocks = Blocks(rows, anchors_of(rows, 12, torch.Generator().manual_seed(1)), 4)
    read = TargetStates(model, head.config.layer_ids).of(rows.tokens, rows.positions, rows.visible()).layers
    final = final_states(head, read, rows, blocks)
    row, slot = blocks.is_valid.nonzero(as_tuple=True)
    places = blocks.labels[row, slot]
    found = logits_of(head, final[row, slot], rows.tokens[row, places - 1]).log_softmax(-1)
    runner, compared = BlockRunner(head, None), set()
    for number, (of_row, depth, place) in enumerate(
        zip(row.tolist(), (slot % 4).tolist(), places.tolist(), strict=True)
    ):
        anchor = place - 1 - depth
        start = anchor - int(rows.positions[of_row, anchor])
        states = read[of_row, start:anchor]
        tokens = [rows.tokens[of_row, start + 1 : anchor + 1].tolist()]
        growth = BlockGrowth(runner, [PairCache(head)], [states], tokens, 1, lambda _: None, first_returned(4))
        before = torch.zeros(1, 1, head.config.markov_rank)
        slots = growth._slots
        for level in range(depth + 1):
            token = np.array([[int(rows.tokens[of_row, anchor + level])]])
            after = runner.after(slots, level, token, before, None)
        expected = torch.full((VOCAB,), -torch.inf)
        expected[torch.from_numpy(after.tokens[0, 0])] = torch.from_numpy(after.log_probs[0, 0])
        torch.testing.assert_close(found[number], expected[head.target_ids], atol=1e-4, rtol=1e-4)
        compared.add(depth)
    assert compared == {0, 1, 2, 3}


def test_blocks_end_with_their_answer_and_see_their_document_before_them() -> None:
    rows = PackedRows(
        torch.arange(20)[None],
        torch.tensor([[0] * 8 + [1] * 8 + [-1] * 4]),
        torch.tensor([[*range(8), *range(8), *range(4)]]),
        torch.tensor([[False] * 3 + [True] * 5 + [False] * 2 + [True] * 6 + [False] * 4]),
    )
    anchors = torch.tensor([[5, 10, 19]])
    blocks = Blocks(rows, anchors, 4)
    assert blocks.is_valid[0].tolist() == [True, True, False, False] + [True] * 4 + [False] * 4
    assert blocks.visible[0, 1, :20].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert blocks.visible[0, 5, :20].nonzero().flatten().tolist() == [8, 9]
    assert blocks.visible[0, 5, 20:].nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert blocks.positions[0, 4:8].tolist() == [2, 3, 4, 5]
    chosen = anchors_of(rows, 4, torch.Generator().manual_seed(0))
    assert {*chosen.flatten().tolist()} <= {2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14}


@pytest.mark.parametrize("rank", [0, 6])
def test_it_learns_and_what_is_written_drafts_the_same(model: Any, tmp_path: Path, rank: int) -> None:
    head, found = train(model, text(), argparse.Namespace(**{**vars(ARGUMENTS), "rank": rank}))
    assert found["updates"] > 5
    assert found["loss at the end"] < found["loss at first"]
    write(head, tmp_path)
    output = model.get_output_embeddings().weight
    weights = TargetWeights(model.get_input_embeddings().weight, lambda: output, 8)
    again = read_block_head(tmp_path, weights, torch.float32)
    states, tokens = torch.randn(5, 3 * SMALL["hidden_size"]), [[1, 2, 3, 4, 9]]
    drafts = []
    for each in (head, again):
        growth = BlockGrowth(
            BlockRunner(each, 4), [PairCache(each)], [states], tokens, 2, lambda _: None, first_returned(4)
        )
        growth.feed()
        drafts.append(growth.best(8))
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    np.testing.assert_allclose(drafts[0].log_probs, drafts[1].log_probs, atol=1e-4)
