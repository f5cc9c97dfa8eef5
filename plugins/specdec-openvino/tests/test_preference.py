"""Models given by name are the engine's without being named, where it computes what torch would."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from specdec_openvino import loading, preference
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.model import OpenVINOModel
from specdec_openvino.sources import checkpoints
from transformers import PreTrainedModel

from specdec import Generator, ModelError
from specdec.models import ModelSource
from specdec.testing import toy_tokenizer

Make = Callable[[str], PreTrainedModel]
PROMPT = [5, 9, 2, 7, 1, 8]
TOKENIZER = toy_tokenizer(96)


def text_of(generator: Generator) -> list[int]:
    return list(generator.generate(PROMPT, max_new_tokens=8, eos_token_id=()).token_ids)


@pytest.fixture(name="folder")
def _folder(make: Make, tmp_path: Path) -> Path:
    make("llama").save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_is_the_engines_in_its_own_dtype(folder: Path, make: Make) -> None:
    generator = Generator(str(folder), TOKENIZER)
    assert isinstance(generator.model, OpenVINOModel)
    assert generator.shapes.dtype == torch.float32
    result = generator.generate(PROMPT, max_new_tokens=8, eos_token_id=())
    assert result.notes[0] == "decoding with openvino; backend hf decodes with torch"
    assert list(result.token_ids) == text_of(Generator(make("llama")))


def test_a_dtype_that_is_asked_for_is_another_conversion(folder: Path) -> None:
    own = text_of(Generator(str(folder), TOKENIZER))
    halved = Generator(str(folder), TOKENIZER, dtype="bfloat16")
    assert halved.shapes.dtype == torch.bfloat16
    again = Generator(str(folder), TOKENIZER, dtype="float32")
    assert again.shapes.dtype == torch.float32
    assert text_of(again) == own


def test_what_can_not_be_converted_is_torchs(families: ModuleType, make: Make, tmp_path: Path) -> None:
    make("gemma2").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="decoding with torch, not with openvino: .*its attention has soft caps"):
        generator = Generator(str(tmp_path), TOKENIZER)
    assert text_of(generator) == text_of(Generator(make("gemma2")))


def declined(folder: Path, **config: Any) -> str:
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, **config}))
    return OpenVINOBackend.declines(ModelSource(str(folder), "cpu"))


def test_what_torch_computes_otherwise_is_declined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert declined(folder) == ""
    assert declined(folder, is_encoder_decoder=True) == "it has an encoder"
    assert "quantised" in declined(folder, is_encoder_decoder=False, quantization_config={"quant_method": "gptq"})
    (folder / "adapter_config.json").write_text("{}")
    assert "an adapter of another model" in declined(folder)
    assert "the model is to be on cuda" in OpenVINOBackend.declines(ModelSource(str(folder / "x.gguf"), "cuda"))
    assert OpenVINOBackend.declines(ModelSource(str(folder), "cuda")) == "the model is to be on cuda"
    (folder / "adapter_config.json").unlink()
    (folder / "config.json").write_text("{")
    assert OpenVINOBackend.declines(ModelSource(str(folder), "cpu")) == "config.json is empty or invalid"


def test_a_folder_without_a_configuration_is_refused_with_one_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it has no config\.json") as caught:
        Generator(str(tmp_path), TOKENIZER)
    assert "openvino" not in str(caught.value)


def test_a_dtype_that_the_device_lacks_is_declined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dtype: torch.dtype, device: str) -> None:
        raise ModelError(f"OpenVINO doesn't support {dtype} on this {device}")

    monkeypatch.setattr(preference, "check_dtype", refuse)
    assert declined(folder) == "OpenVINO doesn't support torch.float32 on this CPU"


def test_torchs_devices_are_not_the_engines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModelSource(str(folder), "cuda")
    with pytest.raises(ModelError, match=r"device='cuda' is torch's.*backend='openvino:device=…'"):
        OpenVINOBackend.read(source, TOKENIZER, OpenVINOBackend.Options())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_is_the_engines_and_converted_once(
    architecture: str, tiny_gguf: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, architecture)
    result = Generator(str(path)).generate([3, 4, 5, 3, 4], max_new_tokens=8, eos_token_id=())
    assert result.notes[0] == (
        "decoding with openvino; backend hf decodes with torch; the GGUF file's weights are dequantised to float32"
    )
    expected = Generator(str(path), backend="hf").generate([3, 4, 5, 3, 4], max_new_tokens=8, eos_token_id=())
    assert result.token_ids == expected.token_ids
    monkeypatch.setattr(checkpoints, "load_pretrained", lambda *_: pytest.fail("torch loads it again"))
    again = Generator(str(path)).generate([3, 4, 5, 3, 4], max_new_tokens=8, eos_token_id=())
    assert again.token_ids == expected.token_ids


@pytest.mark.parametrize("fault", ["cut", "encrypted", "of another architecture"])
def test_a_damaged_gguf_file_is_refused_in_words(fault: str, tiny_gguf: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path)
    whole = path.read_bytes()
    faulty = {
        "cut": whole[:300],
        "encrypted": whole[:24] + bytes(byte ^ 0x5A for byte in whole[24:]),
        "of another architecture": whole.replace(b"llama", b"lbama"),
    }
    path.write_bytes(faulty[fault])
    messages = set[str]()
    for backend in ("openvino", "hf"):
        with pytest.raises(ModelError, match=r"can't load '.*model\.gguf': (the file is damaged|GGUF model)") as caught:
            Generator(str(path), tokenizer=TOKENIZER, backend=backend)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_gguf_files_scaled_rotation_is_the_engines_too(tiny_gguf: ModuleType, tmp_path: Path) -> None:
    def scale(writer: Any) -> None:
        writer.add_rope_scaling_factor(16.0)

    path, prompt = tmp_path / "model.gguf", [3, 4, 5, 6, 7, 8] * 20
    texts = list[list[tuple[int, ...]]]()
    for more in (None, scale):
        tiny_gguf.write(path, more=more)
        generators = [Generator(str(path), backend=backend) for backend in ("openvino", "hf")]
        texts.append(
            [tuple(each.generate(prompt, max_new_tokens=16, eos_token_id=()).token_ids) for each in generators]
        )
    (plain, also_plain), (scaled, also_scaled) = texts
    assert (plain, scaled) == (also_plain, also_scaled)
    assert plain != scaled, "the scaling makes a difference"


def test_a_gguf_file_is_rounded_by_the_engine(
    tiny_gguf: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nncf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path)
    texts = list[tuple[int, ...]]()
    for _ in range(2):
        with pytest.warns(UserWarning, match="weights=int8"):
            generator = Generator(str(path), backend="openvino:weights=int8")
        result = generator.generate([3, 4, 5], max_new_tokens=8, eos_token_id=())
        assert not result.lossless
        texts.append(tuple(result.token_ids))
        monkeypatch.setattr(checkpoints, "load_pretrained", lambda *_: pytest.fail("torch loads it again"))
        monkeypatch.setattr(loading, "rounded", lambda *_: pytest.fail("it is rounded again"))
    assert texts[0] == texts[1]
    assert len(list((tmp_path / "cache").glob("specdec/openvino/*"))) == 1  # all weights are kept once


def test_a_gguf_file_that_is_replaced_is_read_again(tiny_gguf: ModuleType, tmp_path: Path) -> None:
    path, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    tiny_gguf.write(path)
    Generator(str(path), backend="openvino")
    tiny_gguf.write(other, "qwen2")
    other.replace(path)
    ours, theirs = (
        Generator(str(path), backend=backend).generate([3, 4, 5, 3, 4], max_new_tokens=8, eos_token_id=()).token_ids
        for backend in ("openvino", "hf")
    )
    assert ours == theirs
