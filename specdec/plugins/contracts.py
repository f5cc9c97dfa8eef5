"""The contracts that plug-ins implement, by kind, and the check that a class does."""

import inspect

from specdec.backends.base import Backend, BackendOptions
from specdec.constraints.base import Constraint
from specdec.masks.base import MaskCompiler
from specdec.models.weights.base import Kernel
from specdec.strategies.base import Proposer
from specdec.verifiers.base import Verifier

CONTRACTS: dict[str, type] = {
    "proposers": Proposer,
    "verifiers": Verifier,
    "masks": MaskCompiler,
    "backends": Backend,
    "kernels": Kernel,
    "constraints": Constraint,
}


def fault_of(cls: object, kind: str) -> str:
    """Return how a class breaks the contract of its kind, or ""."""
    contract = CONTRACTS[kind]
    if not (isinstance(cls, type) and issubclass(cls, contract)):
        return f"{cls!r} is not a subclass of specdec's {contract.__name__}"
    if inspect.isabstract(cls):
        return f"{cls.__name__} doesn't define {', '.join(sorted(getattr(cls, '__abstractmethods__', ())))}"
    if issubclass(cls, Proposer) and (cls.start, cls.bind) == (Proposer.start, Proposer.bind):
        return f"{cls.__name__} doesn't define start, or bind for an engine of its own"
    promises = ("lossless", "reads_q") if kind == "verifiers" else ()
    for promise in promises:
        if not isinstance(getattr(cls, promise, None), bool):
            return f"{cls.__name__} must say whether it is {promise}: True or False"
    if issubclass(cls, Backend) and not _takes_options(cls):
        return (
            f"{cls.__name__}.load must take a model, a compiler and options, and Options be a subclass of specdec's "
            "BackendOptions (specdec/backends/base.py)"
        )
    return ""


def _takes_options(backend: type[Backend]) -> bool:
    try:
        inspect.signature(backend.load).bind(None, None, None)
    except TypeError:
        return False
    return isinstance(backend.Options, type) and issubclass(backend.Options, BackendOptions)
