"""GGUF files of three families decode as their dequantised weights do, and other files are refused in words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from specdec import Generator, ModelError
from specdec.models.loading import load_pretrained, load_pretrained_tokenizer
from tests.demo import tiny_gguf
from tests.support.plain import decode_model

FAMILIES = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
PARTS = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
PROMPT = [3, 4, 5, 3, 4, 5, 3]


@pytest.fixture(autouse=True, scope="module")
def _libraries() -> None:
    for library in ("gguf", "accelerate"):
        pytest.importorskip(library, reason="a GGUF file is read with gguf and accelerate")


@pytest.fixture(name="contents", scope="module")
def _contents(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    tiny_gguf.write(path)
    return path.read_bytes()


PLAIN = {"rope_theta": 100000.0, "rope_type": "default"}


def model_of(architecture: str, worth: dict[str, np.ndarray], rotation: dict[str, Any] = PLAIN) -> Any:
    """A model with these weights, made without transformers' reader."""
    head = tiny_gguf.HEAD.get(architecture, tiny_gguf.WIDTH // tiny_gguf.HEADS)
    config = getattr(transformers, FAMILIES[architecture])(
        vocab_size=len(tiny_gguf.TOKENS), hidden_size=tiny_gguf.WIDTH, intermediate_size=tiny_gguf.INNER,
        num_hidden_layers=tiny_gguf.LAYERS, num_attention_heads=tiny_gguf.HEADS, num_key_value_heads=tiny_gguf.GROUPS,
        head_dim=head, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=dict(rotation),
    )  # fmt: skip
    found = dict[str, torch.Tensor]()
    for name, given in worth.items():
        array = given
        *layer, part, kind = name.removeprefix("blk.").split(".")
        if architecture == "llama" and part in {"attn_q", "attn_k"}:  # llama.cpp turns pairs of neighbouring rows
            array = array.reshape(-1, head // 2, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        place = f"model.layers.{layer[0]}" if layer else "model"
        found[f"{place}.{PARTS[part]}.{kind}"] = torch.from_numpy(np.ascontiguousarray(array))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    missing, unknown = model.load_state_dict(found, strict=False)
    assert (missing, unknown) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_file_decodes_as_its_dequantised_weights_do(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / f"{architecture}.Q4_1.gguf"
    expected = decode_model(model_of(architecture, tiny_gguf.write(path, architecture)), PROMPT, 12, None, eos=())
    generator = Generator(str(path), proposer="prompt_lookup", backend="hf")
    result = generator.generate(PROMPT, max_new_tokens=12, eos_token_id=())
    assert list(result.token_ids) == expected
    assert len(set(expected)) > 1
    assert result.notes == ("the GGUF file's weights are dequantised to float32",)
    assert generator.tokenizer("abc ab")["input_ids"] == [10, 8, 9]


def test_a_dequantised_model_is_one_like_any_other(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(contents)
    model, _ = load_pretrained(str(tmp_path / "x.gguf"), dtype="bfloat16")
    assert not hasattr(model.config, "quantization_config")
    model.save_pretrained(tmp_path / "saved")
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(saved(torch.tensor([PROMPT])).logits, model(torch.tensor([PROMPT])).logits)


def changed(contents: bytes, at: int, by: bytes) -> bytes:
    return contents[:at] + by + contents[at + len(by) :]


FAULTY = {
    "empty": (lambda _: b"", "it is empty. Download it again, or decrypt it"),
    "encrypted": (lambda it: bytes(byte ^ 0x5A for byte in it), "it doesn't begin as GGUF files do, so it is"),
    "encrypted after its header": (
        lambda it: it[:24] + bytes(byte ^ 0x5A for byte in it[24:]),
        "the file is damaged or encrypted: its metadata can't be read",
    ),
    "a part of a header": (lambda it: it[:20], "it ends within its header"),
    "a part of the metadata": (lambda it: it[:300], "the file is damaged or incomplete"),
    "a half": (lambda it: it[: len(it) // 2], "the file is damaged or incomplete"),
    "without an end": (lambda it: it[:-100], "the file is damaged or incomplete"),
    "of version 1": (lambda it: changed(it, 4, b"\1\0\0\0"), "it is of GGUF's version 1, and"),
    "big-endian": (lambda it: changed(it, 4, b"\0\0\0\3"), "it was written for big-endian processors"),
    "of an unknown architecture": (lambda it: it.replace(b"llama", b"lbama"), "GGUF model with architecture lbama"),
    "safetensors": (lambda _: (2).to_bytes(8, "little") + b"{}", "it is a safetensors file: give the folder"),
    "a zip archive": (lambda it: b"PK\x03\x04" + it, "it is a zip archive: unpack it"),
    "GGML": (lambda it: b"lmgg" + it, "it is of llama.cpp's GGML format, before GGUF"),
    "a Git LFS pointer": (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    "a web page": (lambda _: b"<!doctype html>", "it is a web page"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTY)
def test_a_file_that_can_not_be_read_is_refused_in_words(kind: str, contents: bytes, tmp_path: Path) -> None:
    make, fault = FAULTY[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(make(contents))
    with pytest.raises(ModelError) as caught:
        load_pretrained(str(path))
    assert str(caught.value).startswith(f"can't load {str(path)!r}: {fault}")
    assert "\n" not in str(caught.value)


def test_a_part_of_a_file_is_refused(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00003.gguf"
    path.write_bytes(contents)
    for load in (load_pretrained, load_pretrained_tokenizer):
        with pytest.raises(ModelError, match=r"it is one of 3 parts: join them with .*llama-gguf-split --merge"):
            load(str(path))
    path.with_name("model-00001-of-00001.gguf").write_bytes(contents)
    load_pretrained(str(path.with_name("model-00001-of-00001.gguf")))


def test_too_little_memory_is_not_called_damage(
    contents: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_pretrained(*_: Any, **__: Any) -> None:
        raise MemoryError("can't allocate 30 GB")

    (tmp_path / "x.gguf").write_bytes(contents)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(
        ModelError, match=r"x\.gguf': memory ran out \(MemoryError: can't allocate 30 GB\): free memory, or"
    ):
        load_pretrained(str(tmp_path / "x.gguf"))
