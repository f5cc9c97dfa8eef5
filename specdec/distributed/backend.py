"""The backend of a group of processes, as rank 0 drives it: each call goes to all ranks."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

from pydantic import Field
from transformers import PreTrainedModel

from specdec.backends.base import Backend, BackendOptions, Held
from specdec.backends.output import Output
from specdec.distributed.group import ranks_of
from specdec.distributed.loading import load
from specdec.distributed.output import SpreadOutput
from specdec.distributed.part import Part, Place, Shape
from specdec.distributed.ranks import Ranks
from specdec.errors import ModelError, PluginError, SpecdecError
from specdec.layout import Compiler, Layout
from specdec.models.architecture import name_of
from specdec.models.loading import ModelSource
from specdec.models.state import remembered
from specdec.probes.selftest import probe
from specdec.target import Target
from specdec.weights.lease import kernel_of

_TIDYING = {"release", "trim", "clear"}
_NO_GROUP = (
    "backend='distributed' decodes with a group of processes: make the generator within "
    "`with specdec.distributed.group(model) as leads`, on rank 0, or run `torchrun --nproc-per-node 2 -m specdec …`"
)


class DistributedOptions(BackendOptions):
    """Options of ``distributed``."""

    split: Literal["tensors", "branches"] = Field(
        default="tensors", description="shard the model's tensors over ranks, or load it whole and share draft branches"
    )


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Shared(Held):
    """Keys and values that all ranks hold under a number; ``parts`` are rank 0's."""

    number: int


class DistributedBackend(Backend):
    """A model on several ranks: sharded, or whole on each of them."""

    Options = DistributedOptions
    runs_layers: ClassVar[bool] = True
    holds_prefixes: ClassVar[bool] = True

    def __init__(self, ranks: Ranks, part: Part, key: int) -> None:
        self._ranks, self._part, self._key = ranks, part, key
        own = part.backend
        self.shapes, self.inexact, self.reason = own.shapes, own.inexact, own.reason
        self.deviation = own.deviation
        self._abandon = weakref.finalize(self, ranks.leave, "close", key)  # of a generator that nobody closes

    @classmethod
    def accepts(cls, model: object) -> bool:
        return ranks_of(model) is not None

    @classmethod
    def read(cls, source: ModelSource, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
        raise ModelError(f"every rank loads its own model, and a name given to one of them can't: {_NO_GROUP}")

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: Any = None) -> Self:
        ranks = ranks_of(model)
        if ranks is None:
            raise ModelError(_NO_GROUP)
        with ranks.lock, _whole(ranks):
            key = ranks.new_key()
            ranks.order("load", key, compiler, kernel_of(model))
            loaded = cls(ranks, load(ranks, model, compiler), key)
        if not loaded._part.is_sharded:  # of one rank's passes the examination says nothing about shared ones
            assert isinstance(model, PreTrainedModel), "a rank's own backend drives it"
            tried = remembered(
                model,
                ("shared self-test", repr(compiler), ranks.size),
                lambda: probe(Target(loaded, compiler), model, tries_first_layers=False),
            )
            if tried.fault:
                loaded.close()
                raise ModelError(f"{name_of(model)} can't share branches: {tried.fault}")
            loaded.deviation = tried.deviation
        return loaded

    def close(self) -> None:
        self._abandon.detach()
        self._do("close", self._part.close)

    def open(self, capacity: int) -> None:
        self._on_all("open", capacity)

    def expect(self, capacities: Sequence[int]) -> None:
        self._on_all("expect", list(capacities))

    def forward(self, layout: Layout) -> Output:
        shapes = [Shape.of(tree) for tree in layout.trees]
        given = shapes, layout.lengths, layout.first, layout.hidden
        own: Output = self._do("forward", partial(self._part.forward, layout=layout), *given)
        if not self._part.is_spread:
            return own
        output = SpreadOutput(own, len(shapes), layout.columns, partial(self._ask, self._part.num_passes))
        output.take_hidden(layout.hidden, layout.width)
        return output

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self._do("keep", self._part.keep, [list(path) for path in paths])

    def rollback(self, row: int, length: int) -> None:
        self._on_all("rollback", row, length)

    def release(self, row: int) -> None:
        self._on_all("release", row)

    def trim(self) -> bool:
        return bool(self._on_all("trim"))

    def clear(self, row: int) -> None:
        self._on_all("clear", row)

    def hold(self, row: int, start: int, stop: int) -> Held:
        number = self._ranks.new_key()
        held = _Shared(self._do("hold", self._part.hold, number, row, start, stop).parts, number)
        weakref.finalize(held, self._drop, number)
        return held

    def _drop(self, number: int) -> None:
        self._part.drop(number)
        self._ranks.leave("drop", self._key, number)

    def put(self, row: int, held: Sequence[Held]) -> None:
        self._do("put", self._part.put, row, [each.number for each in held if isinstance(each, _Shared)])

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        own = self._part.backend.cache_bytes(capacities)
        return own * self._ranks.size if self.shapes.device.type == "cpu" else own  # ranks share the machine's memory

    @property
    def is_settled(self) -> bool:  # type: ignore[override]  # the own rank's
        return self._part.backend.is_settled

    @property
    def num_rows(self) -> int:
        return self._part.backend.num_rows

    @property
    def row_bytes(self) -> int:
        return self._part.backend.row_bytes

    def _on_all(self, method: str, *args: Any) -> Any:
        return self._do("on_backend", self._part.on_backend, method, *args)

    def _do(self, method: str, own: Callable[..., Any], *args: Any) -> Any:
        """Have every rank do something, this one as well; once one has gone, this one alone, to tidy up.

        Raises:
            ModelError: where another rank has ended.
        """
        with self._ranks.lock:
            is_tidying = method == "close" or (method == "on_backend" and args[0] in _TIDYING)
            if self._ranks.has_ended and is_tidying:
                return own(*args)
            with _whole(self._ranks):
                self._ranks.order(method, self._key, *args)
                try:
                    return own(*args)
                except Exception as error:
                    if self._part.is_sharded and not isinstance(error, SpecdecError):
                        blamed = self._ranks.blame(error)
                        self._ranks.end()  # the others may be in the middle of a pass
                        raise blamed from error
                    raise

    def _ask(self, number: int, method: str, *args: Any) -> dict[Place, Any]:
        """The united answers of all ranks about a pass, which must be the last one."""
        if number != self._part.num_passes:
            raise PluginError("the answers of an earlier pass were asked for, which ranks don't keep")
        with self._ranks.lock, _whole(self._ranks):
            self._ranks.order("ask", self._key, method, *args)
            try:
                found: dict[Place, Any] = getattr(self._part, method)(*args)
            finally:
                answers = self._ranks.answers()
            for each in answers:
                found.update(each)
            return found


@contextmanager
def _whole(ranks: Ranks) -> Iterator[None]:
    """Nothing is told any more after Ctrl-C in here: some ranks may have heard what others have not."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        ranks.end()
        raise
