"""The numerics that a generator decodes with: bit-exact ones wherever they hold, and the reason where they don't.

Modes:
- ``exact``: a position's logits have the same bits in plain decoding and in any draft tree, batch or prompt.
- ``fast``: the fastest attention of the device; two logits closer than its noise may change places.
- ``auto``: exact where the probe passes, else fast.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import torch

from specdec.backends.base import Backend, Deviation
from specdec.costs import Costs
from specdec.errors import ModelError, RequestError, in_one_line, plural
from specdec.layout import Compiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.models.fingerprint import fingerprint_of
from specdec.models.state import remembered
from specdec.probes.costs import CONTEXT_AT_LOAD, REPEATS_AT_LOAD, SECONDS_AT_LOAD, SIZES_AT_LOAD, measure_costs
from specdec.probes.experts import remedy
from specdec.probes.recall import recalled
from specdec.probes.successors import work_out_successors
from specdec.probes.walk import walk
from specdec.strategies.sources.successors import Successors
from specdec.target import Target

Mode = Literal["auto", "exact", "fast"]
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numerics that were chosen.

    ``inexact`` says why the last bits of logits, and so the text, may depend on the strategy; it is "" where they
    can't. ``noise`` is the greatest difference of a logit that the probe saw between plain steps and other passes.
    """

    mode: Literal["exact", "fast"]
    inexact: str = ""
    noise: float = 0.0

    @property
    def is_bit_exact(self) -> bool:
        """True if the probe found no bit that depends on the strategy."""
        return not self.inexact

    def __str__(self) -> str:
        return f"{self.mode}, bit-exact" if self.is_bit_exact else f"{self.mode}, not bit-exact: {self.inexact}"


@dataclass(frozen=True, slots=True)
class Driven:
    """A model's target, and what was found out about its numerics.

    ``why_not_exact`` is the reason for fast numerics where exact ones were wanted, or "".
    """

    target: Target
    numerics: Numerics
    num_threads: int
    model: Any
    why_not_exact: str = ""
    tables: dict[int, Successors] = field(default_factory=dict)  # that strategies were given, by the first token

    def costs(self) -> Costs:
        """Return the costs of the backend's passes here, measured once for a model, numerics and device.

        Raises:
            RequestError: while something is decoded.
        """
        target = self.target
        if target.backend.costs is not None:
            return target.backend.costs

        def measured() -> Costs:
            if target.is_decoding:
                raise RequestError("costs can't be measured while something is decoded: ask for them while binding")
            return measure_costs(target, SIZES_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD, seconds=SECONDS_AT_LOAD)

        return recalled(self.model, f"costs {_driven_by(target)}", Costs, measured, keeps=lambda costs: costs.is_clear)

    def successors(self, first: int, seconds: float) -> Successors:
        """Return what the target predicts after each token alone, as far as the cache folder has it.

        Args:
            first: the token before each, since models treat the first token of a text differently.
            seconds: the time to spend on what the folder doesn't have; only the first caller's counts.

        Raises:
            RequestError: while something is decoded.
        """

        def worked_out() -> Successors:
            if self.target.is_decoding:
                raise RequestError("a vocabulary can't be gone through while something is decoded: do so while binding")
            return work_out_successors(self.target, first, seconds)

        if first not in self.tables:
            question = "successors", _driven_by(self.target), first, fingerprint_of(self.model)
            self.tables[first] = remembered(self.model, question, worked_out)
        return self.tables[first]

    def prepare(
        self, first: int, on_progress: Callable[[int, int], object] = lambda *_: None, seconds: float = math.inf
    ) -> bool:
        """Work out what ``successors`` leaves unknown, also for callers that have its table already.

        Returns:
            True once everything is known. A call that is cut off by ``seconds`` keeps what it can.
        """
        known = self.successors(first, 0.0)
        if known.is_whole and seconds < math.inf:
            return True
        work_out_successors(
            self.target,
            first,
            seconds,
            known=known,
            on_progress=lambda table: on_progress(table.num_known, len(table.tokens)),
            must_keep=math.isinf(seconds),
        )
        return known.is_whole

    def use_idle_time(self, seconds: float) -> bool:
        """Work out some of the successors that a strategy has asked for; True once nothing is left to do."""
        if self.target.rows or not self.target.shapes.takes_trees:
            return True
        return all(self.prepare(first, seconds=seconds) for first in self.tables)

    def numerics_now(self) -> Numerics:
        """The numerics, unless what they were probed with has changed since."""
        if torch.get_num_threads() == self.num_threads or not self.numerics.is_bit_exact:
            return self.numerics
        changed = (
            f"torch had {plural(self.num_threads, 'thread')} when it was probed, and now has {torch.get_num_threads()}"
        )
        return replace(self.numerics, inexact=changed)


