"""Multi-token prediction as a strategy: the reference's drafts, plain decoding's text, and unsuitable checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec import Generator, ModelError, ToyModel
from specdec.strategies.merging.merged import MergedProposer
from specdec.strategies.mtp import MtpProposer
from specdec.strategies.sources.suffix import SuffixProposer
from tests.support.drafts import drafts_of, paths
from tests.support.mtp_checkpoints import FAMILIES, load, write_checkpoint
from tests.support.mtp_reference import MtpReference
from tests.support.plain import decode_model

NUM_TOKENS, SEED = 14, 11
PROMPTS = [[5, 17, 40, 8, 33], [9], [7 + index % 60 for index in range(31)]]
DRAFTED = "mimo", "qwen3_5", "deepseek_v3"

Checkpoint = tuple[Path, Any, MtpReference]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def checkpoint(family: str) -> Checkpoint:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            longer = write_checkpoint(family, folder)
            (file,) = folder.glob("*.safetensors")
            made[family] = folder, load(folder), MtpReference(family, load_file(file), longer)
        return made[family]

    return checkpoint


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_drafts_are_the_references_fed_with_transformers_hidden_states(
    checkpoints: Callable[[str], Checkpoint], family: str
) -> None:
    """Layouts, pairs, positions and trees, after accepted and rejected branches, in a ragged batch."""
    _, model, reference = checkpoints(family)
    takes_trees = family not in ("qwen3_5", "qwen3_next")
    width, total = (3, 7) if takes_trees else (1, 3)
    proposer = MtpProposer(top_k=3, depth=3, num_nodes=total, min_probability=0.0)
    num_compared = 0
    with Generator(model, proposer=proposer) as generator:
        for index, text, tree in drafts_of(generator, PROMPTS if family in DRAFTED else PROMPTS[:1], NUM_TOKENS):
            num_new = len(text) - len(PROMPTS[index])
            if num_new == 0 or NUM_TOKENS - num_new <= 3:
                continue
            states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0, :-1]
            expected = reference.grow(states, text[1:], width, 3, total + 1)
            *scores, left_out = expected.values()
            if total == 3 or scores[-1] - left_out > 1e-4:
                assert paths(tree) == set(list(expected)[:total])
                num_compared += 1
    assert num_compared >= 2


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("family", DRAFTED)
def test_text_is_plain_decodings_in_a_ragged_batch(
    checkpoints: Callable[[str], Checkpoint], family: str, is_merged: bool
) -> None:
    _, model, _ = checkpoints(family)
    mtp = MtpProposer()
    proposer = MergedProposer([SuffixProposer(), mtp], clock=False, loss=0.9) if is_merged else mtp
    with Generator(model, proposer=proposer) as generator:
        for seed in (None, SEED):
            sampling = {"temperature": 0.0 if seed is None else 1.0, "seed": SEED}
            results = generator.generate(PROMPTS, max_new_tokens=NUM_TOKENS, **sampling)
            for prompt, result in zip(PROMPTS, results, strict=True):
                assert list(result.token_ids) == decode_model(model, prompt, NUM_TOKENS, seed, eos=())
                assert not [note for note in result.notes if "mtp" in note]
            assert max(length for result in results for length in result.stats.accepted_lengths) > 1


def test_a_context_keeps_the_modules_state(checkpoints: Callable[[str], Checkpoint]) -> None:
    _, model, _ = checkpoints("deepseek_v3")
    with Generator(model, proposer=MtpProposer()) as generator:
        with generator.context() as context:
            first = generator.generate(PROMPTS[2], max_new_tokens=8, context=context)
            text = [*PROMPTS[2], *first.token_ids, 8, 9]
            second = generator.generate(text, max_new_tokens=NUM_TOKENS, context=context)
        fresh = generator.generate(text, max_new_tokens=NUM_TOKENS)
    assert second.stats.num_reused > len(PROMPTS[2])
    assert (second.token_ids, second.stats.accepted_lengths) == (fresh.token_ids, fresh.stats.accepted_lengths)


Tensors = dict[str, torch.Tensor]


def spoilt(folder: Path, to: Path, change: Callable[[Tensors], object]) -> Any:
    """The target from a copy of its checkpoint with changed tensors."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    (file,) = to.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return load(to)


def without(tensors: Tensors, text: str) -> None:
    for name in [name for name in tensors if text in name]:
        del tensors[name]


def of_other_shape(tensors: Tensors) -> None:
    tensors["model.mtp_layers.0.input_proj.weight"] = torch.zeros(32, 32)


def quantised(tensors: Tensors) -> None:
    name = "model.mtp_layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)


WRONG: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no module": (lambda tensors: without(tensors, "mtp_layers"), "has no multi-token-prediction modules"),
    "no norm": (lambda tensors: without(tensors, "hidden_layernorm"), "hidden_layernorm"),
    "no matrix": (lambda tensors: without(tensors, "mtp_layers.0.mlp.up_proj"), "mlp.up_proj"),
    "shape": (of_other_shape, r"input_proj.weight has shape \(32, 32\), needed: \(32, 64\)"),
    "quantised": (quantised, "is quantised"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_an_unsuitable_checkpoint_is_refused_with_a_remedy(
    checkpoints: Callable[[str], Checkpoint], tmp_path: Path, mistake: str
) -> None:
    change, found = WRONG[mistake]
    model = spoilt(checkpoints("mimo")[0], tmp_path, change)
    with pytest.raises(ModelError, match=found) as refused:
        Generator(model, proposer="suffix+mtp")
    assert "give " in str(refused.value)


def test_targets_without_a_known_checkpoint_are_refused(
    checkpoints: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="layers are unknown"):
        Generator(ToyModel.random(), proposer="mtp")
    moved = tmp_path / "moved"
    shutil.copytree(checkpoints("mimo")[0], moved)
    model = load(moved)
    shutil.rmtree(moved)
    with pytest.raises(ModelError, match=r"there is no folder .*moved.: load the model by its folder or hub name"):
        Generator(model, proposer="mtp")
    shutil.copytree(checkpoints("mimo")[0], moved)
    (file,) = moved.glob("*.safetensors")
    file.write_bytes(json.dumps({}).encode())
    with pytest.raises(ModelError, match="damaged"):
        Generator(model, proposer="mtp")
