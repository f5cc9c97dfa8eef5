"""Decoding by several processes: rank 0 sends commands, and the other ranks run them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specdec.errors import ModelError, in_one_line
from specdec_distributed.agreement import difference, facts_of
from specdec_distributed.ranks import Ranks, leading

if TYPE_CHECKING:  # transformers' model code takes seconds to import
    from specdec_distributed.rank_worker import RankWorker


@contextmanager
def group(model: Any, timeout: float = 60.0) -> Iterator[bool]:
    """Decode with a model on all ranks of the process group. Every rank enters the block; rank 0, where it yields True,
    decodes.

    ::

        with specdec_distributed.group(model) as leads:
            if leads:
                print(Generator(model, tokenizer, backend="distributed").generate("…").text)

    A model loaded with ``tp_plan="auto"`` is sharded, and its layers communicate in every pass. Of any other model,
    each rank has a full copy and forwards its share of each draft tree's branches.

    On the other ranks the call runs rank 0's commands, and yields False after rank 0 has left the block.

    Args:
        model: the rank's own model, loaded in the same way on every rank.
        timeout: the longest that rank 0 waits for another rank, in seconds.

    Raises:
        ModelError: on every rank, if there is no process group or the ranks differ; on ranks other than 0, if another
            rank has ended. On rank 0 the running request raises the latter.
    """
    ranks = Ranks(timeout)
    if fault := difference(ranks, facts_of(model), "start all ranks alike, from the same files"):
        raise ModelError(fault)
    if ranks.leads:
        with leading(model, ranks):
            yield True
    else:
        _follow(ranks, model)
        yield False


def _follow(ranks: Ranks, model: Any) -> None:
    """Run rank 0's commands until rank 0 leaves the block."""
    workers: dict[int, RankWorker] = {}
    try:
        while (command := ranks.receive())[0] != "dismiss":
            _run(ranks, model, workers, *command)
    finally:
        for worker in workers.values():
            worker.close()


def _run(ranks: Ranks, model: Any, workers: "dict[int, RankWorker]", method: str, key: int, *args: Any) -> None:
    """Run one command, which rank 0 runs as well."""
    from specdec_distributed.loading import RefusalError

    try:
        match method:
            case "load":
                workers[key] = _load(ranks, model, *args)
            case "ask":
                name, *rest = args
                ranks.reply(getattr(workers[key], name)(*rest))
            case "close" | "drop" if key not in workers:  # deferred, and closed in the meantime
                pass
            case "close":
                workers.pop(key).close()
            case _:  # a call of the decoding loop
                getattr(workers[key], method)(*args)
    except RefusalError:  # raised on every rank: rank 0 handles it
        pass
    except BaseException as error:  # Ctrl-C too
        ranks.report_failure(error)
        raise ModelError(f"rank {ranks.rank} has ended: {in_one_line(error)}") from error


def _load(ranks: Ranks, model: Any, compiler: Any, kernel: str) -> "RankWorker":
    """Pack the weights with rank 0's kernel, and load this rank's worker."""
    from specdec.plugins import load_plugins
    from specdec.runtime import WeightsLease
    from specdec_distributed.loading import load

    lease = WeightsLease(kernel or "stock", load_plugins().kernels())
    try:
        return load(ranks, model, compiler, lease.acquire, lease.release)
    except BaseException:
        lease.release()
        raise