def checked_mode(requested: object, mask: Compiler | None = None) -> Mode:
    """Return the numerics that were asked for.

    Raises:
        RequestError: for numerics that don't exist, or both them and a mask asked for.
    """
    if requested not in MODES:
        raise RequestError(f"numerics={requested!r}: it must be one of {', '.join(MODES)}")
    if mask is not None and requested != "auto":
        raise RequestError(f"mask={mask!r} decides the numerics: give either it or numerics={requested!r}")
    return cast(Mode, requested)


def drive(load: Callable[[Compiler], Backend], model: Any, requested: Mode, mask: Compiler | None) -> Driven:
    """A model loaded for the numerics that were asked for, or for a mask compiler that was.

    Raises:
        ModelError: when exact numerics were asked for and the model or the machine has none, with the reason.
    """
    if mask is not None:
        return _drive_with(load, model, mask)
    if requested == "fast":
        return _drive_with(load, model, DenseCompiler())
    try:
        driven = _drive_with(load, model, ExactCompiler())
    except ModelError as error:  # such as one that can't be driven under another attention; what fast passes say counts
        why = str(error)
    else:
        if driven.numerics.is_bit_exact:
            return driven
        why = driven.numerics.inexact
        driven.target.close()
    if requested == "exact":
        raise ModelError(f"numerics='exact' can't be had here, because {why}: use numerics='auto' or 'fast'")
    driven = _drive_with(load, model, DenseCompiler())
    numerics = replace(driven.numerics, inexact=f"exact numerics can't be had, because {why}")
    return replace(driven, numerics=numerics, why_not_exact=why)


def _drive_with(load: Callable[[Compiler], Backend], model: Any, compiler: Compiler) -> Driven:
    """A model loaded for one compiler, and what the probe says of the pair."""
    target = Target(load(compiler), compiler)
    try:
        numerics = _probed(load, model, target)
    except BaseException:  # Ctrl-C too
        target.close()
        raise
    return Driven(target, numerics, torch.get_num_threads(), model)


def _probed(load: Callable[[Compiler], Backend], model: Any, target: Target) -> Numerics:
    backend, compiler = target.backend, target.compiler
    inexact, deviation = backend.inexact, backend.deviation
    question = _driven_by(target)
    if deviation is None:
        try:
            deviation = recalled(model, f"walk {question}", Deviation, lambda: walk(target).deviation())
        except Exception as fault:  # a third party's backend: decoding may do without what this pass asked for
            inexact, deviation = inexact or f"the probe's passes raised {in_one_line(fault)}", Deviation("", 0.0)
    if deviation.where and not inexact:
        inexact = f"logits have other bits in {deviation.where} than in plain steps"
        if compiler.bit_exact:
            inexact += recalled(
                model, f"remedy {question}", str, lambda: remedy(model, lambda: _is_exact(load, compiler))
            )
    if compiler.bit_exact:
        return Numerics("exact", inexact, deviation.noise)
    return Numerics("fast", inexact or "fast numerics don't promise it", deviation.noise)


def _driven_by(target: Target) -> str:
    """Everything that a finding about a target depends on, besides the model."""
    backend = type(target.backend)
    name = f"{backend.__module__}.{backend.__qualname__} {backend.version}".rstrip()
    return f"{name} {target.backend.options!r} {target.compiler!r}"


def _is_exact(load: Callable[[Compiler], Backend], compiler: Compiler) -> bool:
    """Return True where a model, loaded as it is now since backends may keep graphs, gives the same bits everywhere."""
    backend = load(compiler)
    with closing(Target(backend, compiler)) as target:
        return not backend.inexact and not (backend.deviation or walk(target).deviation()).where
