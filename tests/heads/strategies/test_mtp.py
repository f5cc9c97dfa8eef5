"""Multi-token prediction as a strategy: the reference's drafts, plain decoding's text, and unsuitable checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specdec import Generator, ModelError, ToyModel
from specdec.heads.base import KeyValues
from specdec.heads.mtp import MtpHead
from specdec.heads.mtp_checkpoint import read_mtp
from specdec.heads.strategies.mtp import MtpProposer
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.sources.suffix import SuffixProposer
from tests.support.drafts import drafts_of, paths, plain_decodings
from tests.support.mtp_checkpoints import FAMILIES, give_own_code, load, write_checkpoint
from tests.support.mtp_reference import MtpReference
from tests.support.plain import decode_model

NUM_TOKENS, SEED = 14, 11
PROMPTS = [[5, 17, 40, 8, 33], [9], [7 + index % 60 for index in range(31)]]
DRAFTED = "mimo", "qwen3_5", "deepseek_v3"  # the others differ in their layers' code alone

Checkpoint = tuple[Path, Any, MtpReference]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def checkpoint(family: str) -> Checkpoint:
        if family not in made:
            folder, name = tmp_path_factory.mktemp("checkpoint"), family.partition(",")[0]
            longer = write_checkpoint(name, folder)
            if name != family:
                give_own_code(folder)
            (file,) = folder.glob("*.safetensors")
            made[family] = folder, load(folder), MtpReference(name, load_file(file), longer)
        return made[family]

    return checkpoint


@pytest.mark.parametrize("family", [*DRAFTED, "mimo, as it is published"])
@torch.no_grad()
def test_drafts_are_the_references_fed_with_transformers_hidden_states(
    checkpoints: Callable[[str], Checkpoint], family: str
) -> None:
    """Layouts, pairs, positions and trees, after accepted and rejected branches, in a ragged batch."""
    _, model, reference = checkpoints(family)
    width, total = (1, 3) if family == "qwen3_5" else (3, 7)
    proposer = MtpProposer(top_k=3, depth=3, num_nodes=total, min_probability=0.0)
    num_compared = 0
    with Generator(model, proposer=proposer) as generator:
        for index, text, tree in drafts_of(generator, PROMPTS, NUM_TOKENS):
            num_new = len(text) - len(PROMPTS[index])
            if num_new == 0 or NUM_TOKENS - num_new <= 3 or num_new > 7:
                continue
            states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0, :-1]
            expected = reference.grow(states, text[1:], width, 3, total + 1)
            *scores, left_out = expected.values()
            if total == 3 or scores[-1] - left_out > 1e-4:
                assert paths(tree) == set(list(expected)[:total])
                num_compared += 1
    assert num_compared >= 6


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - set(DRAFTED)))
@torch.no_grad()
def test_a_modules_features_are_the_references(tmp_path: Path, family: str) -> None:
    longer = write_checkpoint(family, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    head, draw = read(tmp_path), torch.Generator().manual_seed(1)
    states, tokens = torch.randn(9, 32, generator=draw), torch.randint(90, (9,), generator=draw)
    slots = torch.arange(9)
    found = head(tokens[None], states[None], slots[None], (slots <= slots[:, None])[None, None], KeyValues)
    expected = MtpReference(family, load_file(file), longer).features(states, tokens)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_pairs_cached_in_parts_are_those_cached_at_once(checkpoints: Callable[[str], Checkpoint]) -> None:
    head, draw = read(checkpoints("mimo")[0]), torch.Generator().manual_seed(1)
    states, tokens = torch.randn(1, 9, 32, generator=draw), torch.randint(90, (1, 9), generator=draw)
    whole = head.key_values(states, tokens, head.no_key_values())
    first = head.key_values(states[:, :4], tokens[:, :4], head.no_key_values())
    second = head.key_values(states[:, 4:], tokens[:, 4:], first)
    for parts, every in zip(zip(first, second, strict=True), whole, strict=True):
        torch.testing.assert_close(torch.cat(parts, 2), every, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_rules_that_read_q_take_chosen_drafts(checkpoints: Callable[[str], Checkpoint], rule: str) -> None:
    _, model, _ = checkpoints("mimo")
    with Generator(model, proposer=MtpProposer(), verifier=rule) as generator:
        for prompt, greedy in zip(PROMPTS, generator.generate(PROMPTS, max_new_tokens=8), strict=True):
            assert list(greedy.token_ids) == decode_model(model, prompt, 8, None, eos=())
        drafts = drafts_of(generator, PROMPTS, 8, temperature=1.0, seed=SEED)
        sampled = [tree for _, _, tree in drafts if len(tree) > 1]
    assert sampled
    assert not [tree for tree in sampled if tree.has_sampled_draws]


@pytest.mark.parametrize(("family", "is_merged"), [(DRAFTED[0], True), *((family, False) for family in DRAFTED)])
def test_text_is_plain_decodings_in_a_ragged_batch(
    checkpoints: Callable[[str], Checkpoint], family: str, is_merged: bool
) -> None:
    _, model, _ = checkpoints(family)
    mtp = MtpProposer()
    proposer = MergedProposer([SuffixProposer(), mtp], clock=False, loss=0.9) if is_merged else mtp
    with Generator(model, proposer=proposer) as generator:
        for results in plain_decodings(
            generator,
            PROMPTS,
            SEED,
            NUM_TOKENS,
            lambda prompt, seed: decode_model(model, prompt, NUM_TOKENS, seed, eos=()),
        ):
            assert not [note for result in results for note in result.notes if "mtp" in note]
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


def read(folder: Path) -> MtpHead:
    """The module of a checkpoint whose target runs elsewhere."""
    config = transformers.AutoConfig.from_pretrained(folder)
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    return read_mtp(SimpleNamespace(config=config, folder=folder), rows, rows, torch.float32)


def spoilt(folder: Path, to: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a checkpoint with changed tensors."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    (file,) = to.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return to


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
    with pytest.raises(ModelError, match=found) as refused:
        read(spoilt(checkpoints("mimo")[0], tmp_path, change))
    assert "give " in str(refused.value)


def test_a_module_with_embeddings_of_its_own_is_refused_by_name(
    checkpoints: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    folder = spoilt(checkpoints("mimo")[0], tmp_path, len)
    config = json.loads((folder / "config.json").read_text())
    for value in (False, True):
        (folder / "config.json").write_text(json.dumps(config | {"mtp_use_dedicated_embeddings": value}))
        if not value:
            read(folder)
            continue
        with pytest.raises(ModelError, match=r"mtp_use_dedicated_embeddings = true, .*: give the folder or hub"):
            read(folder)


def test_targets_without_a_known_checkpoint_are_refused(
    checkpoints: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="layers are unknown"):
        Generator(ToyModel.random(), proposer="mtp")
    folder, model, _ = checkpoints("mimo")
    config = transformers.AutoConfig.from_pretrained(folder)
    rows = model.get_input_embeddings().weight
    config.name_or_path = str(tmp_path / "moved")
    with pytest.raises(ModelError, match=r"there is no folder .*moved.: load the model by its folder or hub name"):
        read_mtp(SimpleNamespace(config=config), rows, rows, torch.float32)
    config.name_or_path = ""
    made_here = type(model)(config).eval()
    with pytest.raises(ModelError, match="this model's is unknown: load the model by its folder"):
        Generator(made_here, proposer="suffix+mtp")


def test_a_damaged_file_is_refused(checkpoints: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    folder, model, _ = checkpoints("mimo")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    rows = model.get_input_embeddings().weight
    with pytest.raises(ModelError, match="damaged"):
        read_mtp(SimpleNamespace(config=model.config, folder=tmp_path), rows, rows, torch.float32)
