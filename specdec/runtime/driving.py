"""Drives a model, exactly if possible: tries weight layouts and mask compilers until one is suitable."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specdec.backends.base import Backend, Deviation
from specdec.costs import NOMINAL_COSTS, Costs
from specdec.errors import ModelError, in_one_line
from specdec.layout import Compiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.models.independent_rows import has_kernels
from specdec.numerics import Mode, Numerics
from specdec.probes.costs import CONTEXT_AT_LOAD, REPEATS_AT_LOAD, SECONDS_AT_LOAD, SIZES_AT_LOAD, measure_costs
from specdec.probes.findings import recalled
from specdec.probes.walk import walk
from specdec.runtime.lease import WeightsLease
from specdec.target import Target
from specdec.weights.pack_model import Weights, stock_or_refuse
from specdec.weights.row_independence import PRODUCT

Load = Callable[[Compiler], Backend]
Layouts = Callable[[Mapping[str, str]], Iterable[Weights]]


def drive(
    load: Load, model: Any, mode: Mode, mask: Compiler | None, layouts: Layouts
) -> tuple[Weights, Target, Numerics]:
    """Return the first suitable target, with its weights and numerics.

    Each compiler of the mode is tried with each layout of the weights, fastest first. With an exact compiler, a layout
    is suitable if a probe finds every pass bit-exact; with another compiler, or ``mask``, if the model can be driven.

    Args:
        layouts: yields one layout of the weights after another; receives the reasons against kernels tried so far.

    Raises:
        ModelError: if nothing is suitable, with the reason.
    """
    fault, why_inexact = ModelError("no layout of the weights was tried"), ""
    for compiler in _compilers(mode, model) if mask is None else [mask]:
        must_be_exact = mask is None and compiler.bit_exact
        failed = dict[str, str]()  # by kernel
        for weights in layouts(failed):
            try:
                target, numerics = drive_with(load, model, compiler)
            except ModelError as error:
                fault, failed[weights.kernel] = error, str(error)
                continue
            if numerics.is_bit_exact or not must_be_exact:
                if why_inexact and not must_be_exact:
                    why = _with_hint(why_inexact, model)
                    numerics = replace(numerics, inexact=f"exact numerics are unavailable: {why}")
                return weights, target, numerics
            target.close()
            failed[weights.kernel] = numerics.inexact
        if must_be_exact:
            reasons = list(failed.values())
            why_inexact = why_inexact or reasons[0]
            fault = ModelError(f"numerics='exact' is unavailable here: {reasons[-1]}; use numerics='auto' or 'fast'")
    raise fault


def _with_hint(why: str, model: Any) -> str:
    """Return the reason, with what else may make the model exact."""
    if PRODUCT not in why or not has_kernels(getattr(model, "device", None)):
        return why
    return f"{why}; numerics='exact' computes linear layers by a kernel of its own, which reads prompts more slowly"


def _compilers(mode: Mode, model: Any) -> Iterator[Compiler]:
    """Yield the compilers of a mode, in the order in which they are tried."""
    if mode != "fast" and has_kernels(getattr(model, "device", None)):
        yield SlotTableCompiler()
        if mode == "exact":  # reading prompts takes several times as long then
            yield SlotTableCompiler(own_products=True)
    elif mode != "fast":
        yield ExactCompiler()
    if mode != "exact":
        yield DenseCompiler()


def layouts_of(model: Any, requested: str, lease: WeightsLease, failed: Mapping[str, str]) -> Iterator[Weights]:
    """Pack a model's weights by one kernel after another, the fastest first, without those that failed.

    Raises:
        ModelError: if "packed" or a kernel was requested and no kernel is suitable.
        RequestError: if another generator needs another layout.
    """
    while True:
        why = "; ".join(f"not by {kernel}: {reason}" for kernel, reason in failed.items())
        try:
            weights = lease.acquire(model, failed, why)
        except ModelError:
            if failed:
                return
            raise
        yield weights
        if not weights.kernel or requested not in {"auto", "packed"} or lease.is_shared(model):
            return


def stock_alone(requested: str, backend: str, failed: Mapping[str, str]) -> Iterator[Weights]:
    """Leave the weights unchanged, for a backend of this name that doesn't run torch's layers.

    Raises:
        ModelError: if packed weights were requested.
    """
    if not failed:
        yield stock_or_refuse(requested, 0, f"backend {backend} lays them out itself")


def drive_with(load: Load, model: Any, compiler: Compiler) -> tuple[Target, Numerics]:
    """Load a model for one compiler, and probe its numerics."""
    target = Target(load(compiler), compiler)
    try:
        return target, _probed(model, target)
    except BaseException:  # Ctrl-C too
        target.close()
        raise


def _probed(model: Any, target: Target) -> Numerics:
    backend, compiler = target.backend, target.compiler
    inexact, deviation = backend.inexact, backend.deviation
    question = _key_of(target)
    if deviation is None:
        try:
            deviation = recalled(model, f"walk {question}", Deviation, lambda: walk(target).deviation())
        except Exception as fault:  # a third-party backend: decoding may not need what this pass needs
            inexact, deviation = inexact or f"the probe's passes raised {in_one_line(fault)}", Deviation("", 0.0)
    if deviation.where and not inexact:
        inexact = f"logits in {deviation.where} have other bits than in plain steps"
        if compiler.bit_exact and backend.runs_layers:
            inexact += _hint_for_experts(model)
    if compiler.bit_exact:
        return Numerics("exact", inexact, deviation.noise)
    return Numerics("fast", inexact or "fast numerics don't promise it", deviation.noise)


def _hint_for_experts(model: Any) -> str:
    """Return what may make a mixture of experts bit-exact, as the end of a message; "" for other models.

    Grouped products pass each expert the rows that chose it, often so few that libraries compute them in another way.
    """
    implementations = model.get_experts_implementation() if hasattr(model, "get_experts_implementation") else {}
    is_grouped = "grouped_mm" in implementations.values()
    return "; model.set_experts_implementation('batched_mm') may help" if is_grouped else ""


def costs_of(target: Target, model: Any) -> Costs:
    """Return the costs of a target's passes, measured once for a model, numerics and device.

    While a request decodes they aren't measured: if they are unknown, they are nominal.
    """
    if target.backend.costs is not None:
        return target.backend.costs

    def measured() -> Costs:
        if target.is_decoding:
            raise _DecodingError
        return measure_costs(target, SIZES_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD, seconds=SECONDS_AT_LOAD)

    with suppress(_DecodingError):
        return recalled(model, f"costs {_key_of(target)}", Costs, measured, keeps=lambda costs: costs.is_clear)
    return NOMINAL_COSTS


class _DecodingError(Exception):
    """A request decodes, so nothing is measured."""


def _key_of(target: Target) -> str:
    """Return what a finding about a target depends on, except for the model."""
    backend = type(target.backend)
    name = f"{backend.__module__}.{backend.__qualname__} {backend.version}".rstrip()
    return f"{name} {target.backend.options!r} {target.compiler!r}"
