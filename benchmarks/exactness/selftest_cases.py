"""One model of the self-test's matrix: loaded as it is, then with one mistake at a time."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from specdec_flash import SplitCompiler
from transformers import PreTrainedModel
from transformers.utils import logging

from specdec.backends.base import Backend
from specdec.backends.hf import HFBackend
from specdec.errors import ModelError, in_one_line
from specdec.layout import Compiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.runtime.probes.examination import examine
from specdec.runtime.probes.selftest import probe
from specdec.target import Target
from tests.support import families, planted

LEAST_PREFIX = 32  # slots: so few that the walk's long context has a prefix apart from its tail


@dataclass(frozen=True)
class Case:
    family: str
    layers: int
    dtype: str
    has_spikes: bool


@dataclass(frozen=True)
class Outcome:
    """The outcome for a model under one compiler: right, or with a mistake.

    ``found``: "trees", "chains", "refused" or "skipped" for right models; "fault", "bits" or "missed" for mistakes.
    """

    case: Case
    compiler: str
    mistake: str
    found: str
    said: str
    seconds: float

    @property
    def is_bad(self) -> bool:
        return self.found in {"refused", "missed", "chains"}

    @property
    def label(self) -> str:
        spikes = "with" if self.case.has_spikes else "without"
        where = f"{self.case.family}, {self.case.layers} layers, {self.case.dtype}, {spikes} spikes, {self.compiler}"
        return f"{self.found}: {self.mistake or 'right model'}: {where}: {self.said}"


def measure(case: Case) -> list[Outcome]:
    """Everything about one model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    dtype = getattr(torch, case.dtype)
    model = families.deep(case.family, case.layers, case.has_spikes).to(dtype)
    try:
        families.plain_logits(model, [1, 2, 3])
    except RuntimeError as error:
        return [Outcome(case, "", "", "skipped", f"the model's own forward raised {in_one_line(error)}", 0.0)]
    compilers = [DenseCompiler(), ExactCompiler(), SplitCompiler(least_prefix=LEAST_PREFIX)]
    if dtype == torch.float64:
        del compilers[1]
    return [outcome for compiler in compilers for outcome in _under(case, model, compiler)]


def _under(case: Case, model: PreTrainedModel, compiler: Compiler) -> Iterator[Outcome]:
    name, began = type(compiler).__name__, perf_counter()
    try:
        right, examination = examine(HFBackend.load(model, compiler), model, compiler)
    except ModelError as error:
        yield Outcome(case, name, "", "refused", str(error), perf_counter() - began)
        return
    kind = "trees" if right.shapes.takes_trees else "chains"
    bits = (examination.inexact or "exact") if compiler.bit_exact else ""
    yield Outcome(case, name, "", kind, examination.reason or bits, perf_counter() - began)
    if not right.shapes.takes_trees or not case.has_spikes:
        return
    is_exact = bits == "exact"
    for mistake in planted.mistakes_of(compiler):
        spoiled = planted.spoiled(compiler, mistake)
        yield _tried(case, mistake, planted.Untested(model, spoiled), model, spoiled, name, is_exact)
    if not isinstance(compiler, DenseCompiler):  # the cache is the same under all masks; exact bits would only help
        return
    for mistake, backend in planted.BACKENDS.items():
        yield _tried(case, mistake, backend(model, compiler), model, compiler, name, is_exact)


def _tried(
    case: Case, mistake: str, backend: Backend, model: PreTrainedModel, compiler: Compiler, name: str, is_exact: bool
) -> Outcome:
    began = perf_counter()
    tried = probe(Target(backend, compiler), model)
    is_seen_in_bits = is_exact and tried.inexact
    found = "fault" if tried.fault else "bits" if is_seen_in_bits else "missed"
    return Outcome(case, name, mistake, found, tried.fault or tried.inexact, perf_counter() - began)
