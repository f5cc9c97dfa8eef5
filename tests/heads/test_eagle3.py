"""EAGLE-3 and EAGLE heads draft what the reference drafts: trees, log-probabilities and cached keys."""

import pytest
import torch

from specdec.heads.drafting import DraftedTrees, grow
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.pair_head import PairHead
from specdec.heads.torch_runner import TorchRunner
from tests.support.random_heads import VARIANTS, check_row, random_eagle_head, random_head, reference_of

BATCH, STEPS = 4, 6


@pytest.mark.parametrize(("seed", "batch"), [*((seed, BATCH) for seed in range(20)), (0, 1), (1, 1)])
def test_trees_and_keys_are_those_of_the_reference(seed: int, batch: int) -> None:
    """Of a request alone too, whose pairs are written to its own cache."""
    check_steps(random_head(seed)[0], seed, batch)


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", VARIANTS)
def test_trees_and_keys_of_newer_heads_are_those_of_the_reference(variant: str, seed: int, batch: int) -> None:
    check_steps(random_head(seed, **VARIANTS[variant])[0], seed, batch)


@pytest.mark.parametrize("seed", range(12))
def test_trees_and_keys_of_eagles_first_heads_are_those_of_the_reference(seed: int) -> None:
    check_steps(random_eagle_head(seed), seed)


@torch.no_grad()
def check_steps(head: PairHead, seed: int, batch: int = BATCH) -> None:
    """Feed pairs of ragged counts to a batch in several steps, and assert what each step drafts and keeps."""
    references = [reference_of(head) for _ in range(batch)]
    caches, runner = [PairCache(head) for _ in range(batch)], TorchRunner(head, 4)
    draw = torch.Generator().manual_seed(seed + 1000)
    for step in range(STEPS):
        counts = torch.randint(1, 9 if step < 2 else 4, (batch,), generator=draw).tolist()
        states = [torch.randn(count, head.config.states_size, generator=draw) for count in counts]
        tokens = [torch.randint(head.config.vocab_size, (count,), generator=draw) for count in counts]
        width, depth, total = (3, 3, 12) if step % 2 else (4, 2, 9)
        trees = grow(runner, caches, states, [each.tolist() for each in tokens], width, depth, total)
        for row, reference in enumerate(references):
            check_row(trees, row, caches[row], reference, states[row], tokens[row], (width, depth, total), 1e-5)


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_part_of_a_tree_has_no_child_without_its_parent(seed: int) -> None:
    head, _ = random_head(seed)
    head.lm_head.weight *= 1000  # log-probabilities of 0: children and parents are equally probable
    draw = torch.Generator().manual_seed(seed)
    states = [torch.randn(5, head.fc.in_features, generator=draw) for _ in range(8)]
    tokens = [torch.randint(head.config.vocab_size, (5,), generator=draw).tolist() for _ in range(8)]
    whole, part = (
        paths(grow(TorchRunner(head, 4), [PairCache(head) for _ in range(8)], states, tokens, 4, 4, total))
        for total in (68, 3)
    )
    for every, kept in zip(whole, part, strict=True):
        assert kept <= every


def paths(trees: DraftedTrees) -> list[set[tuple[int, ...]]]:
    """The tokens from the root to each node."""
    found = []
    for tokens, parents in zip(trees.tokens.tolist(), trees.parents.tolist(), strict=True):
        to_node: list[tuple[int, ...]] = []
        for token, parent in zip(tokens, parents, strict=True):
            to_node.append((*(to_node[parent] if parent >= 0 else ()), token))
        found.append({*to_node})
    return found


@torch.no_grad()
def test_a_truncated_cache_drafts_as_one_that_never_had_more() -> None:
    head, _ = random_head(3)
    draw = torch.Generator().manual_seed(5)
    states = torch.randn(9, head.config.num_states * head.config.target_hidden_size, generator=draw)
    tokens, runner = torch.randint(head.config.vocab_size, (9,), generator=draw), TorchRunner(head, 4)
    longer, plain = PairCache(head), PairCache(head)
    append(head, longer, states, tokens)
    longer.truncate(6)
    append(head, plain, states[:6], tokens[:6])
    trees = [grow(runner, [cache], [states[6:7]], [tokens[6:7].tolist()], 3, 2, 8) for cache in (longer, plain)]
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    assert trees[0].parents.tolist() == trees[1].parents.tolist()


@pytest.mark.parametrize("is_inference", [False, True])
def test_joined_matrices_are_held_once(is_inference: bool) -> None:
    with torch.inference_mode(is_inference):
        head, _ = random_head(3)
        before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
        TorchRunner(head, 4)
    attention, mlp = head.midlayer.self_attn, head.midlayer.mlp
    for parts in ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)):
        assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())
