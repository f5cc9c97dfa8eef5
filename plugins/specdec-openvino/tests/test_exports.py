"""Folders exported by optimum-intel are opened as they are, and those that can't be are refused with the reason.

``exported_llama.zip`` was made from a Llama of one layer with random weights, by ``optimum-cli export openvino --task
text-generation-with-past`` (optimum-intel 2.2.0, OpenVINO 2026.4.1).
"""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from specdec_openvino import export, export_proof
from specdec_openvino.kept import Conversion
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specdec import Generator, ModelError

PROMPTS = [[5, 9, 2, 5, 9], [7], [1, 2, 3, 1, 2, 3, 1, 2, 30, 31, 32, 33]]
GRAPH, WEIGHTS = "openvino_model.xml", "openvino_model.bin"
Change = Callable[[Path], object]


class Letters:
    """A tokenizer of 96 letters."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 32 for letter in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(token + 32) for token in ids)

    def __len__(self) -> int:
        return 96


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name("exported_llama.zip")) as archive:
        archive.extractall(tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specdec" / "openvino"


def checkpoint_of(folder: Path) -> PreTrainedModel:
    """The torch model with the export's matrices, by their names; its norms are ones."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    matrices = {
        node.get_friendly_name().removeprefix("self."): torch.from_numpy(node.data.copy())
        for node in ov.Core().read_model(folder / GRAPH).get_ops()
        if node.get_friendly_name().startswith("self.")
    }
    report = model.load_state_dict(matrices, strict=False)
    assert not report.unexpected_keys
    assert all("norm" in name for name in report.missing_keys)
    return model  # type: ignore[no-any-return]


def texts_of(folder: Path, **options: Any) -> list[list[int]]:
    with Generator(str(folder), Letters(), backend="openvino", **options) as generator:
        results = generator.generate(PROMPTS, max_new_tokens=32, eos_token_id=())
        return [list(result.token_ids) for result in results]


def test_the_text_is_that_of_the_checkpoint(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = checkpoint_of(folder)
    expected = [
        model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=32, eos_token_id=-1)[
            0, len(ids) :
        ].tolist()
        for ids in PROMPTS
    ]
    assert len({*map(tuple, expected)}) == len(PROMPTS)
    with Generator(str(folder), Letters(), numerics="fast") as generator:  # the engine is found by itself
        drafted = generator.generate(PROMPTS, max_new_tokens=32, eos_token_id=())
        assert [list(result.token_ids) for result in drafted] == expected
        assert generator.open_target().shapes.takes_trees
    (kept,) = home.iterdir()
    conversion = Conversion.find(kept)
    assert conversion is not None
    assert len(conversion.facts.places) == 7  # its matrices of 4 KiB and more
    assert {place.file for place in conversion.facts.places.values()} == {WEIGHTS}
    monkeypatch.setattr(export, "paged_attention_transformation", lambda *_, **__: pytest.fail("converted again"))
    for proposer in ("autoregressive", "prompt_lookup", "lookahead:N=3,W=3,G=3"):
        assert texts_of(folder, proposer=proposer, numerics="exact") == expected, proposer


def test_wrong_passes_are_found(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = export_proof._logits

    def shifted(request: Any, tokens: list[int], past: int) -> torch.Tensor:
        return own(request, [token ^ 1 for token in tokens], past)

    monkeypatch.setattr(export_proof, "_logits", shifted)
    with pytest.raises(ModelError, match=r"has other logits after its conversion to OpenVINO: .*; give its checkpoint"):
        texts_of(folder)
    assert not home.exists()


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def encrypted(contents: bytes) -> bytes:
    return (np.frombuffer(contents, np.uint8) ^ 0x5A).tobytes()


DAMAGES: dict[str, tuple[Change, str]] = {
    "encrypted graph": (lambda it: rewritten(it / GRAPH, encrypted), "one of them is damaged or encrypted"),
    "half a graph": (lambda it: rewritten(it / GRAPH, lambda whole: whole[:9999]), "one of them is damaged or"),
    "half the weights": (lambda it: rewritten(it / WEIGHTS, lambda whole: whole[:9999]), "is damaged or encrypted"),
    "encrypted weights": (lambda it: rewritten(it / WEIGHTS, encrypted), "is damaged or encrypted"),
    "no weights": (lambda it: (it / WEIGHTS).unlink(), "openvino_model.bin is missing or empty. Download it again"),
    "a pointer": (lambda it: (it / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "no configuration": (lambda it: (it / "config.json").unlink(), "it has no config.json: copy the checkpoint's"),
    "another task": (
        lambda it: rewritten(it / GRAPH, lambda whole: whole.replace(b'"logits"', b'"last_hidden_state"')),
        "it was exported for another task, since it has no logits: export it with optimum-cli",
    ),
    "no cache": (
        lambda it: rewritten(it / GRAPH, lambda whole: whole.replace(b"beam_idx", b"token_type")),
        "it keeps no keys and values between passes: export it with .* --task text-generation-with-past",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_exports_that_cannot_be_opened(folder: Path, damage: str) -> None:
    change, reason = DAMAGES[damage]
    change(folder)
    for backend in ("openvino", "auto"):
        with pytest.raises(ModelError, match=re.compile(f"can't load.*{reason}", re.DOTALL)):
            Generator(str(folder), Letters(), backend=backend)


def test_another_dtype(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"dtype='bfloat16' is for checkpoints, .*'openvino:precision=bfloat16'"):
        Generator(str(folder), Letters(), backend="openvino", dtype="bfloat16")


def test_what_torch_says_of_folders_without_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="It has an OpenVINO export: install the package specdec-openvino"):
        Generator(str(folder), Letters(), backend="hf")
    (folder / GRAPH).rename(folder / "model.onnx")
    with pytest.raises(ModelError, match="It has an ONNX export, which specdec doesn't read: give the checkpoint"):
        Generator(str(folder), Letters(), backend="hf")
