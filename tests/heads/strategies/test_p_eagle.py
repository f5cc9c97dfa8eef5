"""P-EAGLE as a strategy: the reference's drafts, plain decoding's text, and folders of other heads are refused."""

import json
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec import DraftTree, Generator, ModelError
from specdec.heads.eagle3_folder import read_p_eagle_head
from specdec.heads.files import TargetWeights
from specdec.heads.first_pass import first_pass
from specdec.heads.p_eagle import PEagleRunner
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.heads.strategies.p_eagle import PEagleProposer
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.sources.suffix import SuffixProposer
from tests.support.drafts import drafts_of, paths, plain_decodings
from tests.support.families import SMALL, VOCAB, make
from tests.support.p_eagle_reference import p_eagle_log_probs
from tests.support.plain import decode_model

NUM_TOKENS, SEED, WIDTH, LAYERS = 12, 5, 32, (1, 2, 4)
KEPT = torch.arange(1, VOCAB, 2)  # the draft vocabulary
PROMPTS = [[5, 17, 40, 8, 33], [7 + index % 60 for index in range(280)], [9]]  # the second has more than one chunk


@pytest.fixture(scope="module")
def model() -> Any:
    return make("LlamaConfig", {**SMALL, "num_hidden_layers": 4, "max_position_embeddings": 512})


