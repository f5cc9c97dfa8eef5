"""Conversions are kept by what they are of, hold no weights, and one that is interrupted or damaged is never used."""

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from specdec_openvino import loading
from specdec_openvino.conversion import tracing
from specdec_openvino.conversion.attention import LayerShape
from specdec_openvino.conversion.files import Conversion, Facts, digest, path_in
from specdec_openvino.engine.graphs import Compiled, Graphs
from specdec_openvino.sources import checkpoints
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdec import Generator, ModelError
from specdec.testing import toy_tokenizer

Small = Callable[..., PreTrainedModel]
MIB = 2**20
TOKENIZER = toy_tokenizer(96)


@pytest.fixture
def small(families: ModuleType) -> Small:
    """A model that isn't the same object twice; each seed has weights of its own."""

    def made(seed: int = 0) -> PreTrainedModel:
        model: PreTrainedModel = families.make(*families.TREES["llama"])
        with torch.no_grad():
            model.lm_head.weight[seed] += 1.0
        return model

    return made


def text_of(model: Any, tokenizer: Any = None) -> list[int]:
    with Generator(model, tokenizer, backend="openvino", proposer="autoregressive", numerics="fast") as generator:
        return list(generator.generate([5, 9, 2], max_new_tokens=12, eos_token_id=()).token_ids)


def expected_of(model: PreTrainedModel) -> list[int]:
    """The same by transformers."""
    prompt = torch.tensor([[5, 9, 2]])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, eos_token_id=-1)
    return list(written[0, 3:].tolist())


def conversions(home: Path) -> set[Path]:
    folder = home / "specdec" / "openvino"
    return set(folder.iterdir()) if folder.exists() else set()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


def forbid_conversion(patch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any) -> Any:
        raise AssertionError("converted again")

    patch.setattr(tracing, "convert", refuse)


@pytest.fixture
def by_hand(tmp_path: Path) -> tuple[Conversion, Path]:
    """A conversion of more than two pieces that are digested at once, which no model is needed for, and its file."""
    numbers = np.random.default_rng(0)
    facts = Facts((LayerShape(2, 8, 8, 0),), torch.float32, baked={"a": "b"})
    own = {"constant.0": numbers.integers(1, 255, 9 * MIB + 5, np.uint8)}
    made = Conversion(facts, b"<net/>" * 999, b"constants", own)
    made.save(path_in(tmp_path, "made"))
    return made, path_in(tmp_path, "made")


def test_what_is_written_is_read(by_hand: tuple[Conversion, Path]) -> None:
    made, path = by_hand
    found = Conversion.find(path)
    assert found is not None
    assert (found.facts, found.graph, found.constants) == (made.facts, made.graph, made.constants)
    assert np.array_equal(found.own["constant.0"], made.own["constant.0"])


@pytest.mark.parametrize("size", [1, 4096, 4 * MIB])
def test_no_hole_goes_unseen(by_hand: tuple[Conversion, Path], size: int) -> None:
    _, path = by_hand
    whole = path.read_bytes()
    for begin in (0, 31, 32, 45, 4096, 5 * MIB + 4096, len(whole) - size):
        damaged = whole[:begin] + bytes(byte ^ 1 for byte in whole[begin : begin + size]) + whole[begin + size :]
        path.write_bytes(damaged)
        assert len(damaged) == len(whole)
        assert Conversion.find(path) is None, begin
        path.write_bytes(whole[:begin] + bytes(size) + whole[begin + size :])
        assert Conversion.find(path) is None or begin + size <= 48, begin  # where zeros were before
    path.write_bytes(whole)
    assert Conversion.find(path) is not None


@pytest.mark.parametrize("change", [lambda whole: whole[:-1], lambda whole: whole[:20], lambda _: b"",
                                    lambda whole: whole + b"0", lambda whole: whole[4096:] + whole[:4096]])  # fmt: skip
def test_other_lengths_and_orders_are_seen(by_hand: tuple[Conversion, Path], change: Callable[[bytes], bytes]) -> None:
    _, path = by_hand
    path.write_bytes(change(path.read_bytes()))
    assert Conversion.find(path) is None


def test_a_damaged_conversion_is_made_anew(small: Small, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(small())
    (path,) = conversions(home)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 4096] = bytes(4096)
    path.write_bytes(whole)
    assert text_of(small()) == first
    forbid_conversion(monkeypatch)
    assert text_of(small()) == first


