"""Names that don't exist are answered with what was probably meant, wherever a user writes one."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from specdec import Generator, PluginError, RequestError, ToyModel
from specdec.errors import nearest
from specdec.plugins.registry import BrokenDistribution, load_plugins


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("propser", ["verifier", "proposer"], ["proposer"]),
        ("n", ["N", "W"], ["N"]),
        ("TOP_K", ["top_k", "top_p"], ["top_k"]),
        ("temp", ["top_k", "temperature"], ["temperature"]),
        ("colour", ["top_k", "seed"], []),
        ("x", ["xylophone"], []),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case(name: str, known: list[str], expected: list[str]) -> None:
    assert nearest(name, known) == expected


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("torch_dtype", "did you mean 'dtype'?"),
        ("device_map", "did you mean 'device'?"),
        ("strategy", "did you mean 'proposer'?"),
        ("propser", "did you mean 'proposer'?"),
        ("Backend", "did you mean 'backend'?"),
        ("max_batchsize", "did you mean 'max_batch_size'?"),
        ("torch_dtyp", "did you mean 'dtype'?"),
        ("assistant_model", "give proposer=DraftModelProposer(model=…)"),
        (
            "trust_remote_code",
            "load the model yourself with AutoModelForCausalLM.from_pretrained, and pass the object",
        ),
        ("max_new_tokens", "it is a setting of generate: generator.generate(prompt, …)"),
        ("temperatur", "did you mean 'temperature'? it is a setting of generate: generator.generate(prompt, …)"),
        ("zzz", "allowed: tokenizer, proposer, verifier, numerics, weights, mask, backend, device, dtype, "),
    ],
)
def test_an_unknown_argument_of_a_generator(given: str, answer: str) -> None:
    options: Any = {given: 1}
    with pytest.raises(RequestError, match=re.escape(f"Generator: unknown name {given!r} ({answer}")):
        Generator(ToyModel.random(), **options)


def test_background_work_as_text_is_refused() -> None:
    given: Any = "false"
    with pytest.raises(RequestError, match="background_work='false': give True or False"):
        Generator(ToyModel.random(), background_work=given)


@pytest.mark.parametrize("name", ["ngram", "ngrams", "n-gram", "n_gram", "N-grams"])
def test_the_name_of_prompt_lookup_in_other_engines(name: str) -> None:
    with pytest.raises(PluginError, match=f"unknown proposer '{name}': did you mean prompt_lookup\\?"):
        load_plugins().make("proposers", name)


def test_each_unknown_argument_is_named() -> None:
    options: Any = {"strategy": "jacobi", "device_map": "auto"}
    with pytest.raises(
        RequestError, match=r"'strategy' \(did you mean 'proposer'\?\); unknown name 'device_map' \(did"
    ):
        Generator("no/such", **options)


def stream(generator: Generator, **settings: Any) -> None:
    next(generator.stream([1], **settings))


def of_one(generator: Generator, **settings: Any) -> None:
    generator.generate([[1]], each=[settings])


def of_refusals(generator: Generator, **settings: Any) -> None:
    generator.refusals([[1]], **settings)


@pytest.mark.parametrize("call", [Generator.generate, stream, of_one, of_refusals])
@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("strategy", "did you mean 'proposer'?"),
        ("propser", "did you mean 'proposer'? it is an argument of generate itself"),
        ("max_tokens", "did you mean 'max_new_tokens'?"),
        ("max_new_token", "did you mean 'max_new_tokens'?"),
        ("stop_sequences", "did you mean 'stop'?"),
        ("temp", "did you mean 'temperature'?"),
        ("do_sampl", "did you mean 'do_sample'? it is an argument of generate itself"),
        ("numerics", "it belongs to the generator: Generator(model, numerics=…)"),
        ("torch_dtype", "it belongs to the generator: Generator(model, dtype=…)"),
    ],
)
def test_an_unknown_setting(call: Callable[..., object], given: str, answer: str) -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    arguments = ([1],) if call is Generator.generate else ()
    with pytest.raises(RequestError, match=re.escape(f"settings refused: unknown name {given!r} ({answer})")):
        call(generator, *arguments, **{given: 1})


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("lookahead:n=5", "unknown name 'n' (did you mean 'N'?)"),
        ("jacobi:N=5", "unknown name 'N' (did you mean 'n'?)"),
        ("prompt_lookup:max_ngrams=2", "unknown name 'max_ngrams' (did you mean 'max_ngram'?)"),
        ("draft_model:layer=2", "unknown name 'layer' (did you mean 'layers'?)"),
        ("token_recycling:save_to=m", "unknown name 'save_to' (`token_recycling` learns from request to request by "),
        ("auto+token_recycling:path=m", "to draft from a file, add `datastore:path=…`)"),
        ("suffix:num_remembered=9", "(`token_recycling` learns from earlier answers; to draft from files, add"),
        ("token_recycling:vocabulary_seconds=5", "(`specdec prepare` or generator.prepare() does this once"),
    ],
)
def test_an_unknown_option_of_a_plug_in(given: str, answer: str) -> None:
    with pytest.raises(PluginError, match=re.escape(answer)):
        Generator(ToyModel.random(), proposer=given)


def test_a_name_of_another_kind_of_plug_in() -> None:
    with pytest.raises(PluginError, match=r"unknown proposer 'match': .*there is a verifier of that name"):
        Generator(ToyModel.random(), proposer="match")
    with pytest.raises(PluginError, match=r"unknown verifier 'jacobi': .*there is a proposer of that name"):
        Generator(ToyModel.random(), verifier="jacobi")


@pytest.mark.parametrize("given", ["openvino", "openvino:kv=u8", "opnvino"])
def test_an_engine_of_the_repository_that_is_not_installed(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [])
    command = r"openvino is a plug-in that isn't installed: pip install \./plugins/specdec-openvino, in a copy"
    with pytest.raises(PluginError, match=command) as caught:
        Generator("no/such", backend=given)
    assert ("did you mean openvino?" in str(caught.value)) == (given == "opnvino")


@pytest.mark.parametrize(
    ("kind", "given", "distribution"),
    [
        ("proposer", "successor", "specdec-example"),
        ("proposer", "datastore:path=my.index", "specdec-datastore"),
        ("mask", "split:least_prefix=1", "specdec-flash"),
        ("backend", "distributed:split=branches", "specdec-distributed"),
    ],
)
def test_a_plug_in_of_the_repository_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, kind: str, given: str, distribution: str
) -> None:
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [])
    name = given.partition(":")[0]
    with pytest.raises(PluginError, match=rf"{name} is a plug-in .*: pip install \./plugins/{distribution}, in a"):
        Generator(ToyModel.random(), **{kind: given})  # type: ignore[arg-type]


def test_what_is_installed_and_broken_is_not_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [])
    registry = load_plugins()
    registry.broken.append(BrokenDistribution("specdec-openvino", "it needs OpenVINO of 2026.4 or later"))
    with pytest.raises(PluginError, match="specdec-openvino is installed but broken: it needs OpenVINO") as caught:
        registry.backend("openvino")
    assert "pip install" not in str(caught.value)
