"""Block drafters' folders: the reference's log-probabilities in every layout, or a refusal by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from specdec import ModelError
from specdec.heads.block_folder import read_block_head
from specdec.heads.block_runner import BlockGrowth, BlockRunner
from specdec.heads.drafting import first_returned
from specdec.heads.eagle3_folder import read_head
from specdec.heads.files import TargetWeights
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.settings import notes_on_settings
from specdec.heads.strategies.block import DFlashProposer, DSparkProposer
from tests.support.block_folders import KEPT, LAYOUTS, VOCAB, WIDTH, write
from tests.support.block_reference import BlockReference, Layout

TOLERANCE = 2e-5


def target(seed: int = 9) -> TargetWeights:
    draw = torch.Generator().manual_seed(seed)
    output = torch.randn(VOCAB, WIDTH, generator=draw)
    return TargetWeights(torch.randn(VOCAB, WIDTH, generator=draw), lambda: output, 4)


def cached(head: Any, states: torch.Tensor, sizes: list[int]) -> PairCache:
    """A cache that has read some states, in parts."""
    cache = PairCache(head)
    for part in torch.split(states[: sum(sizes)], sizes):
        append(head, cache, part, torch.zeros(len(part), dtype=torch.long))
    return cache


@pytest.mark.parametrize("num_tokens", [VOCAB, None])
@pytest.mark.parametrize("name", LAYOUTS)
@torch.no_grad()
def test_log_probabilities_are_the_references(tmp_path: Path, name: str, num_tokens: int | None) -> None:
    """Of requests of several lengths in one pass, the last of which begins its text with it."""
    layout, weights, draw = LAYOUTS[name], target(), torch.Generator().manual_seed(4)
    tensors = write(tmp_path, layout)
    head = read_block_head(tmp_path, weights, torch.float32)
    reference = BlockReference(layout, tensors, weights.embeddings, weights.output())
    assert notes_on_settings(tmp_path) == ()
    assert head.config.target_layers(4) == layout.layer_ids
    lengths, news, anchors = [11, 7, 2], [2, 3, 2], [5, 40, 8]
    texts = [torch.randn(length, len(layout.layer_ids) * WIDTH, generator=draw) for length in lengths]
    caches = [
        cached(head, text, [1, length - new - 1] if length > new else [])
        for text, length, new in zip(texts, lengths, news, strict=True)
    ]
    given = [text[length - new :] for text, length, new in zip(texts, lengths, news, strict=True)]
    tokens = [[3] * (new - 1) + [anchor] for new, anchor in zip(news, anchors, strict=True)]
    runner = BlockRunner(head, num_tokens)
    growth = BlockGrowth(runner, caches, given, tokens, 2, lambda _: None, first_returned(2))
    assert runner.num_drafted == layout.block - (not layout.is_shifted)
    for _ in range(runner.num_drafted - 1):
        growth.feed()
    assert [len(cache) for cache in caches] == lengths
    drafted = growth.best(1000)
    for row, (text, anchor) in enumerate(zip(texts, anchors, strict=True)):
        paths: list[tuple[int, ...]] = []
        for node in range(drafted.tokens.shape[1]):
            parent = int(drafted.parents[row, node])
            path = (*(paths[parent] if parent >= 0 else ()), int(drafted.tokens[row, node]))
            paths.append(path)
            expected = sum(
                reference.log_probs(text, anchor, path[:end])[list(reference.draft_ids).index(path[end])].item()
                for end in range(len(path))
            )
            assert abs(float(drafted.log_probs[row, node]) - expected) < TOLERANCE * 20, (path, expected)
        first = reference.log_probs(text, anchor).topk(2)
        expected_first = first.indices.tolist() if num_tokens else [0, 1]  # whole distributions aren't sorted
        assert [path[0] for path in paths[:2]] == reference.draft_ids[expected_first].tolist()


@torch.no_grad()
def test_the_markov_head_ranks_the_64_tokens_that_are_probable_without_it(tmp_path: Path) -> None:
    layout, weights = LAYOUTS["DeepSpec, gated"], target()
    tensors = write(tmp_path, layout)
    reference = BlockReference(layout, tensors, weights.embeddings, weights.output())
    head, states = read_block_head(tmp_path, weights, torch.float32), torch.randn(5, 3 * WIDTH)
    runner = BlockRunner(head, 4)
    growth = BlockGrowth(runner, [PairCache(head)], [states], [[1, 2, 3, 4, 9]], 4, lambda _: None, first_returned(4))
    growth.feed()
    found = growth.best(1000)
    for node in range(4):
        token = int(found.tokens[0, node])
        expected = reference.log_probs(states, 9, (token,), num_kept=64).topk(4)
        below = found.parents[0] == node
        assert found.tokens[0][below].tolist() == expected.indices.tolist()
        above = found.log_probs[0, node]
        np.testing.assert_allclose(found.log_probs[0][below] - above, expected.values, atol=TOLERANCE)


def test_biases_are_read(tmp_path: Path) -> None:
    layout = Layout({**LAYOUTS["z-lab"].settings, "attention_bias": True})
    tensors, weights = write(tmp_path, layout), target()
    head = read_block_head(tmp_path, weights, torch.float32)
    states = torch.randn(6, 3 * WIDTH, generator=torch.Generator().manual_seed(1))
    growth = BlockGrowth(
        BlockRunner(head, 4), [PairCache(head)], [states], [[1] * 5 + [9]], 1, lambda _: None, first_returned(4)
    )
    reference = BlockReference(layout, tensors, weights.embeddings, weights.output())
    expected = reference.log_probs(states, 9).topk(4)
    assert growth.best(4).tokens[0].tolist() == expected.indices.tolist()
    np.testing.assert_allclose(growth.best(4).log_probs[0], expected.values.detach(), atol=TOLERANCE)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DFlash2": ({"architectures": ["DFlash2DraftModel"]}, "a DFlash2 head, which specdec doesn't read"),
    "Gemma": ({"architectures": ["Gemma4DSparkModel"]}, "a Gemma 4 DSpark head, which specdec doesn't read"),
    "sinks": ({"dflash_config": {"mask_token_id": 7, "attention_sink_bias": True}}, "attention_sink_bias"),
    "scaled values": ({"attention_value_scale": 0.7}, "attention_value_scale"),
    "an activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "a part of the rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "no mask": ({"dflash_config": {"target_layer_ids": [0, 1, 3]}}, "mask_token_id"),
    "no block": ({"block_size": None}, "block_size"),
    "other layers": ({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 1]}}, "fc reads 96"),
    "layers beyond": ({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 1, 9]}}, "the target has 4"),
    "a type of layer": ({"layer_types": ["chunked_attention"] * 2}, "layer_types"),
    "a window of no size": ({"layer_types": ["sliding_attention"] * 2}, "the size of a window"),
    "a Markov head without tensors": ({"markov_rank": 6}, "markov_head.markov_w1.weight"),
    "a mask beyond the vocabulary": (
        {"dflash_config": {"mask_token_id": VOCAB, "target_layer_ids": [0, 1, 3]}},
        "mask_token_id 96 is beyond",
    ),
    "slots shifted": ({"sample_from_anchor": True}, "sample_from_anchor = true"),
    "layers twice": ({"aux_hidden_state_layer_ids": [0, 1, 3]}, "aux_hidden_state_layer_ids"),
    "biases without tensors": ({"attention_bias": True}, "attention_bias"),
    "a window for some layers": (
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
        "sliding_window = 5",
    ),
    "a window of null": ({"layer_types": ["sliding_attention"] * 2, "sliding_window": None}, "the size of a window"),
    "a prefix": ({"pure_draft_prefix_len": 2}, "pure_draft_prefix_len"),
    "shifted labels": ({"dflash_config": {"mask_token_id": 7, "shift_label": True}}, "shift_label"),
    "a vocabulary": ({"vocab_size": 90}, "vocabulary 90"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_isnt_computed_is_refused_by_name(tmp_path: Path, name: str) -> None:
    changes, said = REFUSED[name]
    write(tmp_path, LAYOUTS["z-lab"], **changes)
    with pytest.raises(ModelError, match=said):
        read_block_head(tmp_path, target(), torch.float32)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("final_logit_softcapping", 3.0), ("is_causal", False), ("attention_sink_bias", True),
        ("output_multiplier", 0.5), ("input_embedding_scale", 2.0),
    ],
)  # fmt: skip
def test_a_drafters_keys_are_refused_where_they_are_not_read(tmp_path: Path, key: str, value: object) -> None:
    layout = LAYOUTS["speculators, dflash"]
    write(tmp_path, layout, transformer_layer_config={**layout.settings["transformer_layer_config"], key: value})
    with pytest.raises(ModelError, match=rf"transformer_layer_config\.{key}"):
        read_block_head(tmp_path, target(), torch.float32)


def _drafted(folder: Path, num_tokens: int | None) -> tuple[list[int], list[float]]:
    head = read_block_head(folder, target(), torch.float32)
    states = torch.randn(5, 3 * WIDTH, generator=torch.Generator().manual_seed(3))
    runner = BlockRunner(head, num_tokens)
    growth = BlockGrowth(
        runner, [PairCache(head)], [states], [[1, 2, 3, 4, 9]], 4, lambda _: None, first_returned(runner.num_tokens)
    )
    growth.feed()
    found = growth.best(1000)
    order = np.lexsort((found.parents[0], found.tokens[0]))
    return found.tokens[0][order].tolist(), found.log_probs[0][order].tolist()


def test_draft_ids_have_any_order(tmp_path: Path) -> None:
    tensors = write(tmp_path, LAYOUTS["speculators, dspark"])
    in_order = _drafted(tmp_path, 5)
    places = torch.randperm(len(tensors["d2t"]), generator=torch.Generator().manual_seed(0))
    ids = (tensors["d2t"] + torch.arange(len(places)))[places]
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        tensors[name] = tensors[name][places].contiguous()
    save_file({**tensors, "d2t": ids - torch.arange(len(ids))}, tmp_path / "model.safetensors")
    shuffled = _drafted(tmp_path, 5)
    assert len(shuffled[0]) == 5 + 4 * 5
    assert sorted(shuffled[0]) == sorted(in_order[0])
    np.testing.assert_allclose(sorted(shuffled[1]), sorted(in_order[1]), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"d2t": torch.full((len(KEPT),), -1).cumsum(0) + 1}, "two draft tokens to one"),
        ({"t2d": torch.arange(VOCAB) < len(KEPT)}, "other tokens in t2d than in d2t"),
    ],
)
def test_maps_that_contradict_are_refused(tmp_path: Path, change: dict[str, torch.Tensor], said: str) -> None:
    tensors = write(tmp_path, LAYOUTS["speculators, dspark"])
    save_file({**tensors, **change}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        read_block_head(tmp_path, target(), torch.float32)


def test_more_candidates_than_the_markov_head_ranks_are_drafted(tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["DeepSpec, vanilla"])
    assert len(_drafted(tmp_path, 80)[0]) == 80 + 4 * 80


def test_embeddings_of_the_target_have_its_modules_scale(tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["z-lab"])
    scaled = replace(target(), embeddings_scale=lambda: 8.0)
    assert read_block_head(tmp_path, scaled, torch.float32).config.embedding_scale == 8.0
    write(tmp_path, LAYOUTS["z-lab, scaled"])
    assert read_block_head(tmp_path, scaled, torch.float32).config.embedding_scale == 2.0
    tensors = write(tmp_path, LAYOUTS["z-lab"])
    save_file({**tensors, "embed_tokens.weight": torch.zeros(VOCAB, WIDTH)}, tmp_path / "model.safetensors")
    assert read_block_head(tmp_path, scaled, torch.float32).config.embedding_scale == 1.0


def test_a_dspark_folder_says_which_token_a_slot_predicts(tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["speculators, dspark"], sample_from_anchor=None)
    with pytest.raises(ModelError, match="sample_from_anchor"):
        read_block_head(tmp_path, target(), torch.float32)


def test_each_strategy_names_the_other_and_eagle3_names_both(tmp_path: Path) -> None:
    for name, proposer, other in (
        ("DeepSpec, rnn", DFlashProposer, "dspark:head="),
        ("z-lab", DSparkProposer, "dflash:head="),
    ):
        write(tmp_path, LAYOUTS[name])
        with pytest.raises(ModelError, match=other):
            proposer._format.read(tmp_path, target(), torch.float32)
        with pytest.raises(ModelError, match=r"a block drafter, which (dflash|dspark):head=FOLDER reads"):
            read_head(tmp_path, target(), torch.float32)


def test_older_names_of_tensors_are_read(tmp_path: Path) -> None:
    tensors = write(tmp_path, LAYOUTS["DeepSpec, vanilla"])
    renamed = {
        f"logit_head.{name}" if name.startswith("markov") else f"model.{name}": each for name, each in tensors.items()
    }
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert read_block_head(tmp_path, target(), torch.float32).markov_head is not None
    assert json.loads((tmp_path / "config.json").read_text())["markov_rank"]