def test_whoever_reads_while_others_write_finds_all_or_nothing(by_hand: tuple[Conversion, Path]) -> None:
    made, path = by_hand
    are_done = threading.Event()

    def write() -> None:
        for _ in range(5):
            made.save(path)

    def read() -> bool:
        found = [Conversion.find(path) is not None]
        while not are_done.is_set():
            found.append(Conversion.find(path) is not None)
        return all(found)

    with ThreadPoolExecutor(3) as pool:
        reader, *writers = pool.submit(read), pool.submit(write), pool.submit(write)
        for writer in writers:
            writer.result()
        are_done.set()
        assert reader.result()
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_after_a_day(by_hand: tuple[Conversion, Path]) -> None:
    made, path = by_hand
    left, recent = (path.with_name(f".{path.name}-{name}") for name in ("old", "recent"))
    for half in (left, recent):
        half.write_bytes(path.read_bytes()[:MIB])
    os.utime(left, (1e9, 1e9))
    made.save(path)
    assert set(path.parent.iterdir()) == {path, recent}
    assert Conversion.find(path) is not None


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.05])
def test_a_process_that_is_killed_while_it_saves_leaves_what_was_there(
    by_hand: tuple[Conversion, Path], seconds: float
) -> None:
    made, path = by_hand
    other = replace(made, graph=b"<another/>" * 999)
    child = os.fork()
    if not child:
        while True:  # until it is killed
            other.save(path)
            made.save(path)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = Conversion.find(path)
    assert found is not None
    assert found.graph in {made.graph, other.graph}
    made.save(path)
    assert Conversion.find(path) is not None


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of more than 64 KiB can be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_keeps_nothing(by_hand: tuple[Conversion, Path], full_disk: None) -> None:
    made, path = by_hand
    with pytest.warns(UserWarning, match=r"can't be saved in .*, so each start.*: .*File too large.*XDG_CACHE_HOME"):
        made.save(path.with_name("other.conversion"))
    assert list(path.parent.iterdir()) == [path]
    with pytest.warns(UserWarning, match="can't be saved"):
        made.save(path)
    assert Conversion.find(path) is not None


