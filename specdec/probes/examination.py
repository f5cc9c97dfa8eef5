"""The examination of a transformers model at load: is it driven with trees, with chains or not at all, and how exactly?

Findings are kept for the same model on the same machine, in the cache folder as well: other weights, an adapter, a cast
or another number of threads is examined anew.
"""

import math
from dataclasses import replace

from transformers import PreTrainedModel

from specdec.backends.base import Backend
from specdec.errors import ModelError
from specdec.layout import Compiler
from specdec.models.architecture import name_of
from specdec.models.state import lock_of, remembered
from specdec.probes.causality import why_no_decoder
from specdec.probes.products import Products, probe_products
from specdec.probes.recall import recalled
from specdec.probes.selftest import Tried, probe
from specdec.probes.switching import why_not_switchable
from specdec.target import Target

_PROBE_SECONDS = 0.5


def examine(
    backend: Backend,
    model: PreTrainedModel,
    compiler: Compiler,
    why_chains: str = "",
    no_chains: str = "",
    is_timed: bool = True,
) -> str:
    """Set a backend's shapes, ``inexact`` and ``deviation`` by what its model and this machine's libraries do.

    Args:
        why_chains: a reason, known beforehand, why the model takes chains only.
        no_chains: the refusal of a backend that has no chains.
        is_timed: what takes long here is cut short; otherwise any two processes do the same.

    Returns:
        The reason why the model takes chains only, "" where it takes trees.

    Raises:
        ModelError: for a model that can't be driven losslessly, or not under the compiler's attention.
    """
    if compiler.bit_exact:
        products = products_of(model, _PROBE_SECONDS if is_timed else math.inf)
        backend.inexact = products.inexact
        # A prompt's last pass has a tree behind less than a chunk.
        chunk = min(backend.shapes.chunk, products.most_rows // 2)
        backend.shapes = replace(backend.shapes, row_multiple=products.row_multiple, chunk=chunk)
    if compiler.attention is not None:
        fixed = why_fixed(model)
        if fixed and not compiler.bit_exact:
            raise ModelError(f"mask={compiler!r} can't be used with {name_of(model)}: {fixed}; leave out mask=")
        why_chains = why_chains or fixed  # chains alone, on the model's own attention
    tried = None if why_chains else _try_out(backend, model, compiler, is_timed)
    why_chains = why_chains or (tried.fault if tried is not None else "")
    if why_chains:
        if no_chains:
            raise ModelError(f"{no_chains}: {why_chains}; use backend='hf'")
        backend.shapes = replace(backend.shapes, takes_trees=False)
        tried = _try_out(backend, model, compiler, is_timed)
        if tried.fault:
            raise ModelError(_refusal(model, why_chains, tried.fault))
        if compiler.bit_exact:
            no_trees = f"it can't be given trees under exact attention ({why_chains})"
            backend.inexact = compiler.refuses(model.dtype) or no_trees
    assert tried is not None, "with trees or chains, it was tried"
    backend.deviation = tried.deviation
    return why_chains


def why_fixed(model: PreTrainedModel) -> str:
    """Return the reason why another attention can't take the place of the model's own, "" where it can."""
    return remembered(model, "switching", lambda: why_not_switchable(model))


def products_of(model: PreTrainedModel, seconds: float = _PROBE_SECONDS) -> Products:
    """Return what is known of the rows of the model's matrix products."""
    return recalled(model, "products", Products, lambda: probe_products(model, seconds), math.isinf(seconds))


def _try_out(backend: Backend, model: PreTrainedModel, compiler: Compiler, is_timed: bool) -> Tried:
    """Return what the self-test finds, once for a model and all backends of this kind."""
    shapes = backend.shapes
    driven_by = type(backend).__qualname__, repr(compiler), shapes.takes_trees, shapes.row_multiple, shapes.chunk
    question = " ".join(map(str, ("self-test", *driven_by)))
    return recalled(
        model, question, Tried, lambda: probe(Target(backend, compiler), model, is_timed=is_timed), not is_timed
    )


def _refusal(model: PreTrainedModel, with_trees: str, with_chains: str) -> str:
    both = with_trees if with_chains == with_trees else f"with trees, {with_trees}; with chains, {with_chains}"
    with lock_of(model):
        why = why_no_decoder(model) or "; ".join(filter(None, [both, products_of(model).inexact]))
    return f"{name_of(model)} can't be driven losslessly: {why}"
