"""Decoding by several processes: rank 0 decides everything, and the others do what it says."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specdec.backends.architecture import name_of
from specdec.distributed import agreement
from specdec.distributed.part import Part, RankBackend
from specdec.distributed.ranks import Ranks
from specdec.errors import ModelError, SpecdecError
from specdec.plugins.registry import load_plugins
from specdec.weights.holding import Holding, kernel_of
from specdec.weights.layers import is_sharded

WHERE = "_specdec_ranks"  # a model's group is kept with the model
_START_ALIKE = "start all ranks alike, from the same files"


@contextmanager
def group(model: Any, timeout: float = 60.0) -> Iterator[bool]:
    """Decode with a model on all ranks of the process group: entered by each, it is True on rank 0, which decodes.

    ::

        with specdec.distributed.group(model) as leads:
            if leads:
                print(Generator(model, tokenizer, backend="distributed").generate("…").text)

    A model that was loaded with ``tp_plan="auto"`` is sharded, and its layers talk to one another in every pass. Of any
    other, each rank holds the whole, and forwards its share of the branches of each draft tree.

    Any other rank works inside of the call, and leaves it when rank 0 leaves the block. Then it is False there.

    Args:
        model: each rank's own, loaded in the same way.
        timeout: seconds that rank 0 waits for another rank at most.

    Raises:
        ModelError: on every rank, without a process group or where the ranks differ; on a rank that isn't the first,
            when another has ended. On rank 0 whatever is decoded just then raises it.
    """
    ranks = Ranks(timeout)
    agreement.check(ranks, agreement.facts_of(model), _START_ALIKE)
    if not ranks.leads:
        _follow(ranks, model)
        yield False
        return
    vars(model)[WHERE] = ranks
    try:
        yield True
    finally:
        vars(model).pop(WHERE)
        ranks.dismiss()


def _follow(ranks: Ranks, model: Any) -> None:
    """Do what rank 0 says until it says that this was all."""
    parts, weights = dict[int, Part](), dict[int, Holding]()
    while True:
        method, key, *given = ranks.hear()
        try:
            match method:
                case "dismiss":
                    return
                case "load":
                    compiler, kernel = given
                    weights[key] = Holding(kernel or "stock", load_plugins().kernels())
                    parts[key] = load(ranks, model, compiler, weights[key])
                case "ask":
                    name, *rest = given
                    ranks.answer(getattr(parts[key], name)(*rest))
                case "close":
                    parts.pop(key).backend.close()
                    weights.pop(key).give_back()
                case _:  # a step of the loop
                    getattr(parts[key], method)(*given)
        except SpecdecError as error:
            if method != "load":
                raise _ended(ranks, error) from error
            weights.pop(key).give_back()  # every rank has the error: rank 0 decides what comes of it
        except BaseException as error:  # Ctrl-C too
            raise _ended(ranks, error) from error


def _ended(ranks: Ranks, error: BaseException) -> ModelError:
    ranks.fail(error)
    return ModelError(f"rank {ranks.rank} has ended: {error}")


def load(ranks: Ranks, model: Any, compiler: Any, weights: Holding | None = None) -> Part:
    """This rank's part, with all other ranks at the same time.

    Args:
        weights: lays the model's weights out first, as they are on rank 0.

    Raises:
        ModelError: on every rank, where a model can't be driven, or not alike on all of them.
    """
    backend, refusal = None, ""
    try:
        _check_heads(ranks, model)
        if weights is not None:
            weights.lay_out(model)
        backend = RankBackend.load(model, compiler)
    except SpecdecError as error:
        refusal = str(error)
    found = {"refusal": refusal, "kernel": kernel_of(model)} | ({} if backend is None else backend.findings())
    agreement.check(ranks, found, "they can't decode together")
    if backend is None:
        raise ModelError(refusal)
    return Part(ranks, backend, compiler, is_sharded(model))


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
