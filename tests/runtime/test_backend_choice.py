"""A model given by name: an installed engine that prefers to read it does so, and torch does wherever it can't."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import ModelInfo

from specdec import (
    Generator,
    LookaheadProposer,
    ModelError,
    RequestError,
    compare,
)
from specdec.apps.comparison.tune import Tuner
from specdec.models.loading import ModelSource, load_pretrained
from specdec.plugins import registry as plugins
from specdec.runtime.backend_choice import read_models, why_torch
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.draft_model.proposer import DraftModelProposer
from specdec.testing import toy_tokenizer
from tests.support import families
from tests.support.plain import decode_model
from tests.support.preferred_engine import Engine, install

PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]
TOKENIZER = toy_tokenizer(families.VOCAB)
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": ()}


@pytest.fixture(name="heard")
def _heard() -> list[ModelSource]:
    return []


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> str:
    families.make(*families.TREES["llama"]).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


Install = Callable[..., None]


@pytest.fixture(name="install")
def _installing(monkeypatch: pytest.MonkeyPatch, heard: list[ModelSource]) -> Install:
    return partial(install, monkeypatch, heard)


def quietly(name: str, **options: Any) -> Generator:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Generator(name, TOKENIZER, **options)


def text_of(generator: Generator) -> list[int]:
    return list(generator.generate(PROMPT, **SETTINGS).token_ids)


def plain(folder: str, dtype: Any = "auto") -> list[int]:
    return decode_model(load_pretrained(folder, TOKENIZER, dtype)[0], PROMPT, 6, None, eos=())


def test_a_folder_is_read_by_the_engine_and_the_first_result_says_so(install: Install, folder: str) -> None:
    install()
    generator = quietly(folder)
    assert isinstance(generator.model, Engine)
    first, second = (generator.generate(PROMPT, **SETTINGS) for _ in range(2))
    assert first.notes[0] == "decoding with swift; backend hf decodes with torch"
    assert not [note for note in second.notes if "swift" in note]
    assert list(first.token_ids) == plain(folder)


def test_the_dtype_is_the_checkpoints_own(install: Install, tmp_path: Path) -> None:
    install()
    families.make(*families.TREES["llama"]).bfloat16().save_pretrained(tmp_path)
    assert quietly(str(tmp_path)).shapes.dtype == torch.bfloat16


def test_a_path_object_is_a_name_as_well(install: Install, folder: str) -> None:
    install()
    assert isinstance(quietly(Path(folder)).model, Engine)  # type: ignore[arg-type]


def test_without_an_engine_nothing_is_said(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [])
    result = quietly(folder).generate(PROMPT, **SETTINGS)
    assert list(result.token_ids) == plain(folder)
    assert not [note for note in result.notes if "decoding with" in note]


def test_hf_and_a_model_object_stay_with_torch(install: Install, heard: list[ModelSource], folder: str) -> None:
    install()
    model, _ = load_pretrained(folder, TOKENIZER)
    for generator in (quietly(folder, backend="hf"), Generator(model, TOKENIZER)):
        assert not isinstance(generator.model, Engine)
        assert not [note for note in generator.generate(PROMPT, **SETTINGS).notes if "swift" in note]
    assert heard == []


@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_a_start_requests_the_files_of_a_hub_name_once(
    install: Install, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(declines=lambda source: f"the hub has {', '.join(source.hub_answer().files)}")
    names, model = list[str](), families.make(*families.TREES["llama"])

    def model_info(_: Any, name: str, **__: Any) -> ModelInfo:
        names.append(name)
        return ModelInfo(id=name, siblings=[{"rfilename": "config.json"}])

    loaders = {"AutoConfig": model.config, "AutoModelForCausalLM": (model, {"missing_keys": []})}
    loaders["AutoTokenizer"] = TOKENIZER
    for loader, loaded in loaders.items():
        monkeypatch.setattr(getattr(transformers, loader), "from_pretrained", lambda *_, loaded=loaded, **__: loaded)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    loaded = next(read_models(plugins.load_plugins(), backend, ModelSource("owner/model"), None))
    assert (loaded.model, loaded.tokenizer) == (model, TOKENIZER)
    assert names == ["owner/model"]
    assert [*loaded.passed_over.values()] == ["the hub has config.json"] * (backend == "auto")


def test_what_declines_is_passed_over_with_the_reason(install: Install, folder: str) -> None:
    install(declines="it is Tuesday")
    generator = quietly(folder)
    assert not isinstance(generator.model, Engine)
    assert generator.generate(PROMPT, **SETTINGS).notes[0] == "decoding with torch, not with swift: it is Tuesday"


@pytest.mark.parametrize(
    "failing",
    [
        {"read": ModelError("it can't be converted: gather is missing")},
        {"load": ModelError("it can't be converted: gather is missing")},
        {"read": ZeroDivisionError("by nought")},
        {"load": MemoryError("no room")},
    ],
    ids=str,
)
def test_an_engine_that_fails_gives_way_to_torch_and_the_reason_is_said_once(
    install: Install, folder: str, failing: dict[str, Exception]
) -> None:
    install(**failing)
    with pytest.warns(UserWarning, match="decoding with torch, not with swift: ") as told:
        generator = Generator(folder, TOKENIZER)
    (error,) = failing.values()
    assert [str(error) in str(each.message) for each in told] == [True]
    assert told[0].filename == __file__
    result = generator.generate(PROMPT, **SETTINGS)
    assert not [note for note in result.notes if "swift" in note]
    assert list(result.token_ids) == plain(folder)


def test_a_check_that_raises_is_a_reason_too(install: Install, folder: str) -> None:
    install(declines=lambda _: [].pop())
    note = quietly(folder).generate(PROMPT, **SETTINGS).notes[0]
    assert note == "decoding with torch, not with swift: IndexError: pop from empty list"


@pytest.mark.parametrize("engine", [{"read": ModelError("not by me")}, {"declines": "not by me"}], ids=["tried", "not"])
def test_a_folder_that_torch_can_not_load_either_raises_both_reasons(
    install: Install, tmp_path: Path, engine: dict[str, Any]
) -> None:
    install(**engine)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"can't load .*safetensors.*Backends passed over before torch: swift: not by"):
        quietly(str(tmp_path))


def test_a_reason_that_torch_gives_too_is_not_repeated(install: Install, tmp_path: Path) -> None:
    install(declines="it has no config.json")
    with pytest.raises(ModelError, match=r"it has no config\.json") as caught:
        quietly(str(tmp_path))
    assert str(caught.value).count("no config.json") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": "packed"}, "weights='packed' applies to torch's layers"),
        ({"weights": "stock"}, "weights='stock' applies to torch's layers"),
        ({"mask": "dense"}, "a mask applies to torch's attention"),
        ({"proposer": "draft_model:layers=1"}, "DraftModelProposer drafts with the model's own layers"),
        (
            {"proposer": "prompt_lookup + draft_model:layers=1"},
            "MergedProposer drafts with the model's own layers",
        ),
    ],
    ids=str,
)
def test_what_needs_torchs_layers_is_torchs(
    install: Install, heard: list[ModelSource], folder: str, options: dict[str, Any], reason: str
) -> None:
    install()
    generator = Generator(folder, TOKENIZER, **options)
    assert not isinstance(generator.model, Engine)
    assert generator._binding.loaded.note == f"decoding with torch, not with swift: {reason}"
    assert heard == []


def test_a_kernel_is_of_torchs_layers_as_well() -> None:
    assert why_torch("onednn", None, []) == "weights='onednn' applies to torch's layers"
    assert why_torch("auto", None, [LookaheadProposer()]) == ""


def test_a_draft_model_of_its_own_needs_none(install: Install, folder: str) -> None:
    install()
    generator = quietly(folder, proposer=DraftModelProposer(model=folder, tokenizer=TOKENIZER, num_tokens=2))
    assert isinstance(generator.model, Engine)
    assert text_of(generator) == plain(folder)
    assert not MergedProposer([AutoregressiveProposer()]).reads_layers


def test_an_engine_is_asked_about_the_device_and_dtype_that_were_given(
    install: Install, heard: list[ModelSource], folder: str
) -> None:
    install()
    generator = quietly(folder, device="cpu", dtype=torch.float64, numerics="fast")
    assert heard == [ModelSource(folder, "cpu", "float64")]
    assert generator.shapes.dtype == torch.float64
    assert text_of(generator) == plain(folder, "float64")


def test_a_gpu_is_taken_where_torch_has_one(
    install: Install, heard: list[ModelSource], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    install(declines=lambda source: f"it goes to {source.torch_device}")
    with pytest.raises(ModelError, match=r"can't be moved to cuda: .*Give device='cpu'"):
        quietly(folder)
    assert [source.device for source in heard] == [""]
    assert quietly(folder, device="cpu").shapes.device.type == "cpu"
    assert [source.torch_device for source in heard] == ["cuda", "cpu"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"device": "cuda"},
            r"device='cuda' is for a model given by its path or hub name, and this Llama.*model\.to\('",
        ),
        ({"dtype": "bfloat16"}, r"dtype='bfloat16' is for a model given by its path.*from_pretrained\(…, dtype=…\)"),
        ({"dtype": torch.float32, "backend": "hf"}, "dtype=torch.float32 is for a model given by its path"),
    ],
    ids=str,
)
def test_a_loaded_model_has_its_device_and_dtype(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        Generator(families.make(*families.TREES["llama"]), **options)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"dtype": "int4"}, "dtype='int4': it must be bfloat16, float16, float32 or float64"),
        ({"dtype": "bf16"}, "dtype='bf16': did you mean 'bfloat16'"),
        ({"dtype": "flaot32"}, "dtype='flaot32': did you mean 'float32'"),
        ({"dtype": torch.int8}, "dtype=torch.int8: it must be bfloat16"),
        ({"device": "abacus"}, "device='abacus' can't be used here: torch has no device of that name: give 'cpu'"),
        ({"device": "gpu"}, "device='gpu' can't be used here: torch has no device of that name, did you mean 'cuda'"),
        ({"device": "meta"}, "device='meta' can't be used here"),
        ({"device": 3.5}, "device=3.5 can't be used here"),
    ],
    ids=str,
)
def test_a_device_and_a_dtype_that_can_not_be_had_are_refused(folder: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        Generator(folder, TOKENIZER, **options)


def test_a_device_that_torch_was_not_built_for_is_refused_with_the_build(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*_: Any, **__: Any) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")  # torch's own words

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(RequestError, match="CUDA enabled: install a build of torch for it, or give device='cpu'"):
        Generator(folder, TOKENIZER, device="cuda")


def test_a_comparison_takes_an_engine_that_all_of_its_strategies_can_have(
    install: Install, heard: list[ModelSource], folder: str
) -> None:
    install()
    common: dict[str, Any] = {"tokenizer": TOKENIZER, "repeats": 1, "max_new_tokens": 4}
    assert compare(folder, {"a": "jacobi"}, [PROMPT], **common).plan.strategies
    assert len(heard) == 1
    compare(folder, {"a": "jacobi", "b": "draft_model:layers=1"}, [PROMPT], **common)
    Tuner(folder, "draft_model", [PROMPT], tokenizer=TOKENIZER, space={"layers": [1]})
    assert len(heard) == 1
