"""Loading by a hub's name: without a network the cache serves, and what isn't there is said at once."""

from typing import Any

import huggingface_hub
import pytest
import transformers
import transformers.utils
from huggingface_hub.errors import HFValidationError

from specdec import ModelError
from specdec.loading import load_pretrained, load_pretrained_tokenizer, must_be_cached


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
