"""The examination of a model at load: does it support trees, chains or neither, and how exactly?

Findings are cached in memory and on disk for the same model on the same machine. After a change of weights, adapter,
dtype or number of threads, the model is examined again.
"""

import math
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from specdec.backends.base import NO_OPTIONS, Backend, BackendOptions, Examination
from specdec.backends.hf import HFBackend
from specdec.backends.supported_passes import SupportedPasses
from specdec.backends.wide_passes import limited_modules, without_limits
from specdec.errors import ModelError, in_one_line
from specdec.layout import Compiler
from specdec.models.architecture import name_of, state_kinds
from specdec.models.attention_switch import why_fixed
from specdec.runtime.probes.findings import recalled
from specdec.runtime.probes.products import Products, probe_products
from specdec.runtime.probes.selftest import probe
from specdec.runtime.probes.walk import RAGGED, SelfTestResult, walk
from specdec.target import Target

_PROBE_SECONDS = 0.5
_NEEDED = (
    "specdec needs a causal model that takes token ids alone, at positions from 0 on; an encoder may be loaded with "
    "is_decoder=True"
)


def examine(
    backend: Backend, model: Any, compiler: Compiler, options: BackendOptions = NO_OPTIONS
) -> tuple[Backend, Examination]:
    """Find out how a loaded backend can decode its model; called once, before a row is opened.

    Args:
        model, compiler, options: with which the backend was loaded.

    Returns:
        The backend, or for an ``HFBackend`` another one for the passes that the model supports; and the findings.

    Raises:
        ModelError: if the model can't be decoded losslessly, or not with the compiler's attention; the backend is then
            closed.
    """
    cls = type(backend)
    name = f"{cls.__module__}.{cls.__qualname__} {cls.version}".rstrip()
    key = f"{name} {options!r} {compiler!r}"
    if isinstance(backend, HFBackend):
        backend, found = _self_tested(backend)
        return backend, replace(found, key=key)
    try:
        return backend, _walked(Target(backend, compiler), model, key)
    except BaseException:  # Ctrl-C too
        backend.close()
        raise


def _walked(target: Target, model: Any, key: str) -> Examination:
    """Return what a third party's backend knows of its engine, with the noise of passes if it hasn't measured that."""
    known = replace(target.backend.examination, key=key)
    if known.noise is not None:
        return known
    try:
        found = recalled(model, f"walk {key}", SelfTestResult, lambda: walk(target).result())
    except Exception as fault:  # decoding may not need what this pass needs
        return replace(known, inexact=known.inexact or f"the probe's passes raised {in_one_line(fault)}", noise=0.0)
    return replace(known, inexact=known.inexact or found.inexact, noise=found.noise)


def _self_tested(backend: HFBackend) -> tuple[HFBackend, Examination]:
    """Return a backend for the first passes that the self-test finds right: trees, chains, or simpler ones."""
    model, compiler = backend.model, backend.compiler
    try:
        passes, inexact = passes_to_test(backend)
        while True:
            if backend.no_chains and not passes.shapes.takes_trees:
                raise ModelError(f"{backend.no_chains}: {passes.reason}; use backend='hf'")
            if passes != backend.passes:
                backend.close()
                backend = type(backend)(model, compiler, passes)
            tested = _self_test(backend)
            if not tested.fault:
                break
            passes = _simpler(backend, tested.fault, inexact)
    except BaseException:  # Ctrl-C too
        backend.close()
        raise
    if compiler.bit_exact and not passes.shapes.takes_trees:
        no_trees = f"exact attention verifies trees, and this model takes chains only ({passes.reason})"
        inexact = compiler.refuses(model.device, model.dtype) or no_trees
    if compiler.bit_exact and not inexact and tested.inexact:
        inexact = tested.inexact + _hint_for_experts(model)
    found = Examination(passes.reason, inexact or tested.inexact, noise=tested.noise)
    return backend, found


def _hint_for_experts(model: PreTrainedModel) -> str:
    """Return what may make a mixture of experts bit-exact, as the end of a message; "" for other models.

    Grouped products pass each expert the rows that chose it, often so few that libraries compute them in another way.
    """
    is_grouped = "grouped_mm" in model.get_experts_implementation().values()
    return "; model.set_experts_implementation('batched_mm') may help" if is_grouped else ""


def passes_to_test(backend: HFBackend) -> tuple[SupportedPasses, str]:
    """Return the passes that the self-test begins with, and why the model's products aren't exact, or "".

    Raises:
        ModelError: if the compiler's attention can't be used with the model.
    """
    model, compiler, passes, inexact = backend.model, backend.compiler, backend.passes, ""
    if compiler.bit_exact:
        products = products_of(backend)
        inexact = products.inexact
        # A prompt's last pass has a tree after less than a chunk.
        chunk = min(passes.shapes.chunk, products.most_rows // 2)
        passes = replace(passes, shapes=replace(passes.shapes, row_multiple=products.row_multiple, chunk=chunk))
    if compiler.attention is not None and (fixed := why_fixed(model)):
        if not compiler.bit_exact:
            raise ModelError(f"mask={compiler!r} can't be used with {name_of(model)}: {fixed}; leave out mask=")
        passes = passes.by_chains(passes.reason or fixed)  # on the model's own attention
    return passes, inexact


def _simpler(backend: HFBackend, fault: str, inexact: str) -> SupportedPasses:
    """Return simpler passes than those that failed the self-test.

    Raises:
        ModelError: if there are none.
    """
    passes = backend.passes
    if passes.shapes.takes_trees:
        return passes.by_chains(fault)
    if state_kinds(backend.model.config.get_text_config()):
        if fault.startswith(RAGGED) and not passes.reads_rows_alone:
            return replace(passes, reads_rows_alone=True)
        if passes.shapes.takes_drafts:
            return passes.by_single_tokens(fault)
    both = fault if fault == passes.reason else f"with trees, {passes.reason}; with chains, {fault}"
    why = "; ".join(filter(None, [both, inexact])).rstrip(".")
    raise ModelError(f"{name_of(backend.model)} can't be decoded losslessly: {why}; {_NEEDED}")


def products_of(backend: HFBackend) -> Products:
    """Return the findings on row independence of the layers that the backend runs, with its compiler's operations."""
    model, compiler = backend.model, backend.compiler
    seconds = _PROBE_SECONDS if backend.is_alone else math.inf

    def found() -> Products:
        with backend.in_model():
            return probe_products(model, seconds, compiler.operations(model.device))

    question = f"products {type(backend).__qualname__} {compiler!r}"

    def is_lasting(found: Products) -> bool:  # a compiler that kernels lacked may be there the next time
        return not (backend.replaces_layers and found.inexact)

    return recalled(model, question, Products, found, not backend.is_alone, is_lasting)


def _self_test(backend: HFBackend) -> SelfTestResult:
    """Return the self-test's result; run once for a model and all backends of this class."""
    model, compiler, passes = backend.model, backend.compiler, replace(backend.passes, reason="")
    question = f"self-test {type(backend).__qualname__} {compiler!r} {passes!r}"

    def tested() -> SelfTestResult:
        # The reference's pass would be limited as prompts are, and those over drafts aren't.
        with without_limits(limited_modules(model)):
            return probe(Target(backend, compiler), model, is_timed=backend.is_alone)

    def is_lasting(found: SelfTestResult) -> bool:  # as above
        return not (backend.replaces_layers and found.fault)

    return recalled(model, question, SelfTestResult, tested, not backend.is_alone, is_lasting)
