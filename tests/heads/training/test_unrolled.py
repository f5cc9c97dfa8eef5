"""An unrolled training step is the head's drafting step, position by position."""

import pytest
import torch

from specdec.heads.training.eagle3_training import unroll
from specdec.heads.training.packing import PackedRows
from tests.support.random_heads import random_head, reference_of

NUM_STEPS = 4


def packed_rows(vocab: int, lengths: list[list[int]], draw: torch.Generator) -> PackedRows:
    """Rows of random documents of given lengths, padded by tokens of document -1."""
    width = 20
    documents = torch.full((len(lengths), width), -1)
    positions = torch.arange(width).repeat(len(lengths), 1)
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes):
            documents[row, start : start + size] = 10 * row + number
            positions[row, start : start + size] = torch.arange(size)
            start += size
    tokens = torch.randint(vocab, documents.shape, generator=draw)
    return PackedRows(tokens, documents, positions, documents >= 0)


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_every_step_is_a_chain_drafted_at_that_position(seed: int) -> None:
    head, _ = random_head(seed)
    draw = torch.Generator().manual_seed(seed)
    rows = packed_rows(head.config.vocab_size, [[7, 9], [20]], draw)
    states = torch.randn(*rows.tokens.shape, head.fc.in_features, generator=draw)
    outs = unroll(head, states, rows, rows.visible(), NUM_STEPS)
    compared = 0
    for row in range(len(rows)):
        for document in rows.documents[row].unique():
            places = (rows.documents[row] == document).nonzero()[:, 0]
            if document < 0:
                continue
            text, features = rows.tokens[row, places], states[row, places]
            for i in range(len(text) - 1):
                reference = reference_of(head)
                last = reference.extend(features[: i + 1], text[1 : i + 2])
                chain = reference.chain(last, text[i + 2 : i + 1 + NUM_STEPS])
                for step, expected in enumerate(chain):
                    found = head.logits(outs[step][row, places[i]]).log_softmax(-1)
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
                    compared += 1
    assert compared > 80
