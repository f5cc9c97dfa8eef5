"""The contracts that plug-ins implement, by kind, and the check that a class does."""

import inspect

from specdec.backends.base import Backend
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
    return ""