def write(folder: Path, num_layers: int = 3) -> Path:
    """A random head in speculators' layout."""
    draw = torch.Generator().manual_seed(2)
    shapes = {
        "self_attn.q_proj": (16, WIDTH), "self_attn.k_proj": (8, WIDTH), "self_attn.v_proj": (8, WIDTH),
        "self_attn.o_proj": (WIDTH, 16), "mlp.gate_proj": (24, WIDTH), "mlp.up_proj": (24, WIDTH),
        "mlp.down_proj": (WIDTH, 24), "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
    }  # fmt: skip
    named = {f"layers.{number}.{name}": shape for number in range(num_layers) for name, shape in shapes.items()}
    named |= {
        f"layers.0.self_attn.{name}_proj": (named[f"layers.0.self_attn.{name}_proj"][0], 2 * WIDTH) for name in "qkv"
    }
    named |= {
        "layers.0.hidden_norm": (WIDTH,),
        "norm": (WIDTH,),
        "fc": (WIDTH, 3 * WIDTH),
        "lm_head": (len(KEPT), WIDTH),
    }
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=draw) / shape[-1] ** 0.5 if len(shape) > 1
        else 1 + torch.randn(shape, generator=draw) * 0.2
        for name, shape in named.items()
    }  # fmt: skip
    tensors["mask_hidden"] = torch.randn(1, 1, 3 * WIDTH, generator=draw)
    tensors["d2t"] = KEPT - torch.arange(len(KEPT))
    tensors["lm_head.weight"] *= 3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    layer = {
        "num_hidden_layers": num_layers, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "vocab_size": VOCAB, "rope_theta": 500.0, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    settings = {
        "speculators_model_type": "peagle", "mask_token_id": 7, "draft_vocab_size": len(KEPT),
        "eagle_aux_hidden_state_layer_ids": list(LAYERS), "transformer_layer_config": layer,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("p-eagle"))


def expected_paths(log_probs: torch.Tensor, top_k: int, num_nodes: int) -> tuple[set[tuple[int, ...]], bool]:
    """The most probable paths by the product of probabilities, and whether no two are so close that they could swap."""
    values, ids = log_probs.topk(top_k)
    tokens, scores = KEPT[ids].tolist(), dict[tuple[int, ...], float]()
    for depth in range(1, len(tokens) + 1):
        for ranks in product(range(top_k), repeat=depth):
            path = tuple(tokens[level][rank] for level, rank in enumerate(ranks))
            scores[path] = sum(float(values[level, rank]) for level, rank in enumerate(ranks))
    ranked = sorted(scores.items(), key=lambda each: -each[1])
    is_clear = all(more - less > 1e-4 for (_, more), (_, less) in pairwise(ranked[: num_nodes + 1]))
    return {path for path, _ in ranked[:num_nodes]}, is_clear


@torch.no_grad()
def test_drafts_are_the_references_fed_with_transformers_hidden_states(model: Any, folder: Path) -> None:
    """Layers, pairs, mask pairs, positions and paths, after PROMPTS of several chunks and rejected drafts."""
    tensors, settings = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    embeddings = model.get_input_embeddings().weight
    proposer = PEagleProposer(head=folder, top_k=2, depth=3, num_nodes=6, min_probability=0.0, dtype="float32")
    num_compared = 0
    with Generator(model, proposer=proposer) as generator:
        for index, text, tree in drafts_of(generator, PROMPTS, NUM_TOKENS):
            num_new = len(text) - len(PROMPTS[index])
            if num_new == 0 or NUM_TOKENS - num_new <= 3 or num_new > 5:
                continue
            states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
            joined = torch.cat([states[layer][0, :-1] for layer in LAYERS], -1)
            log_probs = p_eagle_log_probs(tensors, settings, embeddings, joined, text[1:], 3)
            expected, is_clear = expected_paths(log_probs, 2, 6)
            if is_clear:
                assert paths(tree) == expected
                num_compared += 1
    assert num_compared >= 6


@pytest.mark.parametrize("is_merged", [False, True])
def test_text_is_plain_decodings_in_a_ragged_batch(model: Any, folder: Path, is_merged: bool) -> None:
    head = PEagleProposer(head=folder, num_nodes=8, depth=3)
    proposer = MergedProposer([SuffixProposer(), head], clock=False, loss=0.9) if is_merged else head
    with Generator(model, proposer=proposer, numerics="exact") as generator:
        for results in plain_decodings(
            generator,
            PROMPTS,
            SEED,
            NUM_TOKENS,
            lambda prompt, seed: decode_model(model, prompt, NUM_TOKENS, seed, eos=()),
        ):
            assert not [note for result in results for note in result.notes if "p_eagle" in note]
        assert max(length for result in results for length in result.stats.accepted_lengths) > 1


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_rules_that_read_q_take_chosen_drafts(model: Any, folder: Path, rule: str) -> None:
    with Generator(model, proposer=PEagleProposer(head=folder, num_nodes=8, depth=3), verifier=rule) as generator:
        for prompt, greedy in zip(PROMPTS, generator.generate(PROMPTS, max_new_tokens=8), strict=True):
            assert list(greedy.token_ids) == decode_model(model, prompt, 8, None, eos=())
        drafts = drafts_of(generator, PROMPTS, 8, temperature=1.0, seed=SEED)
        sampled = [tree for _, _, tree in drafts if len(tree) > 1]
    assert sampled
    assert not [tree for tree in sampled if tree.has_sampled_draws]


def test_only_paths_that_a_request_may_take_are_ranked(model: Any, folder: Path) -> None:
    proposer = PEagleProposer(head=folder, top_k=4, depth=3, num_nodes=4, min_probability=0.0)
    with Generator(model, proposer=proposer) as generator:
        steps = drafts_of(generator, [[9 + index, 5, 17] for index in range(6)], 3)
        last = [tree for _, text, tree in steps if len(text) == 4]  # two tokens are left, of which one is the bonus
    assert len(last) == 6
    assert all(tree.depths == [0, 1, 1, 1, 1] for tree in last)


@torch.no_grad()
def test_a_pass_of_a_ragged_batch_is_the_references(model: Any, folder: Path) -> None:
    """Of several pairs each, after cached ones; the first request's mask pairs lie beyond the 128th slot."""
    embeddings, depth, draw = model.get_input_embeddings().weight, 4, torch.Generator().manual_seed(4)
    head = read_p_eagle_head(folder, TargetWeights(embeddings, lambda: embeddings, 4), torch.float32)
    tensors, settings = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    texts = [torch.randint(VOCAB, (count,), generator=draw) for count in (126, 3, 9)]
    states = [torch.randn(len(text), 3 * WIDTH, generator=draw) for text in texts]
    num_cached, caches = (125, 0, 7), [PairCache(head) for _ in texts]
    for cache, text, own, stop in zip(caches, texts, states, num_cached, strict=True):
        append(head, cache, own[: stop // 2], text[: stop // 2])
        append(head, cache, own[stop // 2 : stop], text[stop // 2 : stop])
    new = [(own[stop:], text[stop:].tolist()) for own, text, stop in zip(states, texts, num_cached, strict=True)]
    found, _, lengths = first_pass(PEagleRunner(head, 5, depth), caches, *zip(*new, strict=True), None, depth - 1)
    assert lengths.tolist() == [len(cache) for cache in caches] == [len(text) for text in texts]
    for row, (text, own) in enumerate(zip(texts, states, strict=True)):
        log_probs = p_eagle_log_probs(tensors, settings, embeddings, own, text.tolist(), depth)
        values, ids = log_probs.topk(5)
        assert found.tokens[row].tolist() == KEPT[ids].tolist()
        torch.testing.assert_close(torch.from_numpy(found.log_probs[row]), values, rtol=1e-4, atol=1e-4)


def test_a_context_keeps_all_layers_states(model: Any, folder: Path) -> None:
    proposer = PEagleProposer(head=folder, min_probability=0.0)
    with Generator(model, proposer=proposer, numerics="exact") as generator:
        with generator.context() as context:
            first = generator.generate(PROMPTS[0], max_new_tokens=6, context=context)
            text = [*PROMPTS[0], *first.token_ids, 8, 9]
            reused = second_draft(generator, text, context=context)
        fresh = second_draft(generator, text)
    assert len(fresh) > 1
    assert (reused.tokens, reused.parents) == (fresh.tokens, fresh.parents)


def second_draft(generator: Generator, text: list[int], **options: Any) -> DraftTree:
    """The draft of the second step; the first has read no hidden states of the text's end."""
    trees: list[DraftTree] = []
    list(generator.stream(text, max_new_tokens=8, on_step=lambda each: trees.append(each.outcomes[0].tree), **options))
    return trees[1]


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def spoilt(folder: Path, change: Change) -> Path:
    """A head with its configuration or tensors changed."""
    write(folder)
    settings, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(settings, tensors)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors")
    return folder


WRONG: dict[str, tuple[Change, str]] = {
    "no mask token": (lambda settings, _: settings.pop("mask_token_id"), "mask_token_id"),
    "mask token": (lambda settings, _: settings.update(mask_token_id=VOCAB), "beyond the vocabulary of 96"),
    "no mask state": (lambda _, tensors: tensors.pop("mask_hidden"), "lacks mask_hidden;"),
    "layers": (lambda settings, _: settings["transformer_layer_config"].update(num_hidden_layers=2), "layers.2.mlp"),
    "kind": (lambda settings, _: settings.update(speculators_model_type="dflash"), "which dflash:head=FOLDER"),
    "EAGLE-3": (lambda settings, _: settings.update(speculators_model_type="eagle3"), "a head that eagle3:head=FOLDER"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_folder_is_refused_with_a_remedy(model: Any, tmp_path: Path, mistake: str) -> None:
    change, found = WRONG[mistake]
    with pytest.raises(ModelError, match=found) as refused:
        Generator(model, proposer=PEagleProposer(head=spoilt(tmp_path, change)))
    assert "give the folder of a P-EAGLE head that was trained for this model" in str(refused.value)


def test_eagle3_names_the_strategy_that_reads_the_head(model: Any, folder: Path) -> None:
    with pytest.raises(ModelError, match="holds a head that p_eagle:head=FOLDER reads"):
        Generator(model, proposer=Eagle3Proposer(head=folder))


def test_a_folder_without_files_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    for refusing in (Eagle3Proposer, EagleProposer, PEagleProposer):
        with pytest.raises(ModelError, match="has no readable"):
            refusing(head=tmp_path).check_files()


def test_a_head_of_nan_is_left_out_with_a_note(model: Any, tmp_path: Path) -> None:
    head = PEagleProposer(head=spoilt(tmp_path, lambda _, tensors: tensors["norm.weight"].fill_(float("nan"))))
    with Generator(model, proposer=head) as generator:
        result = generator.generate(PROMPTS[0], max_new_tokens=NUM_TOKENS)
    assert list(result.token_ids) == decode_model(model, PROMPTS[0], NUM_TOKENS, None, eos=())
    assert [note for note in result.notes if "drafting goes on without" in note and "finite" in note]
