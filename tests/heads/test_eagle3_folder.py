"""Folders of heads: published forms are read, ours are written as engines expect, others are refused with a remedy."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec import ModelError
from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_folder import read_head, write_head
from specdec.heads.files import TargetWeights
from tests.support.malicious import Malicious

VOCAB, HIDDEN, LAYERS = 40, 16, 9
CONFIG = Eagle3Config(
    hidden_size=HIDDEN,
    target_hidden_size=HIDDEN,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    vocab_size=VOCAB,
    draft_vocab_size=24,
    rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    max_position_embeddings=77,
)
KEPT = torch.tensor([*range(3, 15), *range(20, 32)])


def target(hidden: int = HIDDEN, vocab: int = VOCAB) -> TargetWeights:
    draw = torch.Generator().manual_seed(0)
    embeddings, output = (torch.randn(vocab, hidden, generator=draw).bfloat16() for _ in range(2))
    return TargetWeights(embeddings, lambda: output, LAYERS)


def head_of(config: Eagle3Config = CONFIG) -> Eagle3Head:
    head = Eagle3Head(config, target().embeddings, dtype=torch.bfloat16)
    if config.draft_vocab_size < VOCAB:
        head.set_vocabulary(KEPT)
    return head


def written(folder: Path, config: Eagle3Config = CONFIG) -> Eagle3Head:
    head = head_of(config)
    write_head(head, folder, LAYERS)
    return head


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return settings


def with_settings(folder: Path, **changed: Any) -> None:
    (folder / "config.json").write_text(json.dumps(settings_of(folder) | changed))


def equal(one: Eagle3Head, other: Eagle3Head) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"norm_before_residual": True},
        {"fc_norm": True},
        {"norm_output": True},
        {"norm_before_fc": True},
        {"qkv_bias": True, "o_bias": True},
        {"qk_norm": True},
        {"sliding_window": 12},
    ],
    ids=lambda each: next(iter(each), "plain"),
)
def test_what_is_written_is_read(tmp_path: Path, variant: dict[str, Any]) -> None:
    config = CONFIG.model_copy(update={**variant, "layer_ids": (1, 4, 8)})
    head = written(tmp_path, config)
    found = read_head(tmp_path, target(), torch.bfloat16)
    assert equal(head, found)
    assert found.config == config
    assert found.target_ids.tolist() == KEPT.tolist()


def test_the_folder_is_in_the_layout_that_engines_read(tmp_path: Path) -> None:
    written(tmp_path)
    tensors, settings = load_file(tmp_path / "model.safetensors"), settings_of(tmp_path)
    layer = "input_layernorm hidden_norm post_attention_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj"
    layer += " self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"
    named = {f"midlayer.{each}.weight" for each in layer.split()}
    assert tensors.keys() == named | {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (24, 2 * HIDDEN)
    assert tensors["fc.weight"].shape == (HIDDEN, 3 * HIDDEN)
    assert tensors["d2t"].tolist() == (KEPT - torch.arange(24)).tolist()  # offsets
    assert tensors["t2d"].nonzero()[:, 0].tolist() == KEPT.tolist()
    assert settings["architectures"] == ["LlamaForCausalLMEagle3"]
    assert settings["tie_word_embeddings"] is False
    assert (settings["rope_theta"], settings["draft_vocab_size"], settings["vocab_size"]) == (5000.0, 24, VOCAB)
    assert not {name for name in settings if "aux_hidden_state" in name or name.startswith(("norm_", "fc_norm"))}


def test_layers_are_numbered_for_each_engine(tmp_path: Path) -> None:
    written(tmp_path, CONFIG.model_copy(update={"layer_ids": (1, 4, 8)}))
    assert settings_of(tmp_path)["eagle_aux_hidden_state_layer_ids"] == [1, 4, 8]  # vLLM, llama.cpp
    assert settings_of(tmp_path)["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [0, 3, 7]}  # SGLang


def test_layers_default_to_the_papers(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_head(tmp_path, target(), torch.float32).config.target_layers(LAYERS) == (2, 4, 6)


def test_a_full_vocabulary_shares_the_targets_output(tmp_path: Path) -> None:
    head = head_of(CONFIG.model_copy(update={"draft_vocab_size": VOCAB}))
    write_head(head, tmp_path, LAYERS, with_output=False)
    found = read_head(tmp_path, target(), torch.bfloat16)
    assert torch.equal(found.lm_head.weight, target().output())
    assert found.target_ids.tolist() == list(range(VOCAB))


def test_a_speculators_folder_is_read(tmp_path: Path) -> None:
    head, tensors = written(tmp_path), load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    layer = settings_of(tmp_path)
    layer.pop("rope_theta")
    settings = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": 24,
        "target_hidden_size": HIDDEN,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 7],
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    found = read_head(tmp_path, target(), torch.bfloat16)
    assert equal(head, found)
    assert found.config.norm_before_residual
    assert found.config.layer_ids == (2, 4, 7)
    assert found.config.rope_parameters["rope_theta"] == 5000.0


def test_an_official_bin_file_is_read_with_embeddings_of_its_own(tmp_path: Path) -> None:
    head, file = written(tmp_path), tmp_path / "model.safetensors"
    embeddings = torch.ones(VOCAB, HIDDEN)
    torch.save({**load_file(file), "embed_tokens.weight": embeddings}, tmp_path / "pytorch_model.bin")
    file.unlink()
    settings = settings_of(tmp_path)
    del settings["rope_theta"], settings["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(settings | {"architectures": ["LlamaForCausalLM"]}))
    found = read_head(tmp_path, target(), torch.bfloat16)
    assert equal(head, found)
    assert torch.equal(found.embeddings.float(), embeddings)
    assert found.config.rope_parameters["rope_theta"] == 10000.0


@pytest.mark.parametrize("width", [HIDDEN, 12])
def test_embeddings_of_its_own_are_written(tmp_path: Path, width: int) -> None:
    config = CONFIG.model_copy(update={"hidden_size": width})
    own = torch.randn(VOCAB, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    head = Eagle3Head(config, own, dtype=torch.bfloat16, owns_embeddings=width == HIDDEN)
    head.set_vocabulary(KEPT)
    for folder in (tmp_path / "first", tmp_path / "again"):
        write_head(head, folder, LAYERS)
        head = read_head(folder, target(), torch.bfloat16)
        assert torch.equal(head.embeddings, own)
        assert head.config == config


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    with pytest.raises(ModelError, match=r"something other than tensors|damaged"):
        read_head(tmp_path, target(), torch.float32)
    assert not (tmp_path / "executed").exists()


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _truncate_bin(folder: Path) -> None:
    _binary(dict)(folder)
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-100])


def _drop(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, folder / "model.safetensors")

    return change


def _embeddings_of_few_tokens(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"embed_tokens.weight": torch.ones(7, HIDDEN)}, folder / "model.safetensors")


def _binary(content: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        torch.save(content(load_file(folder / "model.safetensors")), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()

    return change


def _absolute_ids(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"d2t": KEPT}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_truncate, "is damaged"),
        (_truncate_bin, "is damaged|something other than tensors"),
        (lambda folder: (folder / "config.json").unlink(), "no readable config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor pytorch_model.bin"),
        (_drop("midlayer.hidden_norm.weight"), "lacks midlayer.hidden_norm.weight; unknown tensors: none; give"),
        (_drop("fc.weight"), "incomplete or unknown configuration"),
        (_drop("d2t"), "lacks"),
        (_absolute_ids, "d2t are offsets"),
        (lambda folder: with_settings(folder, num_hidden_layers=2), "has 2 layers"),
        (lambda folder: with_settings(folder, speculators_model_type="dflash"), "which dflash:head=FOLDER"),
        (
            lambda folder: with_settings(folder, draft_vocab_size=25),
            r"lm_head.weight \(24, 16\) \(needed: \(25, 16\)\)",
        ),
        (lambda folder: with_settings(folder, eagle_aux_hidden_state_layer_ids=[2, 4, 30]), "has 9 layers"),
        (lambda folder: (folder / "config.json").write_text("[]"), "unknown configuration"),
        (lambda folder: with_settings(folder, transformer_layer_config=None), "unknown configuration"),
        (lambda folder: with_settings(folder, num_attention_heads=0), "unknown configuration"),
        (lambda folder: with_settings(folder, rope_parameters=None, rope_theta=None), "unknown configuration"),
        (lambda folder: with_settings(folder, rope_parameters={"rope_type": "linear"}), "unknown configuration"),
        (_embeddings_of_few_tokens, r"embeddings of shape \(7, 16\) \(needed: \(40, 16\)\)"),
        (_binary(lambda tensors: [*tensors.values()]), "something other than tensors"),
        (_binary(lambda tensors: tensors | {"fc.weight": 3.0}), "something other than tensors"),
        (lambda folder: with_settings(folder, vocab_size=50), r"vocabulary 50 \(the target has 40\)"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    written(tmp_path)
    change(tmp_path)
    with pytest.raises(ModelError, match=message):
        read_head(tmp_path, target(), torch.float32)


def test_a_folder_that_doesnt_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no folder .*nowhere: give the folder of"):
        read_head(tmp_path / "nowhere", target(), torch.float32)


def test_another_targets_head_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ModelError, match=r"hidden size 16 \(the target has 24\).*trained for this model"):
        read_head(tmp_path, target(hidden=24), torch.float32)
