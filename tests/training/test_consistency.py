"""The losses and trajectories of consistency training, compared with passes over one text and one block at a time."""

from typing import Any

import numpy as np
import pytest
import torch

from specdec import Generator
from specdec.sampling.randomness import Randomness
from specdec.training.consistency import Blocks, initial_guess, losses, trajectory
from specdec.training.jacobi_steps import JacobiRow, decode_by_jacobi
from specdec.training.packing import PackedRows, pack
from specdec.training.text import Text
from tests.support.plain import decode_model
from tests.training.test_head_training import model as tiny_model

N = 4
PROMPTS = [[7, 8, 9], [30, 31, 32, 33, 34], [100, 5], [7, 8]]
LENGTHS = [11, 8, 3, 6]
NO_ENDS = torch.tensor([], dtype=torch.long)


@pytest.fixture(scope="module", name="model")
def _model() -> Any:
    return tiny_model(initializer_range=0.3, rope_parameters={"rope_type": "default", "rope_theta": 30.0})


@pytest.fixture(scope="module", name="text")
def _text(model: Any) -> Text:
    """Prompts with greedy answers, of whole blocks and not."""
    answers = [decode_model(model, prompt, count, None, eos=()) for prompt, count in zip(PROMPTS, LENGTHS, strict=True)]
    documents = [np.array(prompt + answer, dtype=np.int32) for prompt, answer in zip(PROMPTS, answers, strict=True)]
    return Text.of(documents, [len(prompt) for prompt in PROMPTS])


@pytest.fixture(scope="module", name="rows")
def _rows(text: Text) -> PackedRows:
    packed = pack(text, 24, np.random.default_rng(1))
    assert len(packed) < len(PROMPTS)  # or no row would have two documents
    return packed


def blocks_in(text: Text) -> list[tuple[int, int, int]]:
    """Each block's document, and where it begins and ends there."""
    found = []
    for index in range(len(text)):
        end = len(text.document(index))
        found += [(index, start, min(start + N, end)) for start in range(int(text.answers[index]), end, N)]
    return found


def of_documents(rows: PackedRows, values: torch.Tensor, index: int) -> torch.Tensor:
    return values[rows.documents == index]


def logits_after(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[None].long()).logits[0]


def test_a_trajectory_is_the_iteration_of_each_block_and_ends_with_plain_decodings_text(
    model: Any, text: Text, rows: PackedRows
) -> None:
    blocks = Blocks.of(rows, N)
    guess = torch.from_numpy(np.random.default_rng(0).integers(340, size=tuple(rows.tokens.shape)))
    steps = trajectory(model, blocks, guess)
    states = [next(steps) for _ in range(N + 1)]
    for index, start, end in blocks_in(text):
        document = torch.from_numpy(text.document(index))
        expected = of_documents(rows, guess, index)[start:end]
        for state in states:
            assert torch.equal(of_documents(rows, state, index)[start:end], expected)
            predicted = logits_after(model, torch.cat((document[:start], expected))).argmax(-1)
            expected = predicted[start - 1 : end - 1]
    assert torch.equal(states[N], rows.tokens)
    assert not torch.equal(states[1], rows.tokens)


