"""The facts that all ranks must share before they decode together."""

import sys
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from specdec.distributed.ranks import Ranks
from specdec.errors import ModelError

_NUM_READ = 16  # of a matrix's numbers, from its beginning and from its end


def facts_of(model: Any) -> dict[str, Hashable]:
    """Everything about a process that its passes depend on, by name."""
    return {
        "version of Python": sys.version.split()[0],
        "version of specdec": version("specdec"),
        "version of torch": torch.__version__,
        "version of transformers": version("transformers"),
        "number of threads": torch.get_num_threads(),
        "kind of processor": torch.backends.cpu.get_cpu_capability(),
        "class of model": type(model).__name__,
        "configuration": str({key: own for key, own in model.config.to_dict().items() if not key.startswith("_")}),
        "kind of device": model.device.type,
        "dtype": str(model.dtype),
        "weights": _digest(model),
    }


def check(ranks: Ranks, facts: Mapping[str, Hashable], what: str) -> None:
    """Compare facts that every rank has of itself, and go on where all are the same.

    Raises:
        ModelError: on every rank, with the first fact that differs and what it is on the ranks.
    """
    if not ranks.leads:
        ranks.answer(facts)
        if fault := ranks.hear():
            raise ModelError(fault)
        return
    everyone = [facts, *ranks.answers()]
    fault = _difference(everyone, what)
    ranks.tell(fault)
    if fault:
        raise ModelError(fault)


def _difference(everyone: Sequence[Mapping[str, Hashable]], what: str) -> str:
    for name, own in everyone[0].items():
        for rank, facts in enumerate(everyone):
            if facts.get(name) != own:
                told = f": {own} on rank 0, {facts.get(name)} on rank {rank}" if _is_short(own) else ""
                return f"rank {rank} has another {name} than rank 0{told}: {what}"
    return ""


def _is_short(fact: Hashable) -> bool:
    return len(str(fact)) < 80


def _digest(model: torch.nn.Module) -> str:
    """A digest of names, shapes and some numbers of all weights; numbers of sharded ones differ, and are left out."""
    digest = sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        if not isinstance(parameter, DTensor):
            flat = parameter.detach().flatten()
            ends = torch.cat([flat[:_NUM_READ], flat[-_NUM_READ:]]).double().cpu()
            digest.update(ends.numpy().tobytes())
    return digest.hexdigest()[:16]
