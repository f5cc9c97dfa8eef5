"""The examination of a transformers model at load: does it support trees, chains or neither, and how exactly?

Findings are cached in memory and on disk for the same model on the same machine. After a change of weights, adapter,
dtype or number of threads, the model is examined again.
"""

import math
from dataclasses import replace
from typing import TypeVar

from transformers import PreTrainedModel

from specdec.backends.base import Backend
from specdec.backends.hf import HFBackend
from specdec.backends.wide_passes import limited_modules, without_limits
from specdec.errors import ModelError
from specdec.layout import Compiler
from specdec.models.architecture import name_of, state_kinds
from specdec.models.attention_switch import why_fixed
from specdec.models.notes import lock_of
from specdec.probes.findings import recalled
from specdec.probes.products import Products, probe_products
from specdec.probes.selftest import SelfTestResult, probe
from specdec.probes.walk import RAGGED
from specdec.target import Target

_PROBE_SECONDS = 0.5
_NEEDED = (
    "specdec needs a causal model that takes token ids alone, at positions from 0 on; an encoder may be loaded with "
    "is_decoder=True"
)
Loaded = TypeVar("Loaded", bound=Backend)


def examine(backend: Loaded) -> Loaded:
    """Find out how a loaded ``HFBackend`` can decode its model; called once, before a row is opened.

    Sets ``shapes``, ``inexact``, ``deviation`` and ``reason``. Other backends, which set these themselves, are returned
    unchanged.

    Raises:
        ModelError: if the model can't be decoded losslessly, or not with the compiler's attention; the backend is then
            closed.
    """
    if isinstance(backend, HFBackend):
        try:
            _examine(backend)
        except BaseException:  # Ctrl-C too
            backend.close()
            raise
    return backend


def _examine(backend: HFBackend) -> None:
    model, compiler = backend.model, backend.compiler
    if compiler.bit_exact:
        _set_products(backend)
    if compiler.attention is not None:
        fixed = why_fixed(model)
        if fixed and not compiler.bit_exact:
            raise ModelError(f"mask={compiler!r} can't be used with {name_of(model)}: {fixed}; leave out mask=")
        backend.reason = backend.reason or fixed  # chains alone, on the model's own attention
    tried = None if backend.reason else _try_out(backend)
    backend.reason = backend.reason or (tried.fault if tried is not None else "")
    if backend.reason:
        tried = _try_out_chains(backend)
    assert tried is not None, "tested with trees or chains"
    backend.deviation = tried.deviation


def _set_products(backend: HFBackend) -> None:
    """Set how many rows products take, or why they aren't exact."""
    products = products_of(backend.model, _PROBE_SECONDS if backend.is_alone else math.inf, backend.compiler)
    backend.inexact = products.inexact
    # A prompt's last pass has a tree after less than a chunk.
    chunk = min(backend.shapes.chunk, products.most_rows // 2)
    backend.shapes = replace(backend.shapes, row_multiple=products.row_multiple, chunk=chunk)


def _try_out_chains(backend: HFBackend) -> SelfTestResult:
    """Set the backend to chains only, because of its ``reason``, and test these.

    Raises:
        ModelError: if the backend doesn't support chains, or the model can't be decoded with them.
    """
    if backend.no_chains:
        raise ModelError(f"{backend.no_chains}: {backend.reason}; use backend='hf'")
    backend.shapes = replace(backend.shapes, takes_trees=False)
    tried = _try_out(backend)
    while tried.fault and _simplify(backend, tried.fault):
        tried = _try_out(backend)
    if tried.fault:
        raise ModelError(_refusal(backend.model, backend.reason, tried.fault))
    if backend.compiler.bit_exact:
        no_trees = f"exact attention verifies trees, and this model takes chains only ({backend.reason})"
        backend.inexact = backend.compiler.refuses(backend.model.dtype) or no_trees
    return tried


def _simplify(backend: HFBackend, fault: str) -> bool:
    """Have a backend with states run simpler passes, because of the self-test's result; False if there are none."""
    if not state_kinds(backend.model.config.get_text_config()):
        return False
    if fault.startswith(RAGGED) and not backend.reads_rows_alone:
        backend.read_rows_alone()
        return True
    if backend.shapes.takes_drafts:
        backend.read_stepwise(fault)
        return True
    return False


def products_of(model: PreTrainedModel, seconds: float = _PROBE_SECONDS, compiler: Compiler | None = None) -> Products:
    """Return the findings on row independence of the model's layers, with a compiler's operations."""

    def found() -> Products:
        return probe_products(model, seconds, None if compiler is None else compiler.operations(model.device))

    question = "products" if compiler is None else f"products {compiler!r}"
    return recalled(model, question, Products, found, math.isinf(seconds))


def _try_out(backend: HFBackend) -> SelfTestResult:
    """Return the self-test's result; run once for a model and all backends of this class."""
    model, compiler, shapes = backend.model, backend.compiler, backend.shapes
    driven_by = (
        type(backend).__qualname__,
        repr(compiler),
        shapes.takes_trees,
        shapes.takes_drafts,
        shapes.row_multiple,
        shapes.chunk,
        backend.reads_rows_alone,
    )
    question = " ".join(map(str, ("self-test", *driven_by)))

    def tried() -> SelfTestResult:
        # The reference's pass would be limited as prompts are, and those over drafts aren't.
        with without_limits(limited_modules(model)):
            return probe(Target(backend, compiler), model, is_timed=backend.is_alone)

    return recalled(model, question, SelfTestResult, tried, not backend.is_alone)


def _refusal(model: PreTrainedModel, with_trees: str, with_chains: str) -> str:
    both = with_trees if with_chains == with_trees else f"with trees, {with_trees}; with chains, {with_chains}"
    with lock_of(model):
        why = "; ".join(filter(None, [both, products_of(model).inexact]))
    return f"{name_of(model)} can't be decoded losslessly: {why.rstrip('.')}; {_NEEDED}"
