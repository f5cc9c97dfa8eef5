"""An EAGLE-3 head drafts what the reference drafts: trees, log-probabilities and cached keys."""

from typing import Any

import pytest
import torch

from specdec.heads.config import Eagle3Config
from specdec.heads.drafting import PairCache, extend, grow
from specdec.heads.eagle3 import Eagle3Head
from tests.heads.reference import ReferenceHead

BATCH, STEPS = 4, 6


def random_head(seed: int) -> tuple[Eagle3Head, ReferenceHead]:
    """A head of random sizes and weights with its reference; every other one has a reduced vocabulary."""
    draw = torch.Generator().manual_seed(seed)

    def one_of(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (1,), generator=draw))]

    vocab, group, dim, hidden = one_of(40, 57), one_of(1, 2, 3), one_of(4, 8), one_of(12, 16)
    num_kv_heads = one_of(1, 2)
    config = Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=one_of(8, hidden),
        intermediate_size=20,
        num_attention_heads=group * num_kv_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=dim,
        vocab_size=vocab,
        draft_vocab_size=vocab if seed % 2 else 24,
        rope_parameters={"rope_type": "default", "rope_theta": one_of(100.0, 5000.0)},
    )
    head = Eagle3Head(config, torch.randn(vocab, hidden, generator=draw))
    for name, parameter in head.named_parameters():
        scale = 1.0 if "norm" in name else 1.5 / parameter.shape[-1] ** 0.5
        parameter.data = torch.randn(parameter.shape, generator=draw) * scale
    kept = torch.randperm(vocab, generator=draw)[: config.draft_vocab_size].sort().values
    head.set_vocabulary(kept)
    tensors = {**head.state_dict(), "embed_tokens.weight": head.embeddings}
    theta = config.rope_parameters["rope_theta"]
    return head, ReferenceHead(tensors, group * num_kv_heads, num_kv_heads, config.rms_norm_eps, theta)


@pytest.mark.parametrize("seed", range(20))
@torch.no_grad()
def test_trees_and_keys_are_those_of_the_reference(seed: int) -> None:
    head, _ = random_head(seed)
    references = [random_head(seed)[1] for _ in range(BATCH)]
    caches = [PairCache(head) for _ in range(BATCH)]
    draw = torch.Generator().manual_seed(seed + 1000)
    width_of_states = head.config.num_states * head.config.target_hidden_size
    for step in range(STEPS):
        counts = torch.randint(1, 9 if step < 2 else 4, (BATCH,), generator=draw).tolist()
        states = [torch.randn(count, width_of_states, generator=draw) for count in counts]
        tokens = [torch.randint(head.config.vocab_size, (count,), generator=draw) for count in counts]
        last = extend(head, caches, states, tokens)
        width, depth, total = (3, 3, 12) if step % 2 else (4, 2, 9)
        trees = grow(head, caches, last, width, depth, total)
        for row, reference in enumerate(references):
            expected = reference.extend(states[row], tokens[row])
            torch.testing.assert_close(last[row], expected, rtol=1e-4, atol=1e-5)
            ids, parents, log_probs = reference.grow(expected, width, depth, total)
            assert (trees.tokens[row].tolist(), trees.parents[row].tolist()) == (ids, parents)
            torch.testing.assert_close(trees.log_probs[row], torch.tensor(log_probs), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(caches[row].keys.transpose(0, 1), reference.k, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(caches[row].values.transpose(0, 1), reference.v, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_truncated_cache_drafts_as_one_that_never_had_more() -> None:
    head, _ = random_head(3)
    draw = torch.Generator().manual_seed(5)
    states = torch.randn(9, head.config.num_states * head.config.target_hidden_size, generator=draw)
    tokens = torch.randint(head.config.vocab_size, (9,), generator=draw)
    longer, plain = PairCache(head), PairCache(head)
    extend(head, [longer], [states], [tokens])
    longer.truncate(6)
    extend(head, [plain], [states[:6]], [tokens[:6]])
    again = [extend(head, [cache], [states[6:7]], [tokens[6:7]]) for cache in (longer, plain)]
    trees = [grow(head, [cache], last, 3, 2, 8) for cache, last in zip((longer, plain), again, strict=True)]
    assert torch.equal(trees[0].tokens, trees[1].tokens)
    assert torch.equal(trees[0].parents, trees[1].parents)
