"""On the built-in model strategies say what plain decoding says; ``benchmarks lossless`` runs every one of them."""

from typing import Any

import pytest
import torch

from specdec import Generator, demo
from tests.support.plain import decode_model

NUM_TOKENS = 40
SEED = 20


def plain(built_in: tuple[Any, Any], seed: int | None) -> list[list[int]]:
    """Plain decoding of a prompt of each category: greedy under None, at temperature 1 under a seed."""
    model, tokenizer = built_in
    return [decode_model(model, tokenizer(text)["input_ids"], NUM_TOKENS, seed) for text in texts()]


def texts() -> list[str]:
    return [prompt.text for index, prompt in enumerate(demo.prompts()) if index % 6 == 1]


# Trees with probes, greedy, and several chains, sampled; the laws have every strategy at both temperatures.
@pytest.mark.parametrize(("proposer", "seed"), [("lookahead", None), ("prompt_lookup:num_matches=4", SEED)])
def test_tokens_are_plain_decodings_alone_and_in_ragged_batches_that_others_join(
    built_in: tuple[Any, Any], proposer: str, seed: int | None
) -> None:
    expected = plain(built_in, seed)
    generator = Generator(*built_in, proposer=proposer, max_batch_size=3)
    sampling = {"temperature": 0.0 if seed is None else 1.0, "seed": SEED}
    alone = [generator.generate(text, max_new_tokens=NUM_TOKENS, **sampling) for text in texts()]
    batch = generator.generate(texts(), max_new_tokens=NUM_TOKENS, **sampling)
    assert [list(result.token_ids) for result in alone] == expected
    assert [list(result.token_ids) for result in batch] == expected
    for one, other in zip(alone, batch, strict=True):
        assert one.stats.accepted_lengths == other.stats.accepted_lengths
    steps = sum(result.stats.steps for result in alone)
    assert sum(result.stats.num_tokens for result in alone) / steps > (1.3 if seed is None else 1.0)


def test_greedy_is_what_transformers_generate_says(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    for text, tokens in zip(texts(), plain(built_in, None), strict=True):
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
