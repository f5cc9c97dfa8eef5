"""EAGLE-3 and EAGLE heads of random sizes and weights, with the tests' reference."""

from typing import Any

import torch

from specdec.heads.config import Eagle3Config, EagleConfig
from specdec.heads.drafting import DraftedTrees
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.pair_cache import PairCache
from specdec.heads.pair_head import PairHead
from tests.support.eagle3_reference import EagleReference, ReferenceHead

# Fields of a configuration that published heads have and the first ones hadn't.
VARIANTS: dict[str, dict[str, Any]] = {
    "biases": {"qkv_bias": True, "o_bias": True},
    "norms of queries and keys": {"qk_norm": True},
    "a window": {"sliding_window": 5},
    "all": {"qkv_bias": True, "o_bias": True, "qk_norm": True, "sliding_window": 6, "norm_output": True,
            "norm_before_residual": True},
}  # fmt: skip


def random_head(seed: int, is_reduced: bool | None = None, **fields: Any) -> tuple[Eagle3Head, ReferenceHead]:
    """A head with its reference; every other one has a reduced vocabulary, or as it is asked for."""
    draw = torch.Generator().manual_seed(seed)

    def one_of(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (1,), generator=draw))]

    vocab, group, dim, hidden = one_of(40, 57), one_of(1, 2, 3), one_of(4, 8), one_of(12, 16)
    num_kv_heads, theta = one_of(1, 2), one_of(100.0, 5000.0)
    config = Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=one_of(8, hidden),
        intermediate_size=20,
        num_attention_heads=group * num_kv_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=dim,
        vocab_size=vocab,
        draft_vocab_size=24 if (seed % 2 == 0 if is_reduced is None else is_reduced) else vocab,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        **fields,
    )
    head = Eagle3Head(config, torch.randn(vocab, hidden, generator=draw))
    for name, parameter in head.named_parameters():
        scale = 1.0 if "norm" in name else 1.5 / parameter.shape[-1] ** 0.5
        parameter.data = torch.randn(parameter.shape, generator=draw) * scale
    head.set_vocabulary(torch.randperm(vocab, generator=draw)[: config.draft_vocab_size].sort().values)
    return head, reference_of(head)


def random_eagle_head(seed: int) -> EagleHead:
    """A head; some have biases."""
    draw = torch.Generator().manual_seed(seed)
    num_kv_heads, group = 1 + seed % 2, 1 + seed % 3
    config = EagleConfig(
        hidden_size=12,
        intermediate_size=20,
        num_attention_heads=group * num_kv_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=4 + 4 * (seed % 2),
        vocab_size=41,
        draft_vocab_size=41,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        bias=seed % 4 < 2,
        qkv_bias=seed % 3 == 0,
    )
    head = EagleHead(config, torch.randn(41, 12, generator=draw))
    for parameter in head.parameters():  # without norms, larger ones would add up over the levels of a tree
        scale = 1.0 if parameter.dim() == 1 else 0.7 / parameter.shape[-1] ** 0.5
        parameter.data = torch.randn(parameter.shape, generator=draw) * scale
    return head


def reference_of(head: PairHead) -> ReferenceHead:
    """A reference with a head's weights and an empty cache."""
    config = head.config
    tensors = {**head.state_dict(), "embed_tokens.weight": head.embeddings}
    sizes = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    made = EagleReference if isinstance(head, EagleHead) else ReferenceHead
    residual, output = (getattr(config, name, False) for name in ("norm_before_residual", "norm_output"))
    return made(tensors, *sizes, config.rope_parameters["rope_theta"], config.sliding_window or 0, residual, output)


def check_row(  # noqa: PLR0917 - what a head was given, and what it has made of it
    trees: DraftedTrees,
    row: int,
    cache: PairCache,
    reference: ReferenceHead,
    states: torch.Tensor,
    tokens: torch.Tensor,
    shape: tuple[int, int, int],
    tolerance: float,
) -> None:
    """Assert that a request's tree and cache are the reference's after the same pairs.

    Args:
        shape: of the tree: width, depth and number of nodes.
        tolerance: of keys and values.
    """
    expected = reference.extend(states, tokens)
    ids, parents, log_probs = reference.grow(expected, *shape)
    assert (trees.tokens[row].tolist(), trees.parents[row].tolist()) == (ids, parents)
    torch.testing.assert_close(torch.from_numpy(trees.log_probs[row]), torch.tensor(log_probs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache.keys.transpose(0, 1), reference.k, rtol=1e-4, atol=tolerance)
    torch.testing.assert_close(cache.values.transpose(0, 1), reference.v, rtol=1e-4, atol=tolerance)
