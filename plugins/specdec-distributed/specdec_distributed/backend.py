"""The backend for a group of processes: rank 0 forwards each call to all ranks."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from pydantic import Field
from transformers import PreTrainedModel

from specdec.backends import BackendOptions, GroupBackend, KVBlock, Output
from specdec.errors import ModelError, PluginError, SpecdecError
from specdec.layout import Compiler, Layout
from specdec.models import ModelSource, name_of, remembered
from specdec.runtime import kernel_of
from specdec.runtime.probes import probe
from specdec.target import Target
from specdec_distributed.loading import load, read_on_rank
from specdec_distributed.process_group import group
from specdec_distributed.rank_worker import Place, RankWorker, TreeShape
from specdec_distributed.ranks import Ranks, ranks_of
from specdec_distributed.shared_output import SharedOutput

_CLEANUP = {"release", "trim", "clear"}
_NO_GROUP = (
    "backend='distributed' decodes with a group of processes: make the generator within "
    "`with specdec_distributed.group(model) as leads`, on rank 0, or run `torchrun --nproc-per-node 2 -m specdec …`"
)


class DistributedOptions(BackendOptions):
    """Options of ``distributed``."""

    split: Literal["tensors", "branches"] = Field(
        default="tensors", description="shard the model's tensors over ranks, or load it whole and share draft branches"
    )


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _BlockOfAll(KVBlock):
    """A stretch of keys and values, cached on all ranks under ``number``; ``parts`` are rank 0's."""

    number: int


class DistributedBackend(GroupBackend):
    """A model on several ranks: sharded over them, or a whole copy on each."""

    Options = DistributedOptions
    runs_layers: ClassVar[bool] = True
    holds_prefixes: bool = True

    def __init__(self, ranks: Ranks, part: RankWorker, key: int) -> None:
        self._ranks, self._worker, self._key = ranks, part, key
        self.shapes, self.examination = part.backend.shapes, part.examination
        self._abandon = weakref.finalize(self, ranks.defer, "close", key)  # in case the generator is never closed

    @classmethod
    def accepts(cls, model: object) -> bool:
        return ranks_of(model) is not None

    @classmethod
    def read(cls, source: ModelSource, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
        raise ModelError(f"every rank loads its own model, so pass a model instead of a name: {_NO_GROUP}")

    @classmethod
    def read_on_rank(cls, source: ModelSource, options: Any) -> tuple[Any, Any]:
        return read_on_rank(source.name, options.split)

    @classmethod
    def group(cls, model: Any, timeout: float) -> AbstractContextManager[bool]:
        return group(model, timeout)

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: Any = None) -> Self:
        ranks = ranks_of(model)
        if ranks is None:
            raise ModelError(_NO_GROUP)
        with ranks.lock, _ending_on_interrupt(ranks):
            key = ranks.new_key()
            ranks.command("load", key, compiler, kernel_of(model))
            loaded = cls(ranks, load(ranks, model, compiler), key)
        if not loaded._worker.is_sharded:  # one rank's examination doesn't cover shared passes
            assert isinstance(model, PreTrainedModel), "a rank's own backend drives it"
            selftest = remembered(
                model,
                ("shared self-test", repr(compiler), ranks.size),
                lambda: probe(Target(loaded, compiler), model, tries_first_layers=False),
            )
            if selftest.fault:
                loaded.close()
                raise ModelError(f"{name_of(model)} can't share branches: {selftest.fault}")
            own = loaded.examination
            loaded.examination = replace(own, inexact=own.inexact or selftest.inexact, noise=selftest.noise)
        return loaded

    def close(self) -> None:
        self._abandon.detach()
        self._do("close", self._worker.close)

    def open(self, capacity: int) -> None:
        self._on_all("open", capacity)

    def expect(self, capacities: Sequence[int]) -> None:
        self._on_all("expect", list(capacities))

    def forward(self, layout: Layout) -> Output:
        shapes = [TreeShape.of(tree) for tree in layout.trees]
        args = shapes, layout.lengths, layout.first, layout.hidden
        own: Output = self._do("forward", partial(self._worker.forward, layout=layout), *args)
        if not self._worker.is_shared:
            return own
        output = SharedOutput(own, len(shapes), layout.columns, partial(self._ask, self._worker.num_passes))
        output.take_hidden(layout.hidden, layout.width)
        return output

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self._do("commit", self._worker.commit, [list(path) for path in paths])

    def rollback(self, row: int, length: int) -> None:
        self._on_all("rollback", row, length)

    def release(self, row: int) -> None:
        self._on_all("release", row)

    def trim(self) -> bool:
        return bool(self._on_all("trim"))

    def clear(self, row: int) -> None:
        self._on_all("clear", row)

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        number = self._ranks.new_key()
        held = _BlockOfAll(self._do("copy_block", self._worker.copy_block, number, row, start, stop).parts, number)
        weakref.finalize(held, self._drop, number)
        return held

    def _drop(self, number: int) -> None:
        self._worker.drop(number)
        self._ranks.defer("drop", self._key, number)

    def append_blocks(self, row: int, held: Sequence[KVBlock]) -> None:
        self._do(
            "append_blocks",
            self._worker.append_blocks,
            row,
            [each.number for each in held if isinstance(each, _BlockOfAll)],
        )

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        own = self._worker.backend.cache_bytes(capacities)
        return own * self._ranks.size if self.shapes.device.type == "cpu" else own  # ranks share the machine's memory

    @property
    def is_warm(self) -> bool:  # type: ignore[override]  # rank 0's
        return self._worker.backend.is_warm

    @property
    def num_rows(self) -> int:
        return self._worker.backend.num_rows

    @property
    def row_bytes(self) -> int:
        return self._worker.backend.row_bytes

    def _on_all(self, method: str, *args: Any) -> Any:
        return self._do("on_backend", self._worker.on_backend, method, *args)

    def _do(self, method: str, own: Callable[..., Any], *args: Any) -> Any:
        """Run a command on every rank; after a rank has ended, run cleanup commands on rank 0 only.

        Raises:
            ModelError: if another rank has ended.
        """
        with self._ranks.lock:
            is_cleanup = method == "close" or (method == "on_backend" and args[0] in _CLEANUP)
            if self._ranks.has_ended and is_cleanup:
                return own(*args)
            with _ending_on_interrupt(self._ranks):
                self._ranks.command(method, self._key, *args)
                try:
                    return own(*args)
                except Exception as error:
                    if self._worker.is_sharded and not isinstance(error, SpecdecError):
                        cause = self._ranks.diagnose(error)
                        self._ranks.end()  # the others may be in the middle of a pass
                        raise cause from error
                    raise

    def _ask(self, number: int, method: str, *args: Any) -> dict[Place, Any]:
        """Call a method of every rank's worker and merge the dicts that they return; ``number`` is the last pass's."""
        if number != self._worker.num_passes:
            raise PluginError("the outputs of an earlier pass were requested, but ranks retain only the last")
        with self._ranks.lock, _ending_on_interrupt(self._ranks):
            self._ranks.command("ask", self._key, method, *args)
            try:
                found: dict[Place, Any] = getattr(self._worker, method)(*args)
            finally:
                replies = self._ranks.replies()
            for each in replies:
                found.update(each)
            return found


@contextmanager
def _ending_on_interrupt(ranks: Ranks) -> Iterator[None]:
    """End the group on Ctrl-C in the block: some ranks may have received a command that others haven't."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        ranks.end()
        raise
