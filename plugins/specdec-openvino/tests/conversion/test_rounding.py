"""Rounded weights are nncf's, are kept on disk, and are made anew if their file is damaged."""

import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from specdec_openvino import loading
from specdec_openvino.sources import checkpoints
from transformers import PreTrainedModel

from specdec import Generator, ModelError
from specdec.testing import toy_tokenizer

pytest.importorskip("nncf")
PROMPT = [5, 9, 2, 5, 9]
TOKENIZER = toy_tokenizer(96)
pytestmark = pytest.mark.filterwarnings("ignore:with backend=:UserWarning")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specdec" / "openvino"


@pytest.fixture
def model(families: ModuleType) -> PreTrainedModel:
    made: PreTrainedModel = families.make("LlamaConfig", {**families.SMALL, "tie_word_embeddings": False})
    return made


@pytest.fixture
def folder(model: PreTrainedModel, tmp_path: Path) -> str:
    model.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def text_of(model: Any, options: str, proposer: str = "autoregressive") -> list[int]:
    with Generator(model, TOKENIZER, backend=f"openvino:{options}", proposer=proposer) as generator:
        return list(generator.generate(PROMPT, max_new_tokens=24, eos_token_id=()).token_ids)


def forbid(patch: pytest.MonkeyPatch) -> None:
    """Neither torch's weights nor nncf can be had from here on."""
    patch.setitem(sys.modules, "nncf", None)  # as if it weren't installed
    patch.setattr(checkpoints, "load_pretrained", lambda *_: pytest.fail("torch loads it again"))
    patch.setattr(loading, "rounded", lambda *_: pytest.fail("it is rounded again"))


def nearest(weight: torch.Tensor) -> torch.Tensor:
    """A matrix in 8 bits with a scale and a zero point per row, by the definition of asymmetric rounding."""
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    scale = (high - low) / 255
    zero = (-low / scale).round()
    return ((weight / scale + zero).round().clamp(0, 255) - zero) * scale


@torch.no_grad()
def plain_text(model: PreTrainedModel) -> list[int]:
    prompt = torch.tensor([PROMPT])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, eos_token_id=-1)
    return list(written[0, len(PROMPT) :].tolist())


def test_the_text_is_that_of_the_rounded_matrices(model: PreTrainedModel) -> None:
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for weight in by_hand.parameters():
            if weight.dim() == 2:
                weight.copy_(nearest(weight))
    expected = plain_text(by_hand)
    assert expected != plain_text(model)
    assert text_of(model, "weights=int8") == expected
    assert text_of(model, "weights=int8_asym", "prompt_lookup") == expected


def test_a_second_start_needs_neither_torchs_weights_nor_nncf(
    folder: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = ["weights=int8", "weights=int4", "weights=int4,group_size=-1", "weights=int4,group_size=32"]
    first = {options: text_of(folder, options) for options in choices}
    assert len({*map(tuple, first.values())}) > 1
    assert len(list(home.iterdir())) == 1 + len(choices)
    forbid(monkeypatch)
    for options, text in first.items():
        assert text_of(folder, options) == text, options
    for file in home.iterdir():
        file.rename(file.with_name(file.name.replace("-nncf", "-nncf0.")))
    assert text_of(folder, choices[0]) == first[choices[0]]  # rounded by another version
    with pytest.raises(ModelError, match="weights=int8_sym needs nncf: pip install nncf"):
        text_of(folder, "weights=int8_sym")


def test_a_damaged_file_is_made_anew(folder: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(folder, "weights=int8")
    (path,) = home.glob("*int8*")
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 1  # of a weight
    path.write_bytes(whole)
    assert text_of(folder, "weights=int8") == first
    forbid(monkeypatch)
    assert text_of(folder, "weights=int8") == first


def test_another_checkpoint_in_the_folder_replaces_all_roundings(
    folder: str, home: Path, model: PreTrainedModel
) -> None:
    for options in ("weights=int8", "weights=int4"):
        text_of(folder, options)
    with torch.no_grad():
        model.lm_head.weight[7] += 1.0
    model.save_pretrained(folder)
    changed = text_of(folder, "weights=int8")
    assert changed == text_of(model, "weights=int8")
    assert sorted("int" in file.name for file in home.glob("*.conversion")) == [
        False,
        False,
        True,
    ]  # one is of the object


def test_matrices_that_the_groups_do_not_divide(folder: str) -> None:
    with pytest.raises(ModelError, match=r"nncf can't round the model's weights to int4_sym-.*use another group_size"):
        text_of(folder, "weights=int4,group_size=24")
