"""Facts on which all ranks must agree before they decode together."""

import sys
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from specdec_distributed.ranks import Ranks

_PATIENCE = 10.0  # times the timeout: packing a large model takes long
_LONGEST_SHOWN = 80  # characters of a fact in a message
_NUM_READ = 16  # numbers read at each end of a matrix


def facts_of(model: Any) -> dict[str, Hashable]:
    """Return the facts about a process that affect its forward passes, by name."""
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
    """Compare the ranks' facts; return the same message on all ranks, "" if the facts are equal.

    All ranks call this at the same time. The message names the first fact in which a rank differs from rank 0.

    Raises:
        ModelError: if a rank has ended.
    """
    if not ranks.leads:
        ranks.reply(facts)
        message: str = ranks.receive()
        return message
    fault = _difference([facts, *ranks.replies(_PATIENCE)], remedy)
    ranks.broadcast(fault)
    return fault


def _difference(everyone: Sequence[Mapping[str, Hashable]], remedy: str) -> str:
    for name, own in everyone[0].items():
        for rank, facts in enumerate(everyone):
            if facts.get(name) != own:
                values = f", which is {facts.get(name)} and {own}" if len(str(own)) < _LONGEST_SHOWN else ""
                return f"rank {rank} and rank 0 differ in {name}{values}: {remedy}"
    return ""


def _digest(model: torch.nn.Module) -> str:
    """Return a digest of all weights' names and shapes, and of some numbers of weights that aren't sharded."""
    digest = sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        if not isinstance(parameter, DTensor):
            flat = parameter.detach().flatten()
            ends = torch.cat([flat[:_NUM_READ], flat[-_NUM_READ:]]).double().cpu()
            digest.update(ends.numpy().tobytes())
    return digest.hexdigest()[:16]
