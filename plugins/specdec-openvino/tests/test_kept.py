"""Conversions are kept by what they are of, and one that is interrupted or damaged is never used."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import openvino as ov
import pytest
import torch
from specdec_openvino import loading
from specdec_openvino.attention import describe
from specdec_openvino.kept import Kept
from transformers import PreTrainedModel

from specdec import Generator, ModelError

Small = Callable[..., PreTrainedModel]


@pytest.fixture
def small(families: ModuleType) -> Small:
    """A model that isn't the same object twice; each seed has weights of its own."""

    def made(seed: int = 0) -> PreTrainedModel:
        model: PreTrainedModel = families.make(*families.TREES["llama"])
        with torch.no_grad():
            model.lm_head.weight[seed] += 1.0
        return model

    return made


class Letters:
    """A tokenizer of 96 letters."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 32 for letter in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(token + 32) for token in ids)

    def __len__(self) -> int:
        return 96


def text_of(model: Any, **options: Any) -> list[int]:
    return list(Generator(model, backend="openvino", **options).generate([5, 9, 2], max_new_tokens=12).token_ids)


def conversions(home: Path) -> set[Path]:
    return set((home / "specdec" / "openvino").iterdir())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def forbid_conversion(patch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any) -> Any:
        raise AssertionError("converted again")

    patch.setattr(loading, "convert", refuse)


def test_the_same_model_is_converted_once_and_others_by_themselves(
    small: Small, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = text_of(small())
    assert text_of(small(seed=1)) is not None
    assert len(conversions(home)) == 2
    forbid_conversion(monkeypatch)
    assert text_of(small()) == first


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing(
    small: Small, home: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    def stop(graph: Any, path: Path, **options: Any) -> None:
        Path(path).write_text("half of it")
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(ov, "save_model", stop)
        expected = ModelError if isinstance(interruption, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            text_of(small())
    assert not conversions(home)
    assert text_of(small())


@pytest.mark.parametrize("file", ["facts.json", "model.xml", "model.bin"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_damaged_conversion_is_made_anew(small: Small, home: Path, file: str, is_gone: bool) -> None:
    first = text_of(small())
    (folder,) = conversions(home)
    damaged = folder / file
    if is_gone:
        damaged.unlink()
    else:
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    assert text_of(small()) == first


def test_weights_that_change_are_another_model(small: Small, home: Path) -> None:
    model, other = small(), small(seed=9)
    generator = Generator(model, backend="openvino")
    before = generator.generate([5, 9, 2], max_new_tokens=12).token_ids
    model.load_state_dict(other.state_dict())
    after = list(generator.generate([5, 9, 2], max_new_tokens=12).token_ids)
    assert before != after == text_of(other) == text_of(model)


def test_a_checkpoint_that_is_replaced_is_converted_anew(
    small: Small, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    texts = list[list[int]]()
    for seed in (0, 9):
        small(seed=seed).save_pretrained(folder)
        for file in folder.iterdir():
            os.utime(file, (1e9, 1e9))  # as where times are made equal
        texts.append(text_of(str(folder), tokenizer=Letters()))
    assert texts == [text_of(small()), text_of(small(seed=9))]
    assert len(conversions(home)) == 3  # the first one of the folder is gone


def test_a_checkpoint_without_some_of_its_configuration(
    small: Small, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    model = small()
    plain = text_of(model)
    model.config.eos_token_id = plain[3]
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config.pop("dtype")
    (folder / "config.json").write_text(json.dumps(config))
    ours, theirs = (
        Generator(str(folder), Letters(), backend=backend).generate([5, 9, 2], max_new_tokens=12)
        for backend in ("openvino", "hf")
    )
    assert ours.finish_reason == theirs.finish_reason == "stop"
    assert ours.token_ids == theirs.token_ids


def test_a_cache_that_can_only_be_read_serves(small: Small, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(small())

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(loading, "_device_name", lambda _: "another processor")
    monkeypatch.setattr(os, "replace", refuse)
    forbid_conversion(monkeypatch)
    assert text_of(small()) == first


def test_two_threads_convert_two_models(small: Small, home: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(text_of, [small(), small(seed=9)]))
    assert texts == [text_of(small()), text_of(small(seed=9))]


def test_a_cache_folder_that_cannot_be_written_is_named(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specdec").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"can't be kept in .*point XDG_CACHE_HOME to another folder"):
        text_of(small())


def test_a_folder_is_driven_without_its_weights(
    small: Small, home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    small().save_pretrained(folder)
    expected = text_of(small())
    assert text_of(str(folder), tokenizer=Letters()) == expected
    forbid_conversion(monkeypatch)
    monkeypatch.setattr(loading, "load_pretrained", None)
    assert text_of(str(folder), tokenizer=Letters()) == expected


def test_kept_facts_that_are_no_facts_are_no_conversion(tmp_path: Path) -> None:
    (tmp_path / "model.xml").touch()
    (tmp_path / "facts.json").write_text('{"layers": [{"heads": 1}]}')
    assert Kept.find(tmp_path) is None


def test_weights_of_16_bits_are_not_held_in_32(families: ModuleType, home: Path) -> None:
    model = families.make(*families.TREES["llama"]).bfloat16()
    Generator(model, backend="openvino", numerics="fast").close()
    (folder,) = conversions(home)
    core = ov.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    graph = core.read_model(folder / "model.xml")
    describe(graph, Kept.find(folder).layers)  # type: ignore[union-attr]
    compiled = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"})
    wide = [
        operation.get_output_partial_shape(0).to_shape()
        for operation in compiled.get_runtime_model().get_ops()
        if operation.get_rt_info()["layerType"].astype(str) == "Const"
        and operation.get_rt_info()["runtimePrecision"].astype(str) == "f32"
    ]
    matrices = [shape for shape in wide if sum(size > 1 for size in shape) > 1]
    assert matrices == []
