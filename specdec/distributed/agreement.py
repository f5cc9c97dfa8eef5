"""The facts that all ranks must share before they decode together."""

import sys
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from specdec.distributed.ranks import Ranks

_PATIENCE = 10.0  # times the limit: large models take their time to be laid out
_LONGEST_TOLD = 80  # characters
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
        "attention": str(model.config._attn_implementation),
        "weights": _digest(model),
    }


def difference(ranks: Ranks, facts: Mapping[str, Hashable], remedy: str) -> str:
    """The first of the facts that every rank has of itself in which one differs from rank 0; "" where all are alike.

    All ranks call this at once, and get the same answer.

    Raises:
        ModelError: where a rank has gone.
    """
    if not ranks.leads:
        ranks.answer(facts)
        told: str = ranks.hear()
        return told
    fault = _difference([facts, *ranks.answers(_PATIENCE)], remedy)
    ranks.tell(fault)
    return fault


def _difference(everyone: Sequence[Mapping[str, Hashable]], remedy: str) -> str:
    for name, own in everyone[0].items():
        for rank, facts in enumerate(everyone):
            if facts.get(name) != own:
                told = f", which is {facts.get(name)} and {own}" if len(str(own)) < _LONGEST_TOLD else ""
                return f"rank {rank} and rank 0 differ in {name}{told}: {remedy}"
    return ""


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
