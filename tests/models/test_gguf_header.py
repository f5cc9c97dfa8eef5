"""The header of a GGUF file, as the gguf library reads it."""

import struct
from pathlib import Path
from typing import Any

import pytest

from specdec.models.gguf_header import GgufHeader
from tests.demo import tiny_gguf

gguf: Any = pytest.importorskip("gguf", reason="a GGUF file is read with gguf and accelerate")


def add_more(writer: Any) -> None:
    writer.add_eot_token_id(3)
    writer.add_add_space_prefix(False)
    writer.add_sliding_window_pattern([True, False, True])
    writer.add_float64("llama.some.float64", 0.1)
    writer.add_int64("llama.some.int64", -(2**40))


def test_a_header_is_that_of_the_gguf_library(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, more=add_more)
    header, reader = GgufHeader.of(path), gguf.GGUFReader(path)
    assert header.tensors == [tensor.name for tensor in reader.tensors]
    assert header.architecture == "llama"
    fields = {name: field.contents() for name, field in reader.fields.items()}
    expected = {name: value for name, value in fields.items() if name.startswith(("llama.", "tokenizer."))}
    strings = {name: None for name, value in expected.items() if isinstance(value, list) and isinstance(value[0], str)}
    assert {*strings} == {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}
    found = {f"llama.{name}": value for name, value in header.settings.items()}
    found |= {f"tokenizer.{name}": value for name, value in header.tokenizer.items()}
    assert found == {**expected, **strings}
    assert found["llama.some.float64"] == 0.1


def test_a_file_that_ends_within_its_header_is_an_error_at_once(tmp_path: Path) -> None:
    path, cut = tmp_path / "tiny.gguf", tmp_path / "cut.gguf"
    tiny_gguf.write(path)
    whole = path.read_bytes()
    end = whole.index(GgufHeader.of(path).tensors[-1].encode())
    for size in range(24, end, 7):
        cut.write_bytes(whole[:size])
        with pytest.raises((struct.error, KeyError)):
            GgufHeader.of(cut)
    cut.write_bytes(whole[:8] + struct.pack("<QQ", 2**60, 2**60) + whole[24:])
    with pytest.raises((struct.error, KeyError, UnicodeError)):
        GgufHeader.of(cut)
