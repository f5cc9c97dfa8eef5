"""Decoding by several processes: rank 0 decides everything, and the others do what it says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec.distributed import agreement
from specdec.distributed.ranks import Ranks
from specdec.errors import ModelError, in_one_line

if TYPE_CHECKING:  # models' modules come with a model
    from specdec.distributed.part import Part

_WHERE = "_specdec_ranks"
_START_ALIKE = "start all ranks alike, from the same files"


@dataclass(frozen=True, slots=True)
class _Membership:
    """A model's group, kept with the model; of a copy, or a model made of the same layers, it is none."""

    ranks: Ranks
    model: Any

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def ranks_of(model: object) -> Ranks | None:
    """The group that a model decodes with, on rank 0; None for any other."""
    member: _Membership | None = getattr(model, "__dict__", {}).get(_WHERE)
    return member.ranks if member is not None and member.model is model else None


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
    if fault := agreement.difference(ranks, agreement.facts_of(model), _START_ALIKE):
        raise ModelError(fault)
    if not ranks.leads:
        _follow(ranks, model)
        yield False
        return
    vars(model)[_WHERE] = _Membership(ranks, model)
    try:
        yield True
    finally:
        vars(model).pop(_WHERE)
        ranks.dismiss()


def _follow(ranks: Ranks, model: Any) -> None:
    """Do what rank 0 says until it says that this was all."""
    parts: dict[int, Part] = {}
    try:
        while (order := ranks.hear())[0] != "dismiss":
            _obey(ranks, model, parts, *order)
    finally:
        for part in parts.values():
            part.close()


def _obey(ranks: Ranks, model: Any, parts: "dict[int, Part]", method: str, key: int, *given: Any) -> None:
    """Do one thing that rank 0 does as well."""
    from specdec.distributed.loading import RefusalError, load_as_told

    try:
        match method:
            case "load":
                parts[key] = load_as_told(ranks, model, *given)
            case "ask":
                name, *rest = given
                ranks.answer(getattr(parts[key], name)(*rest))
            case "close" | "drop" if key not in parts:  # left for later, and closed since
                pass
            case "close":
                parts.pop(key).close()
            case _:  # a step of the loop
                getattr(parts[key], method)(*given)
    except RefusalError:  # as on every rank: rank 0 decides what comes of it
        pass
    except BaseException as error:  # Ctrl-C too
        ranks.fail(error)
        raise ModelError(f"rank {ranks.rank} has ended: {in_one_line(error)}") from error
