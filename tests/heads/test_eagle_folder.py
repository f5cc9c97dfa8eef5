"""Folders of EAGLE's first heads: the official layout is read, others are refused with a remedy."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specdec import ModelError
from specdec.heads.eagle import read_eagle_head
from specdec.heads.eagle3_folder import read_head, read_p_eagle_head
from specdec.heads.files import TargetWeights
from tests.support.malicious import Malicious
from tests.support.random_heads import random_eagle_head

Tensors = dict[str, torch.Tensor]
Settings = dict[str, Any]


def target(hidden: int = 12, vocab: int = 41) -> TargetWeights:
    draw = torch.Generator().manual_seed(0)
    embeddings, output = (torch.randn(vocab, hidden, generator=draw) for _ in range(2))
    return TargetWeights(embeddings, lambda: output, num_layers=4)


def published(seed: int) -> tuple[Settings, Tensors]:
    """A head's settings and tensors under the official names."""
    head = random_eagle_head(seed)
    tensors = {
        name.replace("midlayer.", "layers.0."): each.clone()
        for name, each in head.state_dict().items()
        if name != "lm_head.weight"
    }
    kept = "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps"
    settings = {name: getattr(head.config, name) for name in kept}
    return settings | {"rope_theta": 300.0, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}, tensors


def write(folder: Path, settings: Settings, tensors: Tensors, is_bin: bool = False) -> None:
    (folder / "config.json").write_text(json.dumps(settings))
    if is_bin:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("seed", range(4))
def test_the_official_layout_is_read_with_what_the_target_shares(tmp_path: Path, seed: int) -> None:
    expected = random_eagle_head(seed)
    write(tmp_path, *published(seed), is_bin=seed % 2 == 0)
    found = read_eagle_head(tmp_path, target(), torch.float32)
    assert found.config == expected.config.model_copy(update={"max_position_embeddings": 2048})
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, target().output() if name == "lm_head.weight" else expected.state_dict()[name])
    assert torch.equal(found.embeddings, target().embeddings)
    assert found.target_ids.tolist() == list(range(41))
    assert found.config.target_layers(4) == (4,)


def test_embeddings_and_output_of_its_own_are_used(tmp_path: Path) -> None:
    settings, tensors = published(0)
    own = {"embed_tokens.weight": torch.full((41, 12), 2.0), "lm_head.weight": torch.full((41, 12), 3.0)}
    write(tmp_path, settings, {f"model.{name}": each for name, each in (tensors | own).items()})
    found = read_eagle_head(tmp_path, target(), torch.float32)
    assert torch.equal(found.embeddings, own["embed_tokens.weight"])
    assert torch.equal(found.lm_head.weight, own["lm_head.weight"])


Change = Callable[[Settings, Tensors], object]
WRONG: dict[str, tuple[Change, str]] = {
    "vocabulary": (lambda settings, _: settings.update(vocab_size=50), r"vocabulary 50 \(the target has 41\)"),
    "layers": (lambda settings, _: settings.update(num_hidden_layers=2), "has 2 layers"),
    "tensors": (lambda _, tensors: tensors.pop("layers.0.self_attn.o_proj.weight"), "lacks midlayer.self_attn.o_proj"),
    "norm": (
        lambda _, tensors: tensors.update({"layers.0.input_layernorm.weight": torch.ones(12)}),
        "unknown tensors: midlayer.input_layernorm.weight;",
    ),
    "EAGLE-3": (
        lambda _, tensors: tensors.update({"midlayer.hidden_norm.weight": torch.ones(12)}),
        "holds a head that eagle3:head=FOLDER reads",
    ),
    "fc": (lambda _, tensors: tensors.update({"fc.weight": torch.ones(12, 36)}), r"fc.weight of shape \(12, 36\)"),
    "embeddings": (
        lambda _, tensors: tensors.update({"embed_tokens.weight": torch.ones(7, 12)}),
        r"embeddings of shape \(7, 12\) \(needed: \(41, 12\)\)",
    ),
    "heads": (lambda settings, _: settings.update(num_attention_heads=0), "unknown configuration"),
    "rotation": (lambda settings, _: settings.update(rope_theta=None), "unknown configuration"),
    "shape": (
        lambda _, tensors: tensors.update({"layers.0.mlp.down_proj.weight": torch.ones(12, 3)}),
        r"down_proj.weight \(12, 3\) \(needed: \(12, 20\)\)",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_other_folders_are_refused(tmp_path: Path, mistake: str) -> None:
    change, message = WRONG[mistake]
    settings, tensors = published(0)
    change(settings, tensors)
    write(tmp_path, settings, tensors)
    with pytest.raises(ModelError, match=message):
        read_eagle_head(tmp_path, target(), torch.float32)


def test_another_targets_head_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *published(0))
    with pytest.raises(ModelError, match=r"hidden size 12 \(the target has 24\).*EAGLE head that was trained for"):
        read_eagle_head(tmp_path, target(hidden=24), torch.float32)


def test_readers_of_other_kinds_name_the_strategy(tmp_path: Path) -> None:
    write(tmp_path, *published(0))
    for read in (read_head, read_p_eagle_head):
        with pytest.raises(ModelError, match="holds a head that eagle:head=FOLDER reads"):
            read(tmp_path, target(), torch.float32)


def test_only_the_first_tensors_are_named(tmp_path: Path) -> None:
    settings, tensors = published(0)
    write(tmp_path, settings, tensors | {f"other.{index}": torch.ones(1) for index in range(5)})
    with pytest.raises(ModelError, match=r"unknown tensors: other.0, other.1, other.2 and 2 more; give"):
        read_eagle_head(tmp_path, target(), torch.float32)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    with pytest.raises(ModelError, match=r"something other than tensors|damaged") as refused:
        read_eagle_head(tmp_path, target(), torch.float32)
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "executed").exists()
