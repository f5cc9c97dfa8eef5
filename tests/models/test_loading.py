"""Loading by name: of a hub the cache serves without a network, GGUF files load, and what isn't there is said."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import ModelInfo
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

from specdec import Generator, ModelError, demo
from specdec.apps.cli.model_choice import ModelChoice
from specdec.models import gguf_file
from specdec.models.checkpoint_files import remedy_for_files
from specdec.models.hub import HubAnswer
from specdec.models.loading import ModelSource, load_pretrained, load_pretrained_tokenizer
from tests.support import families
from tests.support.byte_tokenizer import trained
from tests.support.plain import decode_model


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of transformers was to look at local files alone."""
    calls = list[bool]()

    def from_pretrained(*_: Any, local_files_only: bool = False, **__: Any) -> None:
        calls.append(local_files_only)
        raise OSError("that is all")

    for loader in (transformers.AutoConfig, transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        monkeypatch.setattr(loader, "from_pretrained", from_pretrained)
    return calls


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("load", [load_pretrained, load_pretrained_tokenizer])
def test_a_name_that_is_nowhere_is_said_without_trying_again(load: Any, asked: list[bool]) -> None:
    told = "the hub can't be reached .ConnectionError: no route.. Check the connection, or"
    with pytest.raises(ModelError, match=told) as caught:
        load("owner/model-that-is-nowhere")
    assert asked == []
    error = caught.value
    assert (error.__cause__, error.__suppress_context__) == (None, True), "the connection's own traceback isn't shown"


@pytest.mark.parametrize("load", [Generator, load_pretrained, load_pretrained_tokenizer])
def test_the_names_are_not_those_of_folders(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "smollm2"):
        (tmp_path / name).mkdir()
        with pytest.raises(ModelError, match="has no"):
            load(f"./{name}")
    with pytest.raises(ModelError, match=r"^smollm2 has not been fetched: run `make real-model`"):
        load("smollm2")
    load("demo")


def test_a_model_of_ones_own_in_a_folder_of_that_name_keeps_its_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").write_text("{}")
    own = str(Path(demo.__file__).parent / "model")
    for source in (ModelSource.of("demo"), ModelChoice("demo")._checked_source()):
        assert (source.name, source.dtype) == (own, "float32")
    for source in (ModelSource.of("./demo"), ModelChoice("./demo")._checked_source()):
        assert (source.name, source.dtype) == ("./demo", "auto")


def test_the_names_of_the_command_line_are_models_in_python(
    built_in: tuple[Any, Any], copy_as_smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    expected = Generator(*built_in, backend="hf").generate("# heapq", max_new_tokens=6)
    for name, called in (("demo", str(Path(demo.__file__).parent / "model")), ("smollm2", "SmolLM2-135M-Instruct")):
        with Generator(name, dtype="float32", backend="hf") as generator:
            assert generator.generate("# heapq", max_new_tokens=6).token_ids == expected.token_ids
            assert generator.model.name_or_path == called
            assert generator.model.dtype == torch.float32
    with Generator("demo", backend="hf") as generator:
        assert generator.model.dtype == torch.float32, "as demo.load and the command line load it"
        drafts = generator.generate("# heapq", max_new_tokens=6, proposer="draft_model:model=smollm2")
        assert drafts.token_ids == expected.token_ids
    assert Generator("smollm2", dtype="bfloat16", backend="hf").model.dtype == torch.bfloat16


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("load", [load_pretrained, load_pretrained_tokenizer])
@pytest.mark.parametrize("config", ["config.json", "adapter_config.json"])
def test_without_a_network_the_cache_serves(
    load: Any, config: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hf_hub_download(name: str, file: str, local_files_only: bool) -> str:
        if (name, file, local_files_only) != ("owner/model", config, True):
            raise LocalEntryNotFoundError(file)
        return file

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    if (load, config) == (load_pretrained, "adapter_config.json"):
        monkeypatch.setattr("specdec.models.adapter_files.find_spec", lambda _: None)
        with pytest.raises(ModelError, match="it is an adapter, which needs peft"):
            load("owner/model")
        return
    with pytest.raises(ModelError, match="that is all"):
        load("owner/model")
    assert asked == [True]


ANSWERED: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (HFValidationError("Repo id must use alphanumeric chars.\nMore"), "it can't be a hub name: Repo id must use"),
        (RepositoryNotFoundError("404", response=ANSWERED), "the hub shows you no model of that name. Check the name"),
    ],
)
def test_a_name_that_the_hub_lacks_is_refused_before_transformers(
    answer: Exception, told: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        raise answer

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(ModelError, match=re.escape(f"there is no such folder here, and {told}")):
        load_pretrained("owner/model")
    assert asked == []


@pytest.mark.parametrize("answer", [None, GatedRepoError("403", response=ANSWERED)])
def test_a_hub_that_answers_is_asked_by_transformers(
    answer: Exception | None, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> ModelInfo:
        if answer is not None:
            raise answer
        return ModelInfo(id="owner/model")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(ModelError, match="that is all"):
        load_pretrained("owner/model")
    assert asked == [False]


@pytest.mark.usefixtures("unreachable")
def test_a_folder_needs_no_hub(tmp_path: Any) -> None:
    assert HubAnswer.of(str(tmp_path)) == HubAnswer()


@pytest.fixture(name="gguf", scope="module")
def _gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing in it but a GGUF file."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from tests.demo import tiny_gguf

    path = tmp_path_factory.mktemp("quantised") / "Tiny.Q4_1.gguf"
    tiny_gguf.write(path)
    return path


def test_a_gguf_file_is_loaded_as_transformers_loads_it(gguf: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name).eval()
    generator = Generator(str(gguf), proposer="prompt_lookup")
    assert generator.shapes.dtype == torch.float32
    ids = [3, 4, 5, 3, 4, 5, 3]
    expected = decode_model(theirs, ids, 8, None, eos=())
    assert list(generator.generate(ids, max_new_tokens=8, eos_token_id=()).token_ids) == expected
    assert generator.tokenizer("abc")["input_ids"] == load_pretrained_tokenizer(str(gguf))("abc")["input_ids"]
    assert next(load_pretrained(str(gguf), dtype="bfloat16")[0].parameters()).dtype == torch.bfloat16


def test_a_folder_with_a_gguf_file_alone_names_it(gguf: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(f"It has a GGUF file: give '{gguf}'")):
        load_pretrained(str(gguf.parent))


@pytest.mark.parametrize("load", [load_pretrained, load_pretrained_tokenizer, Generator])
def test_a_gguf_file_without_the_libraries_names_the_command(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.GGUF"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match=r"a GGUF file is read with gguf and accelerate: pip install gguf$"):
        load(str(path))


@pytest.mark.parametrize("load", [load_pretrained, load_pretrained_tokenizer, Generator])
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("model.safetensors", "it is a file. Give the folder that has the model's config.json"),
        ("pytorch_model.bin", "it is a file. Give the folder"),
        ("nowhere.gguf", "there is no such file. Give the path of an existing GGUF file"),
        ("nowhere", "there is no such folder"),
    ],
)
def test_a_path_without_a_model_is_answered_by_what_it_is(load: Any, name: str, fault: str, tmp_path: Path) -> None:
    if not name.startswith("nowhere"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=re.escape(fault)):
        load(str(tmp_path / name))


def test_a_damaged_gguf_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF and then nothing")
    with pytest.raises(ModelError, match=r"can't load '.*model\.gguf': .*") as caught:
        load_pretrained(str(tmp_path / "model.gguf"))
    assert "\n" not in str(caught.value)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's folder without a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    families.make(*families.TREES["llama"]).save_pretrained(folder)
    return folder


def test_a_folder_without_a_tokenizer_says_so_with_the_remedy(folder: Any, tmp_path: Any) -> None:
    for load in (load_pretrained, load_pretrained_tokenizer):
        with pytest.raises(ModelError) as caught:
            load(str(folder))
        assert str(caught.value) == (
            f"'{folder}' has no tokenizer: save the model's into the folder with "
            f"tokenizer.save_pretrained('{folder}'), or pass it: Generator('{folder}', tokenizer)"
        )
    assert load_pretrained(str(folder), trained())[1] is trained()
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "their/base"}')
    with pytest.raises(ModelError, match="has no tokenizer: save its base model's into the folder"):
        load_pretrained_tokenizer(str(tmp_path))


def test_an_adapter_without_peft_says_what_to_install(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.models.adapter_files.find_spec", lambda _: None)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "their/base"}')
    with pytest.raises(ModelError, match="it is an adapter, which needs peft: pip install peft"):
        load_pretrained(str(tmp_path))


@pytest.mark.parametrize("damage", [{"tokenizer.json": "{"}, {"tokenizer_config.json": '{"tokenizer_class": "None"}'}])
def test_the_reason_of_a_damaged_tokenizer_is_whole(damage: dict[str, str], tmp_path: Any) -> None:
    for name, text in damage.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match="can't load the tokenizer of") as caught:
        load_pretrained_tokenizer(str(tmp_path))
    assert not re.search(r"[:,] ?\. Give", str(caught.value))
    assert "of: ." not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "remedy"), [(None, "install the package specdec-openvino"), (object(), "use backend='openvino'")]
)
def test_an_openvino_export_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: object, remedy: str
) -> None:
    (tmp_path / "openvino_model.xml").touch()
    monkeypatch.setattr("specdec.models.checkpoint_files.find_spec", lambda _: spec)
    assert remedy_for_files(str(tmp_path)).startswith(f"It has an OpenVINO export: {remedy}")
