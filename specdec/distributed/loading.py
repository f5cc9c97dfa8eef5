"""The parts of a group, loaded by all ranks at the same time: alike, or not at all."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch.distributed as dist

from specdec.distributed import agreement
from specdec.distributed.part import Part, RankBackend
from specdec.distributed.ranks import Ranks
from specdec.errors import ModelError, SpecdecError, in_one_line
from specdec.models.architecture import name_of
from specdec.models.loading import load_pretrained
from specdec.plugins.registry import load_plugins
from specdec.probes.examination import examine
from specdec.weights.layers import is_sharded
from specdec.weights.lease import Holding, kernel_of


class RefusalError(ModelError):
    """A model that no rank drives, as all of them know."""


def read(name: str, split: Literal["tensors", "branches"]) -> tuple[Any, Any]:
    """A rank's model and its tokenizer, from a path or hub name, on all ranks at the same time.

    Args:
        split: its ``tensors`` are sharded over the ranks, or each has the whole, to share ``branches``.

    Raises:
        ModelError: with what went wrong.
    """
    if split == "branches":
        return load_pretrained(name)
    from transformers.distributed import DistributedConfig

    sharded = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
    model, tokenizer = load_pretrained(name, distributed_config=sharded)
    if dist.get_world_size() > 1 and not is_sharded(model):
        raise ModelError(
            f"transformers has left {name!r} whole: it has no plan to shard a {name_of(model)}. Share the branches of "
            "drafts instead, with backend='distributed:split=branches'"
        )
    return model, tokenizer


def load_as_told(ranks: Ranks, model: Any, compiler: Any, kernel: str) -> Part:
    """Lay the weights out as they are on rank 0, and load the part that belongs to it."""
    holding = Holding("auto", load_plugins().kernels())
    try:
        return load(ranks, model, compiler, partial(holding.lay_out, requested=kernel or "stock"), holding.give_back)
    except BaseException:
        holding.give_back()
        raise


def load(
    ranks: Ranks,
    model: Any,
    compiler: Any,
    lay_out: Callable[[Any], object] = lambda _: None,
    give_back: Callable[[], None] = lambda: None,
) -> Part:
    """This rank's part, with all other ranks at the same time.

    Args:
        lay_out, give_back: pack the model's weights as they are on rank 0, and undo that at the part's end.

    Raises:
        RefusalError: on every rank, where a model can't be driven, or not alike on all of them.
    """
    backend, refusal = None, ""
    try:
        _check_heads(ranks, model)
        lay_out(model)
        backend = examine(RankBackend.load(model, compiler))
    except SpecdecError as error:
        refusal = str(error)
    except Exception as error:  # the others wait for this rank's findings
        refusal = f"rank {ranks.rank}: {in_one_line(error)}"
    found = {"refusal": refusal, "kernel": kernel_of(model)} | ({} if backend is None else backend.findings())
    if fault := agreement.difference(ranks, found, "they can't decode together"):
        raise RefusalError(fault)
    if backend is None:
        raise RefusalError(refusal)
    return Part(ranks, backend, compiler, is_sharded(model), give_back)


def _check_heads(ranks: Ranks, model: Any) -> None:
    """Raise ModelError for a sharded model with numbers of heads that the ranks don't divide."""
    config = model.config.get_text_config()
    counts = {getattr(config, name, ranks.size) for name in ("num_attention_heads", "num_key_value_heads")}
    if is_sharded(model) and any(count % ranks.size for count in counts if count):
        told = " and ".join(map(str, sorted(counts)))
        raise ModelError(
            f"{name_of(model)} can't be sharded over {ranks.size} ranks: it has {told} heads. Use a number of ranks "
            "that divides them, or backend='distributed:split=branches'"
        )
