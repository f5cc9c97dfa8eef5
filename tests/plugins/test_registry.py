"""Plug-ins: found, checked when they register, and configured by a string; a fault names who and what."""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import Field

from specdec import (
    Drafter,
    DraftModelProposer,
    Generator,
    JacobiProposer,
    LookaheadProposer,
    ModelError,
    PluginError,
    PromptLookupProposer,
    Proposer,
    Request,
    ToyModel,
    compare,
    hookimpl,
)
from specdec.apps.comparison.tune import Tuner
from specdec.apps.pictures.trace import Recorder
from specdec.backends.base import BackendOptions, Examination
from specdec.backends.toy import ToyBackend
from specdec.masks.dense import DenseCompiler
from specdec.models.loading import ModelSource
from specdec.plugins.options import options_of
from specdec.plugins.registry import Registry, load_plugins
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.testing import check_proposer
from specdec.verifiers.match import MatchVerifier
from specdec.verifiers.typical import TypicalVerifier
from tests.support.entry_points import FakeEntryPoint


class Mine(Proposer):
    """A third party's strategy, with an option of each kind."""

    size: int = Field(3, ge=1)
    share: float = 0.5
    eager: bool = False
    mode: str = "plain"
    limit: int | None = 7

    def start(self, request: Request) -> Drafter:
        raise NotImplementedError


class WithPath(Mine):
    """A strategy with a constructor of its own."""

    path: str

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(path=path, **options)


class Unfinished(Proposer):
    """``start`` is missing."""


def offering(mapping: object) -> Callable[[], object]:
    @hookimpl
    def specdec_proposers() -> object:
        return mapping

    return specdec_proposers


def module_offering(mapping: object) -> SimpleNamespace:
    return SimpleNamespace(specdec_proposers=offering(mapping))


@pytest.fixture(name="registry")
def _registry() -> Registry:
    made = Registry()
    made.register(module_offering({"mine": Mine, "with_path": WithPath}), "mine-dist")
    return made


def refusal(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(PluginError) as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("cls", "values", "options", "remedy"),
    [
        (LookaheadProposer, (5, 7, 7), {}, "N=5, W=7, G=7"),
        (LookaheadProposer, (7,), {"N": 3}, "W=7, N=3"),
        (DraftModelProposer, (object(), "path"), {}, "model=…, tokenizer='path'"),
        (TypicalVerifier, (0.1,), {}, "epsilon=0.1"),
        (Mine, (2,), {}, "size=2"),
    ],
)
def test_options_without_names_are_answered_with_their_names(
    cls: Any, values: tuple[Any, ...], options: dict[str, Any], remedy: str
) -> None:
    told = refusal(lambda: cls(*values, **options))
    assert told == f"{cls.__name__} takes options by name: {cls.__name__}({remedy})"


def test_more_values_than_options_are_answered_with_all_options() -> None:
    assert refusal(MatchVerifier, 1) == "MatchVerifier takes options by name alone, and has none"
    assert refusal(JacobiProposer, 4, True, 5) == "JacobiProposer takes options by name alone, and has n, noise_aware"


def installed(monkeypatch: pytest.MonkeyPatch, *entry_points: FakeEntryPoint) -> Registry:
    """The registry of a machine with these third parties."""

    def found(group: str) -> list[FakeEntryPoint]:
        return list(entry_points) if group == "specdec" else []

    monkeypatch.setattr("specdec.plugins.names.entry_points", found)
    return load_plugins()


