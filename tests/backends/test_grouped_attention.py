"""Grouped attention: the formula itself, the same bits as the copies give, and a model left as it was found."""

import pytest
import torch
from transformers import AttentionInterface

from specdec import DraftTree, ModelError
from specdec.backends import grouped_attention
from specdec.backends.hf import HFBackend
from specdec.masks.dense import DenseCompiler
from specdec.target import Target
from tests.support import families
from tests.support.examined import examined
from tests.support.generators import open_row

compiler = DenseCompiler()


def tensors(heads: int, groups: int, width: int, slots: int, value_size: int = 8) -> tuple[torch.Tensor, ...]:
    noise = torch.Generator().manual_seed(heads * slots + width)
    query = torch.randn(2, heads, width, 8, generator=noise)
    key = torch.randn(2, groups, slots, 8, generator=noise)
    value = torch.randn(2, groups, slots, value_size, generator=noise)
    hidden = torch.rand(2, 1, width, slots, generator=noise) < 0.4
    hidden[..., 0] = False
    return query, key, value, torch.zeros(2, 1, width, slots).masked_fill(hidden, torch.finfo(torch.float32).min)


class Module(torch.nn.Module):
    """An attention layer, as far as transformers' own function reads it."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups
        self.is_causal = True


@pytest.mark.parametrize(
    ("heads", "groups", "value_size"), [(6, 2, 8), (8, 1, 8), (4, 4, 8), pytest.param(4, 4, 5, id="narrow values")]
)
@pytest.mark.parametrize(("width", "slots"), [(1, 9), (5, 40), (40, 300)])
def test_it_is_softmax_attention(heads: int, groups: int, value_size: int, width: int, slots: int) -> None:
    query, key, value, mask = tensors(heads, groups, width, slots, value_size)
    output, _ = grouped_attention.grouped_attention(Module(heads // groups), query, key, value, mask, scaling=0.3)
    assert output.shape == (2, width, heads, value_size)
    for head in range(heads):
        group = head // (heads // groups)
        scores = torch.einsum("btd,bsd->bts", query[:, head].double(), key[:, group].double()) * 0.3
        weights = torch.softmax(scores + mask[:, 0].double(), dim=-1)
        expected = torch.einsum("bts,bsd->btd", weights, value[:, group].double())
        torch.testing.assert_close(output[:, :, head].double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (8, 1), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_node_alone_sees_everything(heads: int, groups: int, dtype: torch.dtype) -> None:
    query, key, value, _ = (tensor.to(dtype) for tensor in tensors(heads, groups, 1, 70))
    output, _ = grouped_attention.grouped_attention(Module(heads // groups), query, key, value, None, scaling=0.3)
    own, _ = AttentionInterface()["sdpa"](Module(heads // groups), query, key, value, None, scaling=0.3)
    assert output.shape == own.shape == (2, 1, heads, 8)
    torch.testing.assert_close(output, own, atol=1e-6 if dtype == torch.float32 else 2e-2, rtol=0)


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 4)])
def test_a_node_for_each_row_in_half_precision_keeps_to_its_mask(heads: int, groups: int) -> None:
    query, key, value, mask = tensors(heads, groups, 1, 70)
    expected, _ = grouped_attention.grouped_attention(Module(heads // groups), query, key, value, mask, scaling=0.3)
    half = (tensor.to(torch.bfloat16) for tensor in (query, key, value, mask.clamp_min(-1e30)))
    output, _ = grouped_attention.grouped_attention(Module(heads // groups), *half, scaling=0.3)
    torch.testing.assert_close(output.float(), expected, atol=3e-2, rtol=0)


def test_a_mask_for_each_head_is_kept_to() -> None:
    query, key, value, mask = (tensor.bfloat16() for tensor in tensors(6, 2, 1, 70))
    masks = torch.stack([mask[:, 0].roll(shift, -1) for shift in range(6)], 1)
    own, _ = AttentionInterface()["sdpa"](Module(3), query, key, value, masks, scaling=0.3)
    output, _ = grouped_attention.grouped_attention(Module(3), query, key, value, masks, scaling=0.3)
    assert torch.equal(own, output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_are_those_of_the_models_own_attention(dtype: torch.dtype) -> None:
    query, key, value, mask = (tensor.to(dtype) for tensor in tensors(6, 2, 11, 150))
    mask = mask.clamp_min(torch.finfo(dtype).min)
    own, _ = AttentionInterface()["sdpa"](Module(3), query, key, value, mask, scaling=0.3)
    output, _ = grouped_attention.grouped_attention(Module(3), query, key, value, mask, scaling=0.3)
    assert torch.equal(own, output)


def test_a_pass_uses_it_and_leaves_the_model_as_it_was() -> None:
    model = families.make(*families.TREES["llama"])
    backend = examined(HFBackend.load(model, compiler))
    open_row(Target(backend, compiler), [1, 2, 3])
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    tree = DraftTree(4)
    backend.forward(compiler.compile([tree], [3], backend.shapes))
    tree.add_chain(0, [5, 6])
    backend.forward(compiler.compile([tree], [3], backend.shapes))
    assert seen == [grouped_attention.NAME, grouped_attention.NAME]
    assert model.config._attn_implementation == "sdpa"


def test_a_pass_that_fails_leaves_the_model_as_it_was() -> None:
    model = families.make(*families.TREES["llama"])
    backend = examined(HFBackend.load(model, compiler))
    open_row(Target(backend, compiler), [1, 2, 3])
    tree = DraftTree(4)
    tree.add_chain(0, [5, 6])

    def fail(*_: object) -> None:
        raise MemoryError

    model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        backend.forward(compiler.compile([tree], [3], backend.shapes))
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_it_stays_away_where_attention_is_another(name: str) -> None:
    assert not HFBackend.load(families.make(*families.TREES[name]), DenseCompiler())._has_fused_attention


def test_several_nodes_without_a_mask_are_refused() -> None:
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    with pytest.raises(ModelError, match="from one thread at a time"):
        grouped_attention.grouped_attention(torch.nn.Module(), query, key, key, None)
