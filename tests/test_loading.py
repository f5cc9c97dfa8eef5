"""Loading by a hub's name: without a network the cache serves, and what isn't there is said at once."""

import re
from typing import Any

import huggingface_hub
import pytest
import transformers
import transformers.utils
from huggingface_hub.errors import HFValidationError

from specdec import ModelError
from specdec.loading import load_pretrained, load_pretrained_tokenizer, must_be_cached
from tests import families
from tests.byte_tokenizer import trained


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

    for loader in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        monkeypatch.setattr(loader, "from_pretrained", from_pretrained)
    return calls


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("load", [load_pretrained, load_pretrained_tokenizer])
def test_a_name_that_is_nowhere_is_said_without_trying_again(load: Any, asked: list[bool]) -> None:
    told = "it isn't in the hub's cache, and the hub can't be reached .ConnectionError: no route.. Give a folder"
    with pytest.raises(ModelError, match=told):
        load("owner/model-that-is-nowhere")
    assert asked == []


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("load", [load_pretrained, load_pretrained_tokenizer])
def test_without_a_network_the_cache_serves(load: Any, asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.utils, "cached_file", lambda *_, **__: "config.json")
    with pytest.raises(ModelError, match="that is all"):
        load("owner/model")
    assert asked == [True]


@pytest.mark.parametrize("answer", [None, HFValidationError("not a name")])
def test_a_hub_that_answers_is_asked_by_transformers(
    answer: Exception | None, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(ModelError, match="that is all"):
        load_pretrained("owner/model")
    assert asked == [False]


@pytest.mark.usefixtures("unreachable")
def test_a_folder_needs_no_hub(tmp_path: Any) -> None:
    assert not must_be_cached(str(tmp_path))


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
    monkeypatch.setattr("specdec.loading.find_spec", lambda _: None)
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
