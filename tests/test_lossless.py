"""On the built-in model every strategy says what plain decoding says; ``benchmarks lossless`` runs all of it."""

from typing import Any

import pytest
import torch

from specdec import Generator, demo
from tests.support.plain import decode_model

BUILT_IN = ["autoregressive", "jacobi", "lookahead", "prompt_lookup", "prompt_lookup:num_matches=4"]
NUM_TOKENS = 64
SEED = 20


@pytest.fixture(scope="module")
def expected(built_in: tuple[Any, Any]) -> dict[int | None, list[list[int]]]:
    """Plain decoding of a prompt of each category: greedy under None, temperature 1 under its seed."""
    model, tokenizer = built_in
    return {
        seed: [decode_model(model, tokenizer(text)["input_ids"], NUM_TOKENS, seed) for text in texts()]
        for seed in (None, SEED)
    }


def texts() -> list[str]:
    return [prompt.text for index, prompt in enumerate(demo.prompts()) if index % 6 == 1]


@pytest.mark.parametrize("proposer", BUILT_IN)
@pytest.mark.parametrize("seed", [None, SEED])
def test_tokens_are_plain_decodings_alone_and_in_ragged_batches_that_others_join(
    built_in: tuple[Any, Any], expected: dict[int | None, list[list[int]]], proposer: str, seed: int | None
) -> None:
    generator = Generator(*built_in, proposer=proposer, max_batch_size=3)
    sampling = {"temperature": 0.0 if seed is None else 1.0, "seed": SEED}
    alone = [generator.generate(text, max_new_tokens=NUM_TOKENS, **sampling) for text in texts()]
    batch = generator.generate(texts(), max_new_tokens=NUM_TOKENS, **sampling)
    assert [list(result.token_ids) for result in alone] == expected[seed]
    assert [list(result.token_ids) for result in batch] == expected[seed]
    for one, other in zip(alone, batch, strict=True):
        assert one.stats.accepted_lengths == other.stats.accepted_lengths
    if proposer == "lookahead":
        steps = sum(result.stats.steps for result in alone)
        assert sum(result.stats.num_tokens for result in alone) / steps > 1.3


def test_greedy_is_what_transformers_generate_says(
    built_in: tuple[Any, Any], expected: dict[int | None, list[list[int]]]
) -> None:
    model, tokenizer = built_in
    for text, tokens in zip(texts(), expected[None], strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        mask = torch.ones_like(ids)
        generated = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False)
        assert generated[0, ids.shape[1] :].tolist() == tokens


def test_a_wrong_acceptance_would_show(built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from specdec.tree import DraftTree

    def first_child(tree: DraftTree, node: int, token: int) -> int | None:
        return next((child for child in tree.nodes_with(1) if tree.parents[child] == node), None)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftTree, "child", first_child)
    model, tokenizer = built_in
    text = texts()[0]
    result = Generator(model, tokenizer, proposer="prompt_lookup").generate(text, max_new_tokens=NUM_TOKENS)
    assert list(result.token_ids) != decode_model(model, tokenizer(text)["input_ids"], NUM_TOKENS, None)