def test_the_built_ins_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(monkeypatch)
    found = {
        kind: {plugin.name: plugin.cls for plugin in registry.of_kind(kind)} for kind in ("proposers", "verifiers")
    }
    expected = {
        "autoregressive": AutoregressiveProposer,
        "jacobi": JacobiProposer,
        "lookahead": LookaheadProposer,
        "prompt_lookup": PromptLookupProposer,
    }
    assert expected.items() <= found["proposers"].items()
    assert "match" in found["verifiers"]
    assert "dense" in {plugin.name for plugin in registry.of_kind("masks")}
    assert {"hf", "toy"} <= {plugin.name for plugin in registry.of_kind("backends")}
    assert {plugin.distribution for plugin in registry.plugins} == {"specdec"}
    assert registry.broken == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mine", Mine()),
        ("mine:", Mine()),
        ("mine:size=5", Mine(size=5)),
        (" mine : size = 5 , mode = fast ", Mine(size=5, mode="fast")),
        ("mine:size=5,,share=0.25,", Mine(size=5, share=0.25)),
        ("mine:share=1e-3", Mine(share=0.001)),
        ("mine:eager=true", Mine(eager=True)),
        ("mine:eager=True", Mine(eager=True)),
        ("mine:eager=False,limit=None", Mine(limit=None)),
        ("mine:limit=null", Mine(limit=None)),
        ('mine:mode="a=b"', Mine(mode="a=b")),
        ("mine:mode=a=b", Mine(mode="a=b")),
        ("mine:mode=", Mine(mode="")),
        ("mine:mode=12,size=5", Mine(mode="12", size=5)),
        ("with_path:path=12", WithPath("12")),
        ("with_path:path=12,size=5", WithPath("12", size=5)),
    ],
)
def test_a_string_names_a_plug_in_with_its_options(registry: Registry, given: str, expected: Mine) -> None:
    assert registry.make("proposers", given) == expected


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("mine:size", "'mine:size': 'size' is not of the form key=value (example: lookahead:N=5,W=15,G=15)"),
        ("mine:=5", "'mine:=5': '=5' is not of the form key=value (example: lookahead:N=5,W=15,G=15)"),
        ("mine:size=1,size=2", "'mine:size=1,size=2': size is given twice"),
        (
            "mine:length=5",
            "options of proposer 'mine' refused: unknown name 'length' (allowed: size, share, eager, mode, limit)",
        ),
        (
            "mine:size=0",
            "options of proposer 'mine' refused: size=0: input should be greater than or equal to 1",
        ),
        (
            "mine:size=big,eager=perhaps",
            "options of proposer 'mine' refused: size='big': input should be a valid integer, unable to parse string "
            "as an integer; eager='perhaps': input should be a valid boolean, unable to interpret input",
        ),
        (
            "with_path:path=a,size=0",
            "options of proposer 'with_path' refused: size=0: input should be greater than or equal to 1",
        ),
    ],
)
def test_options_that_can_not_be_honoured_are_refused_with_what_is_allowed(
    registry: Registry, given: str, fault: str
) -> None:
    assert refusal(registry.make, "proposers", given) == fault


def test_an_option_set_that_contradicts_itself_is_refused_in_the_plug_ins_words() -> None:
    assert refusal(load_plugins().make, "proposers", "prompt_lookup:min_ngram=5") == (
        "options of proposer 'prompt_lookup' refused: min_ngram=5 is above max_ngram=3"
    )


def test_a_misspelt_name_is_refused_with_the_nearest_ones() -> None:
    message = refusal(load_plugins().make, "proposers", "lookahed:N=5")
    assert message.startswith("unknown proposer 'lookahed': did you mean lookahead? installed: auto, autoregressive, ")
    for kind, given, meant in (
        ("proposers", "eagel", "did you mean eagle or eagle3 or p_eagle? "),
        ("proposers", "ngram", "did you mean prompt_lookup? "),
        ("backends", "torch", "did you mean hf? "),
        ("proposers", "banana", ""),
        ("proposers", "tree", ""),
        ("proposers", "speculative", ""),
        ("verifiers", "greedy", ""),
        ("verifiers", "§", ""),
        ("proposers", "lookahead,N=5", "options follow a colon, lookahead:N=5; "),
        ("proposers", "lookahead(N=5, W=3)", "options follow a colon, lookahead:N=5, W=3; "),
    ):
        message = refusal(load_plugins().make, kind, given)
        assert message.startswith(f"unknown {kind[:-1]} {given!r}: {meant}installed: ")
    for given in ("", "auto+"):
        assert refusal(load_plugins().make, "proposers", given).startswith("the proposer's name is empty; installed: ")


