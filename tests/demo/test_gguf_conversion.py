"""A GGUF file's checkpoints have its weights and load like any other; a digest is of weights, not of files."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec import RequestError
from specdec.demo.gguf_conversion import check_libraries, convert, weights_digest
from specdec.models.loading import load_pretrained
from tests.demo import tiny_gguf

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """The folder with both checkpoints of a small file, and what the file's tensors are worth."""
    for library in ("gguf", "accelerate"):
        pytest.importorskip(library, reason="converting needs the extra real-model")
    folder = tmp_path_factory.mktemp("converted")
    worth = tiny_gguf.write(folder / "tiny.gguf")
    convert(folder / "tiny.gguf", folder / "made")
    return folder / "made", worth


def halves_of_heads_interleaved(matrix: np.ndarray, num_heads: int) -> np.ndarray:
    """A query or key matrix of transformers' with its rows in GGUF's order: x0 y0 x1 y1 … for x0 x1 … y0 y1 …"""
    heads = matrix.reshape(num_heads, 2, -1, matrix.shape[1])
    return np.stack([heads[:, 0], heads[:, 1]], axis=2).reshape(matrix.shape)


def test_the_float32_checkpoint_has_the_files_weights(converted: Any) -> None:
    folder, worth = converted
    found = {name: tensor.numpy() for name, tensor in load_file(folder / "float32" / "model.safetensors").items()}
    layer = "model.layers.1."
    assert len(found) == len(worth)
    for name, given in {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        f"{layer}mlp.down_proj": "blk.1.ffn_down",
        f"{layer}self_attn.v_proj": "blk.1.attn_v",
        f"{layer}post_attention_layernorm": "blk.1.ffn_norm",
    }.items():
        assert np.array_equal(found[f"{name}.weight"], worth[f"{given}.weight"]), name
    for name, heads in (("q", tiny_gguf.HEADS), ("k", tiny_gguf.GROUPS)):
        matrix = halves_of_heads_interleaved(found[f"{layer}self_attn.{name}_proj.weight"], heads)
        assert np.array_equal(matrix, worth[f"blk.1.attn_{name}.weight"]), name


def test_the_bfloat16_checkpoint_is_the_other_rounded(converted: Any) -> None:
    whole, rounded = (load_file(converted[0] / dtype / "model.safetensors") for dtype in ("float32", "bfloat16"))
    assert whole.keys() == rounded.keys()
    assert all(torch.equal(tensor.bfloat16(), rounded[name]) for name, tensor in whole.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_loads_like_any_other(converted: Any, dtype: str) -> None:
    model, tokenizer = load_pretrained(str(converted[0] / dtype))
    assert str(model.dtype) == f"torch.{dtype}"
    assert getattr(model.config, "quantization_config", None) is None
    assert (model.config.max_position_embeddings, model.config.rope_parameters["rope_theta"]) == (256, 100000.0)
    assert model.generation_config.eos_token_id == 2
    assert tokenizer("abc ab")["input_ids"] == [10, 8, 9]
    message = {"role": "user", "content": "abc"}
    assert tokenizer.apply_chat_template([message], tokenize=False) == "<|im_start|>abc<|im_end|>"


def test_two_conversions_have_one_digest(converted: Any, tmp_path: Path) -> None:
    convert(converted[0].parent / "tiny.gguf", tmp_path)
    for dtype in ("float32", "bfloat16"):
        files = (folder / dtype / "model.safetensors" for folder in (converted[0], tmp_path))
        assert len({weights_digest(file) for file in files}) == 1


def test_the_digest_knows_no_metadata_and_no_order(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "one", metadata={"format": "pt"})
    save_file(dict(reversed(TENSORS.items())), tmp_path / "other", metadata={"made": "today"})
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()
    assert weights_digest(tmp_path / "one") == weights_digest(tmp_path / "other")


@pytest.mark.parametrize(
    "changed",
    [
        {"b": TENSORS["b"] + 1},
        {"b": TENSORS["b"].reshape(3, 2)},
        {"b": TENSORS["b"].view(torch.int32)},
        {"c": TENSORS["b"]},
    ],
)
def test_values_shapes_dtypes_and_names_are_in_the_digest(tmp_path: Path, changed: dict[str, torch.Tensor]) -> None:
    save_file(TENSORS, tmp_path / "one")
    rest = {} if "c" in changed else {"b": TENSORS["b"]}
    save_file({"a": TENSORS["a"], **rest, **changed}, tmp_path / "other")
    assert weights_digest(tmp_path / "one") != weights_digest(tmp_path / "other")


def test_missing_libraries_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setitem(sys.modules, "gguf", ModuleType("gguf"))
    command = r"pip install -e '\.\[real-model\]', in a copy of specdec's repository"
    with pytest.raises(RequestError, match=f"^converting needs accelerate: {command}$"):
        check_libraries()
