"""Folders exported by optimum-intel are opened as they are, and those that can't be are refused with the reason.

``exported_llama.zip`` was made from a Llama of one layer with random weights, by ``optimum-cli export openvino --task
text-generation-with-past`` (optimum-intel 2.2.0, OpenVINO 2026.4.1).
"""

import re
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import openvino as ov
import pytest
import torch
from specdec_openvino import loading
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.conversion.files import Conversion
from specdec_openvino.model import OpenVINOModel
from specdec_openvino.sources import export, export_proof, hub
from specdec_openvino.sources.checkpoints import CheckpointFolder
from specdec_openvino.sources.export import Export
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specdec import Generator, ModelError
from specdec.models import HubAnswer, ModelSource
from specdec.plugins import load_plugins
from specdec.runtime.backend_choice import read_models
from specdec.testing import toy_tokenizer

PROMPTS = [[5, 9, 2, 5, 9], [7], [1, 2, 3, 1, 2, 3, 1, 2, 30, 31, 32, 33]]
TOKENIZER = toy_tokenizer(96)
GRAPH, WEIGHTS = "openvino_model.xml", "openvino_model.bin"
Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name("exported_llama.zip")) as archive:
        archive.extractall(tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specdec" / "openvino"


def move_into_hub_cache(folder: Path, cache: Path, name: str) -> Path:
    """Lay a folder's files out as huggingface_hub does; return the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / "0a1b"
    for place in (snapshot, repository / "blobs", repository / "refs"):
        place.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0a1b")
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = file.rename(repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot


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
    with Generator(str(folder), TOKENIZER, backend="openvino", **options) as generator:
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
    with Generator(str(folder), TOKENIZER, numerics="fast") as generator:  # the engine is found by itself
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


Spoil = Callable[[torch.Tensor], torch.Tensor]


def rolled(logits: torch.Tensor) -> torch.Tensor:
    return logits.roll(1)


def nan(logits: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, torch.nan)


@pytest.mark.parametrize(("spoil", "is_once"), [(rolled, False), (nan, False), (nan, True)])
def test_one_kind_of_wrong_passes_is_found(
    folder: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    is_once: bool,
) -> None:
    own = export_proof.walk

    def spoiled(target: Any) -> Any:
        walked = own(target)
        kind = walked.others[0].kind
        places = [place for place, found in enumerate(walked.others) if found.kind == kind]
        assert 3 <= len(places) < len(walked.others)
        for place in places[1:2] if is_once else places:
            found = walked.others[place]
            walked.others[place] = found._replace(logits=spoil(found.logits))
        kinds.append(kind)
        return walked

    kinds = list[str]()
    monkeypatch.setattr(export_proof, "walk", spoiled)
    with pytest.raises(ModelError, match=r"has other logits after its conversion.*; give its checkpoint") as refused:
        texts_of(folder)
    assert f" to OpenVINO: {kinds[0]} is off from its own by" in str(refused.value)
    assert not home.exists()


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def encrypted(contents: bytes) -> bytes:
    return (np.frombuffer(contents, np.uint8) ^ 0x5A).tobytes()


def changed(folder: Path, change: Callable[[ov.Model], object]) -> None:
    graph = ov.Core().read_model(folder / GRAPH)
    change(graph)
    ov.save_model(graph, folder / "changed.xml", compress_to_fp16=False)
    del graph  # which reads the file of weights
    for suffix in (".xml", ".bin"):
        (folder / f"changed{suffix}").rename((folder / GRAPH).with_suffix(suffix))


def with_two_outputs(graph: ov.Model) -> None:
    head = graph.get_results()[0].input_value(0).get_node()
    output = head.input_value(0)
    output.get_tensor().set_names({"hidden"})
    graph.add_results([ov.opset13.result(output)])


def without_attention(graph: ov.Model) -> None:
    for node in graph.get_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            node.output(0).replace(node.input_value(0))


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
    "another input": (
        lambda it: changed(it, lambda graph: graph.input("position_ids").set_names({"token_type_ids"})),
        r"specdec doesn't give \(token_type_ids\): give the checkpoint that it was exported from",
    ),
    "another output": (
        lambda it: changed(it, with_two_outputs),
        r"it has outputs besides logits \(hidden\): give the checkpoint that it was exported from",
    ),
    "no attention": (
        lambda it: changed(it, without_attention),
        r"its attention can't be paged \(.*\): give the checkpoint that it was exported from",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_exports_that_cannot_be_opened(folder: Path, damage: str) -> None:
    change, reason = DAMAGES[damage]
    change(folder)
    for backend in ("openvino", "auto"):
        with pytest.raises(ModelError, match=re.compile(f"can't load.*{reason}", re.DOTALL)):
            Generator(str(folder), TOKENIZER, backend=backend)


def test_another_dtype(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"dtype='bfloat16' is for checkpoints, .*'openvino:precision=bfloat16'"):
        Generator(str(folder), TOKENIZER, backend="openvino", dtype="bfloat16")


def test_what_torch_says_of_folders_without_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="It has an OpenVINO export: use backend='openvino'"):
        Generator(str(folder), TOKENIZER, backend="hf")
    (folder / GRAPH).rename(folder / "model.onnx")
    with pytest.raises(ModelError, match="It has an ONNX export, which specdec doesn't read: give the checkpoint"):
        Generator(str(folder), TOKENIZER, backend="hf")


def test_a_machine_with_a_gpu_runs_exports_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert OpenVINOBackend.declines(ModelSource(str(folder))) == ""
    passed_over = r"use backend='openvino'\. Backends passed over before torch: openvino: the model is to be on cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert OpenVINOBackend.declines(ModelSource(str(folder), "cuda")) == "the model is to be on cuda"
    with pytest.raises(ModelError, match=passed_over):
        next(read_models(load_plugins(), "auto", ModelSource(str(folder), "cuda"), TOKENIZER))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    assert OpenVINOBackend.declines(ModelSource("owner/model", "cuda")) == "the model is to be on cuda"


def test_an_export_in_the_hubs_cache_is_opened_by_its_name(
    folder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = list[str]()

    def answer(_: Any, name: str, **__: Any) -> None:
        requests.append(name)
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", answer)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    ids = torch.tensor([PROMPTS[0]])
    expected = checkpoint_of(folder).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8)
    snapshot = move_into_hub_cache(folder, tmp_path / "hub", "owner/llama-ov")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # torch couldn't load it there either
    with Generator("owner/llama-ov", TOKENIZER, numerics="fast") as generator:
        assert isinstance(generator.model, OpenVINOModel)
        result = generator.generate(PROMPTS[0], max_new_tokens=8, eos_token_id=())
        assert list(result.token_ids) == expected[0, len(PROMPTS[0]) :].tolist()
    assert requests == ["owner/llama-ov"]
    with pytest.raises(ModelError, match="It has an OpenVINO export: use backend='openvino'"):
        Generator("owner/llama-ov", TOKENIZER, backend="hf", device="cpu")
    origins = [loading._origin_of(ModelSource("owner/llama-ov"), TOKENIZER)]
    (snapshot / "model.safetensors").touch()  # a snapshot that gets its checkpoint later is converted anew
    origins.append(loading._origin_of(ModelSource("owner/llama-ov"), TOKENIZER))
    assert [type(origin) for origin in origins] == [Export, CheckpointFolder]
    assert len({origin.state("a device") for origin in origins}) == 2


def test_what_is_fetched_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_export = {file.name for file in folder.iterdir()}
    assert {GRAPH, WEIGHTS, "config.json"} < of_export
    of_export |= {"tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja"}
    others = {"openvino_tokenizer.xml", "openvino_tokenizer.bin", "model.onnx", "openvino/model.safetensors"}
    files = sorted(of_export | others)
    fetched, requests = set[str](), list[str]()

    def model_info(_: Any, name: str, **__: Any) -> SimpleNamespace:
        requests.append(name)
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)

    def fetch(_: str, allow_patterns: list[str], **__: Any) -> str:
        fetched.update(file for file in files for pattern in allow_patterns if fnmatch(file, pattern))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    with pytest.raises(ModelError, match="dtype='bfloat16' is for checkpoints, and 'owner/exported' is an OpenVINO"):
        loading._origin_of(ModelSource("owner/exported", dtype="bfloat16"), TOKENIZER)
    assert not fetched
    requests.clear()
    assert isinstance(loading._origin_of(ModelSource("owner/exported"), TOKENIZER), Export)
    assert fetched == of_export
    assert requests == ["owner/exported"]
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"it has no config\.json: copy the checkpoint's into a folder with its files"):
        loading._origin_of(ModelSource("owner/exported"), TOKENIZER)
    assert hub.is_name_of_export(ModelSource("owner/exported"))
    assert not hub.is_name_of_export(ModelSource("owner/exported", _known=[HubAnswer(is_offline=True)]))
    files.append("model.safetensors")
    assert not hub.is_name_of_export(ModelSource("owner/exported"))
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: 1 / 0)
    with pytest.raises(ModelError, match=r"'owner/exported' from the hub \(.*division.*\): check the connection"):
        hub.fetch_export("owner/exported", is_offline=False)