def test_an_object_of_the_contract_is_taken_as_it_is_and_another_refused(registry: Registry) -> None:
    mine = Mine(size=9)
    assert registry.make("proposers", mine) is mine
    assert refusal(registry.make, "proposers", 5) == ("proposer=5: give a Proposer or a string such as 'mine'")


@pytest.mark.parametrize(
    ("kind", "given", "fault"),
    [
        (
            "proposers",
            LookaheadProposer,
            "proposer=LookaheadProposer is a class, not an object; call it: LookaheadProposer()",
        ),
        ("verifiers", MatchVerifier, "verifier=MatchVerifier is a class, not an object; call it: MatchVerifier()"),
        ("masks", DenseCompiler, "mask=DenseCompiler is a class, not an object; call it: DenseCompiler()"),
    ],
)
def test_a_class_in_place_of_an_object_is_refused_with_the_call(kind: str, given: type, fault: str) -> None:
    assert refusal(load_plugins().make, kind, given) == fault
    assert refusal(lambda: Generator(ToyModel.random(), **{kind[:-1]: given})) == fault


def test_a_class_of_another_contract_is_not_told_to_be_called() -> None:
    assert refusal(load_plugins().make, "proposers", MatchVerifier) == (
        "proposer=<class 'specdec.verifiers.match.MatchVerifier'>: give a Proposer or a string such as 'auto'"
    )


def test_a_backend_is_chosen_by_name_and_nothing_else() -> None:
    model = ToyModel.random()
    assert Generator(model, backend="toy").generate([1], max_new_tokens=2).finish_reason == "length"
    assert refusal(lambda: Generator(model, backend=None)) == "backend=None: give a backend's name, or 'auto'"  # type: ignore[arg-type]
    assert "did you mean toy? installed" in refusal(lambda: Generator(model, backend="toi"))


def test_a_name_with_one_wrong_letter_has_one_suggestion() -> None:
    assert "did you mean auto? installed" in refusal(lambda: Generator(ToyModel.random(), proposer="autto"))
    assert "did you mean grammar? installed" in refusal(lambda: Generator(ToyModel.random(), proposer="suffix+grammr"))


class EngineOptions(BackendOptions):
    threads: int = Field(2, ge=1)
    name: str = "toy"


