"""Loads the model's workers on all ranks; they are equal on all ranks, or all ranks refuse them."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from specdec.backends import Backend, Examination
from specdec.errors import ModelError, SpecdecError, in_one_line
from specdec.models import load_pretrained, name_of
from specdec.models.weights import is_sharded
from specdec.runtime import kernel_of
from specdec.runtime.probes import examine
from specdec_distributed.agreement import difference
from specdec_distributed.rank_worker import RankBackend, RankWorker
from specdec_distributed.ranks import Ranks


class RefusalError(ModelError):
    """Raised on every rank if one rank can't drive the model."""


def read_on_rank(name: str, split: Literal["tensors", "branches"]) -> tuple[Any, Any]:
    """Load a rank's model and tokenizer from a path or hub name; all ranks call this at the same time.

    Args:
        split: ``tensors`` shards the model over the ranks; with ``branches`` each rank loads all of it.

    Raises:
        ModelError: if the model can't be loaded or sharded.
    """
    if split == "branches":
        return load_pretrained(name)
    from transformers.distributed import DistributedConfig

    sharded = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
    model, tokenizer = load_pretrained(name, distributed_config=sharded)
    if dist.get_world_size() > 1 and not is_sharded(model):
        raise ModelError(
            f"transformers has no plan to shard a {name_of(model)}, and loaded {name!r} whole. Share the branches of "
            "drafts instead, with backend='distributed:split=branches'"
        )
    return model, tokenizer


def load(
    ranks: Ranks,
    model: Any,
    compiler: Any,
    pack: Callable[[Any], object] = lambda _: None,
    unpack: Callable[[], None] = lambda: None,
) -> RankWorker:
    """Load this rank's worker; all ranks call this at the same time.

    Args:
        pack, unpack: pack the model's weights as on rank 0, and undo that when the worker closes.

    Raises:
        RefusalError: on every rank, if one rank can't drive the model or the ranks' models differ.
    """
    examined, refusal = None, ""
    try:
        _check_heads(ranks, model)
        pack(model)
        examined = examine(RankBackend.load(model, compiler), model, compiler)
    except SpecdecError as error:
        refusal = str(error)
    except Exception as error:  # the other ranks wait for this rank's findings
        refusal = f"rank {ranks.rank}: {in_one_line(error)}"
    found = {"refusal": refusal, "kernel": kernel_of(model)} | ({} if examined is None else _findings(*examined))
    if fault := difference(ranks, found, "they can't decode together"):
        raise RefusalError(fault)
    if examined is None:
        raise RefusalError(refusal)
    return RankWorker(ranks, *examined, compiler, is_sharded(model), unpack)


def _findings(backend: Backend, examination: Examination) -> dict[str, Hashable]:
    """Return the findings on which all ranks must agree, by name."""
    shapes = backend.shapes
    return {
        "shapes": str(replace(shapes, device=torch.device(shapes.device.type))),
        "reason against trees": examination.reason,
        "reason against exact numerics": examination.inexact,
        "noise": examination.noise,
    }


def _check_heads(ranks: Ranks, model: Any) -> None:
    """Raise ModelError if the number of ranks doesn't divide a sharded model's numbers of heads."""
    config = model.config.get_text_config()
    counts = {getattr(config, name, ranks.size) for name in ("num_attention_heads", "num_key_value_heads")}
    if is_sharded(model) and any(count % ranks.size for count in counts if count):
        shown = " and ".join(map(str, sorted(counts)))
        raise ModelError(
            f"{name_of(model)} can't be sharded over {ranks.size} ranks: it has {shown} heads. Use a number of ranks "
            "that divides them, or backend='distributed:split=branches'"
        )