def test_losses_and_their_gradients_are_the_papers_written_out(model: Any, text: Text, rows: PackedRows) -> None:
    blocks = Blocks.of(rows, N)
    guess = torch.from_numpy(np.random.default_rng(0).integers(340, size=tuple(rows.tokens.shape)))
    steps = trajectory(model, blocks, guess)
    state = [next(steps) for _ in range(2)][1]
    divergences, surprises = [], []
    model.requires_grad_(True)
    for index, start, end in blocks_in(text):
        document = torch.from_numpy(text.document(index))
        of_text = logits_after(model, document).double().log_softmax(-1)
        current = of_documents(rows, state, index)[start:end]
        of_state = logits_after(model, torch.cat((document[:start], current))).double().log_softmax(-1)
        for at in range(start, end):
            surprises.append(-of_text[at - 1, document[at].long()])
            teacher = of_text[at - 1].detach()
            divergence = (teacher.exp() * (teacher - of_state[at - 1])).sum()
            if torch.equal(current[: at - start], document[start:at].long()):
                assert abs(divergence) < 1e-6
            else:
                divergences.append(divergence)
    expected = torch.stack(divergences).mean(), torch.stack(surprises).mean()
    found = losses(model, blocks, state)
    for ours, its in zip(found, expected, strict=True):
        assert its > 0.01
        torch.testing.assert_close(ours.double(), its, rtol=1e-4, atol=1e-5)
        weights = model.model.layers[1].self_attn.k_proj.weight, model.model.embed_tokens.weight
        for gradient, written_out in zip(
            torch.autograd.grad(ours, weights, retain_graph=True),
            torch.autograd.grad(its, weights, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(gradient, written_out, rtol=1e-3, atol=1e-5)
    model.requires_grad_(False)


def test_a_fixed_point_has_no_consistency_loss(model: Any, rows: PackedRows) -> None:
    consistency, autoregressive = losses(model, Blocks.of(rows, N), rows.tokens)
    assert consistency == 0.0
    assert autoregressive > 0.0


def test_guesses_are_tokens_of_the_text_before_the_block(text: Text, rows: PackedRows) -> None:
    blocks, draw, seen = Blocks.of(rows, N), np.random.default_rng(0), set()
    for _ in range(50):
        guess = initial_guess(blocks, torch.tensor([31]), draw)
        for index, start, end in blocks_in(text):
            document = text.document(index).tolist()
            tokens = of_documents(rows, guess, index)[start:end].tolist()
            assert {*tokens} <= {*document[:start]} - {31}
            seen |= {(index, token) for token in tokens}
    assert {token for index, token in seen if index == 0} >= {7, 8, 9}


@pytest.mark.parametrize("is_ended", [False, True])
def test_many_texts_are_decoded_as_jacobi_decodes_each(model: Any, text: Text, is_ended: bool) -> None:
    ends = [int(text.document(0)[len(PROMPTS[0]) + 5])] if is_ended else []
    generator = Generator(model, proposer=f"jacobi:n={N}", numerics="fast")
    seed, count = 3, 20
    draws = [Randomness(seed).stream("JacobiProposer") for _ in PROMPTS]
    rows = [JacobiRow(list(prompt), count, draw) for prompt, draw in zip(PROMPTS, draws, strict=True)]
    decode_by_jacobi(model, rows, N, ends)
    results = generator.generate(PROMPTS, max_new_tokens=count, seed=seed, eos_token_id=ends)
    for prompt, row, result in zip(PROMPTS, rows, results, strict=True):
        assert row.tokens[len(prompt) :] == decode_model(model, prompt, count, None, eos=ends) == list(result.token_ids)
        assert row.steps == result.stats.steps
    num_new = [len(row.tokens) - row.num_prompt for row in rows]
    assert (min(num_new) < count) == is_ended
    assert sum(row.steps for row in rows) < sum(num_new)


def test_a_window_of_jacobi_goes_through_the_states_of_a_trajectory(model: Any, text: Text) -> None:
    windows = list[list[int]]()

    class Noted(JacobiRow):
        def advance(self, *given: Any) -> int:
            windows.append([*self.tokens, *self.guess])
            return super().advance(*given)

    start, size = len(PROMPTS[0]), LENGTHS[0]
    decode_by_jacobi(model, [Noted(list(PROMPTS[0]), size, np.random.default_rng(5))], size)
    packed = pack(text.select(np.array([0])), 16, np.random.default_rng(0))
    guess = packed.tokens.clone()
    guess[0, start : start + size] = torch.tensor(windows[0][start:])
    for window, state in zip(windows, trajectory(model, Blocks.of(packed, size), guess), strict=False):
        assert window[: start + size] == state[0, : start + size].tolist()
    assert len(windows) > 3
