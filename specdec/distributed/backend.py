"""The backend of a group of processes, as rank 0 drives it: each call goes to all ranks."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from transformers.distributed import DistributedConfig

from specdec.backends.base import Backend, BackendOptions, Output
from specdec.distributed.group import WHERE, load
from specdec.distributed.output import SpreadOutput
from specdec.distributed.part import Part, Place, Shape
from specdec.distributed.ranks import Ranks
from specdec.errors import ModelError, SpecdecError
from specdec.layout import Compiler, Layout
from specdec.loading import load_pretrained
from specdec.weights.holding import kernel_of

_NO_GROUP = (
    "backend='distributed' decodes with a group of processes: make the generator within "
    "`with specdec.distributed.group(model) as leads`, on rank 0, or run `torchrun --nproc-per-node 2 -m specdec …`"
)


class DistributedOptions(BackendOptions):
    """Options of ``distributed``.

    Attributes:
        split: how a model that is named is loaded: its ``tensors`` sharded over the ranks, or whole on each, which
            share the ``branches`` of draft trees.
    """

    split: Literal["tensors", "branches"] = "tensors"


class DistributedBackend(Backend):
    """A model on several ranks: sharded, or whole on each of them."""

    Options = DistributedOptions
    runs_layers: ClassVar[bool] = True

    def __init__(self, ranks: Ranks, part: Part, key: int) -> None:
        self._ranks, self._part, self._key = ranks, part, key
        own = part.backend
        self.shapes, self.inexact, self.reason = own.shapes, own.inexact, own.reason
        # Of one rank alone the examination says nothing about passes that several share.
        self.deviation = own.deviation if part.is_sharded else None

    @classmethod
    def accepts(cls, model: object) -> bool:
        return WHERE in getattr(model, "__dict__", ())

    @classmethod
    def read(cls, name: str, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
        if options.split == "branches":
            return load_pretrained(name, tokenizer)
        return load_pretrained(name, tokenizer, distributed_config=DistributedConfig(tp_plan="auto"))

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: Any = None) -> Self:
        ranks: Ranks | None = getattr(model, "__dict__", {}).get(WHERE)
        if ranks is None:
            raise ModelError(_NO_GROUP)
        key = ranks.new_key()
        ranks.tell(("load", key, compiler, kernel_of(model)))
        return cls(ranks, load(ranks, model, compiler), key)

    def close(self) -> None:
        if self._ranks.has_ended:
            self._part.backend.close()
        else:
            self._do("close", self._part.backend.close)

    def open(self, capacity: int) -> None:
        self._on_all("open", capacity)

    def expect(self, capacities: Sequence[int]) -> None:
        self._on_all("expect", list(capacities))

    def forward(self, layout: Layout) -> Output:
        shapes = [Shape.of(tree) for tree in layout.trees]
        given = shapes, layout.lengths, layout.first, layout.hidden
        own: Output = self._do("forward", self._part.forward, *given)
        if not self._part.is_spread:
            return own
        output = SpreadOutput(own, len(shapes), layout.columns, self._ask)
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

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        return self._part.backend.cache_bytes(capacities)

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

    def _do(self, method: str, own: Any, *args: Any) -> Any:
        """Have every rank do something, this one as well.

        Raises:
            ModelError: where another rank has ended.
        """
        self._ranks.tell((method, self._key, *args))
        try:
            return own(*args)
        except SpecdecError:
            raise
        except Exception as error:  # of the model's code, or of its layers' talk
            raise self._ranks.blame(error) from error

    def _ask(self, method: str, *args: Any) -> dict[Place, Any]:
        self._ranks.tell(("ask", self._key, method, *args))
        found: dict[Place, Any] = getattr(self._part, method)(*args)
        for each in self._ranks.answers():
            found.update(each)
        return found
