"""The attempts at a model: their order, what each failure leads to, and which failures end them."""

from collections.abc import Callable
from typing import Any

import pytest

from specdec import ModelError, RequestError
from specdec.backends.fused.backend import FusedBackend
from specdec.masks.exact.compiler import ExactCompiler
from specdec.models.weights.pack_model import Weights
from specdec.plugins.registry import load_plugins
from specdec.runtime import attempts as module
from specdec.runtime.attempts import Attempt, Attempts, Wanted
from specdec.runtime.backend_choice import LoadedModel
from specdec.target import Target
from tests.support import families

LAYOUTS = "fast", ""  # kernels
UNSUITABLE = ModelError("not like that")


@pytest.fixture(autouse=True)
def _by_static_or_hf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.backends.static._place_of_all", lambda _: "cuda")


@pytest.fixture
def by_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that has the kernels of fused layers, and masks for them."""
    monkeypatch.setattr(FusedBackend, "_serves", lambda _: True)
    monkeypatch.setattr(ExactCompiler, "has_fixed_shapes", True)


def tried(
    monkeypatch: pytest.MonkeyPatch, open_: Callable[[Attempt], Any], engines: tuple[str, ...] = ("",), **wanted: Any
) -> tuple[list[tuple[str, str, str, str]], Exception | str]:
    """Return engine, compiler, kernel and backend of each attempt, and the error or the engine that was used."""
    attempted = list[tuple[str, str, str, str]]()

    def opened(attempt: Attempt, *_: Any) -> Any:
        compiler = type(attempt.compiler).__name__
        attempted.append((attempt.loaded.engine, compiler, attempt.weights.kernel, attempt.backend.name))
        return open_(attempt)

    monkeypatch.setattr(Attempt, "open", opened)
    model = families.make(*families.TREES["llama"])
    models = [LoadedModel(model, None, engine) for engine in engines]
    made = Attempts(models, Wanted(**wanted), load_plugins(), lambda *_: [Weights(kernel=kernel) for kernel in LAYOUTS])
    try:
        return attempted, made.first(lambda attempt, _: attempt.loaded.engine)
    except Exception as error:
        return attempted, error


def refuse(error: Exception) -> Callable[[Attempt], Target]:
    def refuse(_: Attempt) -> Target:
        raise error

    return refuse


def test_compilers_come_before_layouts_and_layouts_before_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    attempted, error = tried(monkeypatch, refuse(UNSUITABLE), numerics="auto")
    assert [each[1:] for each in attempted] == [
        (compiler, kernel, backend)
        for compiler in ("ExactCompiler", "DenseCompiler")
        for kernel in LAYOUTS
        for backend in ("static", "hf")
    ]
    assert error is UNSUITABLE


def test_what_one_backend_finds_inexact_no_other_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    attempted, error = tried(monkeypatch, refuse(module._InexactError("other bits")), numerics="exact")
    assert [each[1:] for each in attempted] == [("ExactCompiler", kernel, "static") for kernel in LAYOUTS]
    assert str(error) == "numerics='exact' is unavailable here: other bits; use numerics='auto' or 'fast'"


@pytest.mark.usefixtures("by_fused")
@pytest.mark.parametrize("fault", [module._InexactError("other bits"), UNSUITABLE, ZeroDivisionError("by nought")])
def test_whatever_fails_in_fused_layers_the_models_own_are_tried_next(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    passed_over = list[dict[str, str]]()

    def opened(attempt: Attempt) -> Any:
        passed_over.append(dict(attempt.passed_over))
        if attempt.backend.name == "fused":
            raise fault

    attempted, engine = tried(monkeypatch, opened, numerics="exact")
    assert [each[3] for each in attempted] == ["fused", "static"]
    assert engine == ""
    assert passed_over[0] == {}
    assert str(fault) in passed_over[1]["fused"]


@pytest.mark.usefixtures("by_fused")
@pytest.mark.parametrize("numerics", ["exact", "auto"])
def test_a_slow_exact_way_is_taken_where_only_exact_ones_are_wanted(
    monkeypatch: pytest.MonkeyPatch, numerics: str
) -> None:
    def opened(attempt: Attempt) -> Any:
        if attempt.backend.name == "fused" and not attempt.is_last:
            raise module._SlowError("it takes longer")
        if attempt.backend.name == "static" and attempt.compiler.bit_exact:
            raise module._InexactError("other bits")

    attempted, engine = tried(monkeypatch, opened, numerics=numerics)
    exact, fast = ("ExactCompiler", "fast", "fused"), ("DenseCompiler", "fast", "static")
    assert attempted[-1][1:] == (exact if numerics == "exact" else fast)
    assert engine == ""


def test_the_reason_against_exact_numerics_is_passed_on_to_fast_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(attempt: Attempt) -> Any:
        if attempt.compiler.bit_exact and not attempt.is_named:
            raise module._InexactError(f"other bits by {attempt.weights.kernel or 'stock'}")
        return attempt.why_inexact

    monkeypatch.setattr(module.Target, "close", lambda _: None)
    seen = list[str]()
    tried(monkeypatch, lambda attempt: seen.append(opened(attempt)), numerics="auto")
    assert seen == ["other bits by fast"]


def test_a_preferred_engine_may_fail_in_any_way_and_torch_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(attempt: Attempt) -> Any:
        if attempt.loaded.engine:
            raise ZeroDivisionError("by nought")
        return None

    attempted, engine = tried(monkeypatch, opened, engines=("swift", ""), numerics="auto")
    assert [(each[0], each[1]) for each in attempted] == [("swift", "ExactCompiler"), ("", "ExactCompiler")]
    assert engine == ""
    attempted, error = tried(monkeypatch, refuse(ZeroDivisionError("by nought")), numerics="auto")
    assert len(attempted) == 1
    assert isinstance(error, ZeroDivisionError)


def test_a_request_that_no_engine_can_meet_ends_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    attempted, error = tried(monkeypatch, refuse(RequestError("not now")), engines=("swift", ""), numerics="auto")
    assert len(attempted) == 1
    assert isinstance(error, RequestError)