class Engine(ToyBackend):
    """A backend that has options, and reads names in its own way."""

    Options: ClassVar[type[BackendOptions]] = EngineOptions
    loaded: ClassVar[list[Any]] = []

    @classmethod
    def read(cls, name: str, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
        cls.loaded.append((name, options.threads))
        return ToyModel.random(), tokenizer

    @classmethod
    def load(cls, model: object, compiler: Any, options: Any = None) -> Any:
        cls.loaded.append((type(model).__name__, options.threads))
        backend: Any = super().load(model, compiler)
        backend.threads = options.threads
        return backend


@pytest.fixture(name="engine")
def _engine(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    @hookimpl
    def specdec_backends() -> Mapping[str, Any]:
        return {"engine": Engine}

    registry = load_plugins()
    registry.register(SimpleNamespace(specdec_backends=specdec_backends), "engine-dist")
    monkeypatch.setattr("specdec.generator.load_plugins", lambda: registry)
    monkeypatch.setattr(Engine, "loaded", [])
    return Engine


def test_a_backend_gets_the_options_that_its_string_says(engine: type[Engine]) -> None:
    Generator(ToyModel.random(), backend="engine:threads=5", numerics="fast")
    assert engine.loaded == [("ToyModel", 5)]
    Generator("some/name", backend="engine", numerics="fast").generate([1, 2], max_new_tokens=4)
    assert engine.loaded[1:] == [(ModelSource("some/name"), 2), ("ToyModel", 2)]


@pytest.mark.parametrize(
    ("given", "fault"), [("engine:threads=0", "threads"), ("engine:speed=9", "speed"), ("engin", "engine")]
)
def test_options_of_a_backend_that_can_not_be_honoured_are_refused(
    engine: type[Engine], given: str, fault: str
) -> None:
    with pytest.raises(PluginError, match=fault):
        Generator(ToyModel.random(), backend=given)
    assert not engine.loaded


def test_a_backend_that_computes_another_model_says_so(engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    assert Generator(ToyModel.random(), backend="engine").generate([1], max_new_tokens=2).lossless
    monkeypatch.setattr(engine, "examination", Examination(lossy="weights are rounded"))
    with pytest.warns(UserWarning, match="backend='engine' the text is not what .* would write: weights are rounded"):
        generator = Generator(ToyModel.random(), backend="engine")
    assert not generator.generate([1], max_new_tokens=2).lossless


def test_what_was_found_out_with_some_options_is_not_taken_for_others(engine: type[Engine]) -> None:
    model, walked = ToyModel.random(), list[int]()

    def watch(self: Engine, layout: Any) -> Any:
        walked.append(self.threads)  # type: ignore[attr-defined]
        return ToyBackend.forward(self, layout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "forward", watch)
        for threads in (1, 1, 2):
            Generator(model, backend=f"engine:threads={threads}", numerics="fast", proposer="autoregressive")
    assert set(walked) == {1, 2}


def test_built_in_backends_have_no_options() -> None:
    with pytest.raises(PluginError, match="backend 'hf'"):
        Generator(ToyModel.random(), backend="hf:threads=2")


def test_options_are_listed_with_their_defaults() -> None:
    assert options_of(Mine) == {"size": 3, "share": 0.5, "eager": False, "mode": "plain", "limit": 7}
    assert options_of(int) == {}


@hookimpl
def specdec_propsers() -> Mapping[str, type]:
    return {"x": Mine}


@hookimpl
def specdec_verifiers(temperature: float) -> Mapping[str, type]:
    return {}


X = "plug-in bad, hook specdec_proposers, name 'x'"


def without_a_mark() -> Mapping[str, type]:
    return {"x": Mine}


@pytest.mark.parametrize(
    ("module", "faults"),
    [
        (SimpleNamespace(specdec_propsers=specdec_propsers), ["bad refused", "'specdec_propsers'"]),
        (SimpleNamespace(specdec_verifiers=specdec_verifiers), ["bad refused", "specdec_verifiers", "temperature"]),
        (SimpleNamespace(specdec_proposers=without_a_mark), ["bad offers nothing", "@specdec.hookimpl"]),
        (module_offering({"x": int}), [f"{X}: <class 'int'> is not a subclass of specdec's Proposer"]),
        (module_offering({"x": Mine()}), [f"{X}: Mine(size=3", "is not a subclass of specdec's Proposer"]),
        (module_offering({"x": Unfinished}), [f"{X}: Unfinished doesn't define start, or bind"]),
        (module_offering({7: Mine}), ["name 7: a name is a string of letters, digits"]),
        (module_offering({"a:b": Mine}), ["name 'a:b': a name is a string of letters, digits"]),
        (module_offering({"": Mine}), ["name '': a name is a string of letters, digits"]),
        (module_offering([Mine]), ["hook specdec_proposers: it returned [", "not a mapping of name to class"]),
        (module_offering([("x", Mine)]), ["it returned [('x', ", "not a mapping of name to class"]),
        (module_offering("x"), ["it returned 'x', not a mapping of name to class"]),
    ],
)
def test_a_module_that_breaks_the_rules_is_refused_with_plug_in_hook_and_fault(
    registry: Registry, module: object, faults: list[str]
) -> None:
    before = list(registry.plugins)
    message = refusal(registry.register, module, "bad")
    assert [fault for fault in faults if fault not in message] == []
    assert registry.plugins == before


class Theirs(Proposer):
    """Another third party's strategy of the same name."""

    size: int = 1

    def start(self, request: Request) -> Drafter:
        raise NotImplementedError


@pytest.fixture(name="shared")
def _shared(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Two third parties with one name, one of which also has a name of specdec's and one that nobody else has."""
    return installed(
        monkeypatch,
        FakeEntryPoint("mine-dist", lambda: module_offering({"mine": Mine})),
        FakeEntryPoint("their-dist", lambda: module_offering({"mine": Theirs, "lookahead": Theirs, "other": Theirs})),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mine-dist/mine", Mine()),
        ("their-dist/mine", Theirs()),
        ("mine-dist/mine:size=6,mode=a/b", Mine(size=6, mode="a/b")),
        (" their-dist/mine : size = 6 ", Theirs(size=6)),
        ("lookahead:N=4", LookaheadProposer(N=4)),
        ("specdec/lookahead:N=4", LookaheadProposer(N=4)),
        ("their-dist/lookahead:size=2", Theirs(size=2)),
        ("other", Theirs()),
        ("their-dist/other", Theirs()),
    ],
)
def test_packages_that_share_a_name_are_each_found_by_distribution_and_name(
    shared: Registry, given: str, expected: Proposer
) -> None:
    assert shared.broken == []
    assert shared.make("proposers", given) == expected


def test_a_name_that_two_packages_share_is_ambiguous_and_both_longer_names_are_told(shared: Registry) -> None:
    assert refusal(shared.make, "proposers", "mine:size=6") == (
        "proposer 'mine' is ambiguous: use mine-dist/mine or their-dist/mine"
    )


def test_the_names_that_are_told_and_listed_are_those_that_work(shared: Registry) -> None:
    named = {shared.name_of(plugin): plugin.cls for plugin in shared.of_kind("proposers")}
    assert len(named) == len(shared.of_kind("proposers"))
    assert {name: shared.find("proposers", name) for name in named} == named
    assert {"lookahead", "mine-dist/mine", "their-dist/mine", "their-dist/lookahead", "other"} <= set(named)
    message = refusal(shared.make, "proposers", "their-dist/lookahed")
    assert message.startswith("unknown proposer 'their-dist/lookahed': did you mean their-dist/lookahead")
    assert message.endswith(f"installed: {', '.join(sorted(named))}")


def test_names_are_shared_within_a_contract_only(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(monkeypatch, FakeEntryPoint("their-dist", lambda: module_offering({"match": Mine})))
    assert registry.make("proposers", "match") == Mine()
    assert registry.make("verifiers", "match") == MatchVerifier()


def test_a_distribution_that_offers_a_name_twice_is_refused_the_second_time(registry: Registry) -> None:
    message = refusal(registry.register, module_offering({"other": Mine, "mine": Mine}), "mine-dist")
    assert message == (
        "plug-in mine-dist, hook specdec_proposers, name 'mine': another entry point of mine-dist offers it: rename one"
    )
    assert [plugin.name for plugin in registry.plugins] == ["mine", "with_path"]


def failing() -> object:
    raise ImportError("no module named 'left_pad'")


def stumbling() -> object:
    raise ImportError("libleft.so: undefined symbol\n  first seen here\n  and there")


def test_a_broken_third_party_is_listed_and_the_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(
        monkeypatch,
        FakeEntryPoint("no-import", failing),
        FakeEntryPoint("no-library", stumbling),
        FakeEntryPoint("no-hook", lambda: SimpleNamespace(specdec_propsers=specdec_propsers)),
        FakeEntryPoint("no-signature", lambda: SimpleNamespace(specdec_verifiers=specdec_verifiers)),
        FakeEntryPoint(None, SimpleNamespace),
        FakeEntryPoint("good", lambda: module_offering({"mine": Mine})),
    )
    broken = {fault.distribution: fault.reason for fault in registry.broken}
    assert list(broken) == ["no-import", "no-library", "no-hook", "no-signature", "some_module"]
    assert broken["no-import"] == "ImportError: no module named 'left_pad'"
    assert broken["no-library"] == "ImportError: libleft.so: undefined symbol"
    assert "specdec_propsers" in broken["no-hook"]
    parts = ("specdec_verifiers", "temperature", "can not be found in the hookspec")
    assert [part for part in parts if part not in broken["no-signature"]] == []
    assert [reason for reason in broken.values() if len(reason.splitlines()) != 1] == []
    assert [plugin.distribution for plugin in registry.plugins[-2:]] == ["specdec", "good"]
    assert registry.make("proposers", "mine:size=2") == Mine(size=2)
    assert registry.make("proposers", "lookahead") == LookaheadProposer()


def test_where_a_name_is_not_found_each_broken_third_party_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeEntryPoint("no-import", failing), FakeEntryPoint("no-library", stumbling))
    model = ToyModel.random()
    for call in (
        lambda: Generator(model, proposer="padded"),
        lambda: Generator(model, verifier="padded"),
        lambda: Generator(model, mask="padded"),
        lambda: Generator(model, backend="padded"),
        lambda: compare(model, {"padded": "padded"}, [[1]]),
        lambda: Tuner(model, "padded", [[1]]),
        lambda: Recorder(model, None, "padded"),
        lambda: check_proposer("padded", model, [[1]]),
    ):
        first, *lines = refusal(call).splitlines()
        assert first.startswith("unknown ")
        assert lines == [
            "no-import is installed but broken: ImportError: no module named 'left_pad'",
            "no-library is installed but broken: ImportError: libleft.so: undefined symbol",
        ]


def test_where_no_backend_takes_a_model_each_broken_third_party_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeEntryPoint("no-import", failing))
    with pytest.raises(ModelError) as caught:
        Generator(object())
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("no backend supports an object of type object")
    assert lines == ["no-import is installed but broken: ImportError: no module named 'left_pad'"]


def test_backends_are_asked_for_when_one_is_needed_and_a_fault_of_theirs_is_listed_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    @hookimpl
    def specdec_backends() -> Mapping[str, type]:
        asked.append("their engine")
        raise ImportError("no module named 'their_engine'")

    theirs = SimpleNamespace(specdec_backends=specdec_backends, specdec_proposers=offering({"mine": Mine}))
    last = module_offering({"last": Mine})
    registry = installed(monkeypatch, FakeEntryPoint("theirs", lambda: theirs), FakeEntryPoint("last", lambda: last))
    assert registry.make("proposers", "mine") == Mine()
    assert [plugin.name for kind in ("verifiers", "masks") for plugin in registry.of_kind(kind)]
    assert (asked, registry.broken) == ([], [])
    message = refusal(registry.find, "backends", "theirs")
    assert message.endswith("theirs is installed but broken: ImportError: no module named 'their_engine'")
    assert [(fault.distribution, asked) for fault in registry.broken] == [("theirs", ["their engine"])]
    assert [plugin.name for plugin in registry.plugins[-2:]] == ["mine", "last"]
    assert {"hf", "static", "toy"} <= {plugin.name for plugin in registry.plugins}
    assert asked == ["their engine"]


def test_backends_of_the_package_itself_that_can_not_be_imported_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(monkeypatch)
    monkeypatch.setitem(sys.modules, "specdec.backends.recorded.backend", None)
    with pytest.raises(ImportError, match=r"specdec\.backends\.recorded"):
        registry.find("backends", "hf")


def test_a_generator_works_beside_a_broken_third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeEntryPoint("no-import", failing))
    assert len(Generator(ToyModel.random()).generate([1], max_new_tokens=4).token_ids) == 4


def test_the_example_plug_in_is_found_with_its_distribution() -> None:
    try:
        distribution("specdec-example")
    except PackageNotFoundError:
        pytest.skip("specdec-example is not installed (pip install -e plugins/specdec-example)")
    found: dict[str, Any] = {plugin.name: plugin for plugin in load_plugins().plugins}
    assert found["successor"].distribution == "specdec-example"
    assert load_plugins().make("proposers", "successor:length=2").length == 2
