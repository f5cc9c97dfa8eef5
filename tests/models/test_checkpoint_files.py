"""A folder whose weights can't be loaded is answered by what is wrong with its files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec import Generator, ModelError
from specdec.models.checkpoint_files import GIVE_A_MODEL, remedy_for_files
from specdec.models.loading import load_pretrained
from tests.support import families

DAMAGED = "model.safetensors is damaged or incomplete: download or copy it again"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 538090408\n"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    families.make(*families.TREES["llama"]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (lambda whole: whole[:-1], DAMAGED),
        (lambda whole: whole[:6], DAMAGED),
        (lambda _: b"", DAMAGED),
        (lambda _: POINTER, "model.safetensors is a pointer of Git LFS, without the weights: run git lfs pull"),
    ],
    ids=["a byte short", "without a header", "empty", "pointer"],
)
def test_a_damaged_weight_file_is_named_with_the_remedy(
    content: Callable[[bytes], bytes], remedy: str, folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "model"
    shutil.copytree(folder, damaged)
    assert remedy_for_files(str(damaged)) == GIVE_A_MODEL
    file = damaged / "model.safetensors"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(ModelError) as caught:
        load_pretrained(str(damaged), tokenizer=object())
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError) as caught:
        Generator(str(damaged), object())
    assert str(caught.value).count(remedy) == 1


@pytest.mark.parametrize("config", ["config.json", "adapter_config.json"])
@pytest.mark.parametrize(
    ("older", "inner"),
    [("checkpoint-500", "checkpoint-1500"), ("snapshots/f", "snapshots/0a1b")],
    ids=["of a trainer", "of the hub's cache"],
)
def test_a_folder_of_models_is_answered_with_the_newest(
    older: str, inner: str, config: str, folder: Path, tmp_path: Path
) -> None:
    for place in (older, inner):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(folder / "config.json", tmp_path / place / config)
    os.utime(tmp_path / older, (0, 0))
    with pytest.raises(ModelError) as caught:
        load_pretrained(str(tmp_path), tokenizer=object())
    answer = f"it has no config.json. Give the newest checkpoint in it, '{tmp_path / inner}'"
    assert str(caught.value) == f"can't load '{tmp_path}': {answer}"
    weights = "model.safetensors" if config == "config.json" else "adapter_model.safetensors"
    shutil.copy(folder / "model.safetensors", tmp_path / weights)
    assert remedy_for_files(str(tmp_path)) == f"Copy the checkpoint's {config} into it"
    shutil.copy(folder / "config.json", tmp_path / config)
    assert remedy_for_files(str(tmp_path)) == GIVE_A_MODEL