def test_a_full_disk_for_temporary_files_is_named(small: Small, home: Path, full_disk: None) -> None:
    with pytest.raises(ModelError, match="the converted model can't be written to"):
        text_of(small())
    assert not conversions(home)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing(
    small: Small, home: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    def stop(*_: Any) -> None:
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        if isinstance(interruption, OSError):
            with pytest.warns(UserWarning, match="No space left"):
                assert text_of(small()) == expected_of(small())
        else:
            with pytest.raises(KeyboardInterrupt):
                text_of(small())
    assert not conversions(home)
    assert text_of(small())


def test_a_cache_that_cannot_be_written_serves(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specdec").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(UserWarning, match=r"can't be saved in .*point XDG_CACHE_HOME to another folder"):
        assert text_of(small()) == expected_of(small())


def test_another_device_has_a_conversion_of_its_own(small: Small, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(small())
    monkeypatch.setattr(loading, "_device_name", lambda _: "another processor")
    assert text_of(small()) == first
    assert len(conversions(home)) == 2


def test_a_model_is_converted_once_whatever_its_weights(
    small: Small, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_of(small())
    (path,) = conversions(home)
    assert path.stat().st_size < 0.2 * MIB
    forbid_conversion(monkeypatch)
    for seed in (0, 1, 9):
        assert text_of(small(seed)) == expected_of(small(seed))


def test_weights_that_the_graph_was_made_from_are_compared(small: Small, home: Path) -> None:
    """Norms of ones are no operations in a graph: it is another one where they aren't ones."""
    texts = [text_of(small())]
    for factor in (-3.0, 0.2):
        model = small()
        with torch.no_grad():
            model.model.norm.weight[::2] *= factor
            model.model.layers[0].input_layernorm.weight[::3] *= factor
        texts.append(text_of(model))
        assert texts[-1] == expected_of(model)
    assert len({tuple(text) for text in texts}) == 3


def test_weights_that_are_tied_in_one_model_and_not_in_another(families: ModuleType, home: Path) -> None:
    for is_tied in (True, False):
        model = families.make("Qwen2Config", {**families.SMALL, "tie_word_embeddings": True})
        if not is_tied:
            torch.manual_seed(1)
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        assert text_of(model) == expected_of(model)


def test_weights_that_lie_otherwise(small: Small, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(small())
    model = small()
    for layer in model.model.layers:
        weight = layer.mlp.up_proj.weight
        weight.data = weight.data.T.contiguous().T
    assert text_of(model) == first
    forbid_conversion(monkeypatch)
    assert text_of(model) == first


def test_weights_that_change_are_another_model(small: Small, home: Path) -> None:
    model, other = small(), small(seed=9)
    generator = Generator(model, backend="openvino", proposer="autoregressive", numerics="fast")
    before = generator.generate([5, 9, 2], max_new_tokens=12, eos_token_id=()).token_ids
    model.load_state_dict(other.state_dict())
    after = list(generator.generate([5, 9, 2], max_new_tokens=12, eos_token_id=()).token_ids)
    assert before != after == expected_of(other)


def test_two_threads_convert_two_models(small: Small, home: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(text_of, [small(), small(seed=9)]))
    assert texts == [expected_of(small()), expected_of(small(seed=9))]


def test_a_checkpoint_that_is_replaced_is_converted_anew(small: Small, home: Path, checkpoint: Path) -> None:
    texts = list[list[int]]()
    for seed in (0, 9):
        small(seed=seed).save_pretrained(checkpoint)
        for file in checkpoint.iterdir():
            os.utime(file, (1e9, 1e9))  # as where times are made equal
        texts.append(text_of(str(checkpoint), TOKENIZER))
    assert texts == [expected_of(small()), expected_of(small(seed=9))]
    assert len(conversions(home)) == 1  # the first one of the folder is gone


def test_a_checkpoint_without_some_of_its_configuration(
    small: Small, home: Path, checkpoint: Path, bfloat16: torch.dtype
) -> None:
    model = small()
    plain = expected_of(model)
    model.config.eos_token_id = plain[3]
    model.to(bfloat16).save_pretrained(checkpoint)
    (checkpoint / "generation_config.json").unlink()
    config = json.loads((checkpoint / "config.json").read_text())
    config.pop("dtype")
    (checkpoint / "config.json").write_text(json.dumps(config))
    ours, theirs = (
        Generator(str(checkpoint), TOKENIZER, backend=backend, proposer="autoregressive", numerics="fast").generate(
            [5, 9, 2], max_new_tokens=12
        )
        for backend in ("openvino", "hf")
    )
    assert ours.finish_reason == theirs.finish_reason == "stop"
    assert ours.token_ids == theirs.token_ids


def one_file(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)


def several_files(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) == 2


def another_dtype(model: PreTrainedModel, folder: Path) -> None:
    """Weights of 16 bits that are read as 32: the conversion holds them."""
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    model.bfloat16().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("save", [one_file, several_files, another_dtype])
def test_a_folder_is_driven_without_torchs_weights(
    small: Small, home: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, save: Any
) -> None:
    save(small(), checkpoint)
    expected = expected_of(AutoModelForCausalLM.from_pretrained(checkpoint))
    assert text_of(str(checkpoint), TOKENIZER) == expected
    forbid_conversion(monkeypatch)
    monkeypatch.setattr(checkpoints, "load_pretrained", None)
    assert text_of(str(checkpoint), TOKENIZER) == expected
    (path,) = conversions(home)
    held = Conversion.find(path)
    assert held is not None
    assert bool(held.own) == (save is another_dtype)
    assert len({place.file for place in held.facts.places.values()}) == {one_file: 1, several_files: 2}.get(save, 0)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_graph_is_compiled_once(
    small: Small, home: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, numerics: Any
) -> None:
    small().save_pretrained(checkpoint)
    compiled = list[object]()
    make = Compiled.__init__

    def count(self: object, *given: Any) -> None:
        compiled.append(self)
        make(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Compiled, "__init__", count)
    for start in (1, 2):
        with Generator(
            str(checkpoint), TOKENIZER, backend="openvino", numerics=numerics, proposer="autoregressive"
        ) as generator:
            generator.generate([5, 9, 2], max_new_tokens=12)
            assert len(compiled) == start


def test_what_is_kept_of_nothing_is_no_conversion(tmp_path: Path) -> None:
    header = b'{"facts": {"layers": [{"heads": 1}]}, "sizes": [], "own": []}'
    body = np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8)
    path = path_in(tmp_path, "made")
    path.write_bytes(digest(body).encode() + body.tobytes())
    assert Conversion.find(path) is None


def test_weights_of_16_bits_are_not_held_in_32(
    families: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch, bfloat16: torch.dtype
) -> None:
    made = list[Compiled]()
    keep = Graphs.compiled

    def compiled(self: Graphs, *given: Any) -> Compiled:
        made.append(keep(self, *given))
        return made[-1]

    monkeypatch.setattr(Graphs, "compiled", compiled)
    model = families.make(*families.TREES["llama"]).to(bfloat16)
    Generator(model, backend="openvino", numerics="fast", proposer="autoregressive").close()
    wide = [
        operation.get_output_partial_shape(0).to_shape()
        for operation in made[-1].model.get_runtime_model().get_ops()
        if operation.get_rt_info()["layerType"].astype(str) == "Const"
        and operation.get_rt_info()["runtimePrecision"].astype(str) == "f32"
    ]
    matrices = [shape for shape in wide if sum(size > 1 for size in shape) > 1]
    assert matrices == []
