"""The backend's contract.

A backend owns the model and its cache. Rows are sequences, numbered from 0 without gaps; a pass is over rows that lie
side by side.

Laws:
- A tree forward equals forwarding each root-to-node path alone.
- Keep-then-forward equals a fresh forward over the committed tokens; so does rollback-then-forward.
- What a row gives doesn't depend on the other rows, but for the rounding of another shape; under a compiler that is
  ``bit_exact`` not even for that, unless the backend says why.
- A model that can't satisfy them is refused with the reason, or driven with chains where that is right.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict

from specdec.costs import Costs
from specdec.layout import Compiler, Layout, Shapes
from specdec.models.loading import ModelSource, load_pretrained
from specdec.sampling.topk import greatest_of


class Output:
    """The answers of one forward pass, on the model's device until they are asked for.

    Attributes:
        logits: (rows, columns, vocab), the columns as the layout wanted them.
        hidden: by layer that the layout wanted, (rows, width, size).
        num_top: greatest logits that are copied with the ids of the very greatest, as they will be asked for.
    """

    def __init__(
        self, logits: torch.Tensor, columns: Sequence[int], hidden: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        self.logits = logits
        self.hidden = hidden or {}
        self.column_of = {node: column for column, node in enumerate(columns)}
        self.num_top = 0
        self._ids: list[list[int]] | None = None
        self._top: dict[int, tuple[list[Any], list[Any]]] = {}
        self._top_logits: dict[int, tuple[list[Any], list[Any]]] = {}
        self._fetched: dict[tuple[int, int], torch.Tensor] = {}

    def greatest(self, row: int, node: int) -> int:
        """The id of the greatest logit, the lowest of equals; its complement, below zero, where that is no number."""
        if self._ids is None:  # the one copy to the host that a greedy step needs
            greatest, ids = greatest_of(self.logits, 1)
            ids = torch.where(greatest.isfinite(), ids, ~ids)
            if self.num_top:
                values, tokens = greatest_of(self.logits, self.num_top)
                copied = torch.cat([part.double() for part in (ids, tokens, values)], -1).cpu()
                ids, tokens, values = copied[..., :1], *copied[..., 1:].chunk(2, -1)
                self._top_logits[self.num_top] = tokens.long().tolist(), values.tolist()
            self._ids = ids[..., 0].long().tolist()
        return self._ids[row][self.column_of[node]]

    def top(self, k: int) -> tuple[list[Any], list[Any]]:
        """The ids of the ``k`` greatest logits and their probabilities, (rows, columns, k) each; copied once a pass."""
        if k not in self._top:
            laws = self.logits.softmax(-1, dtype=torch.promote_types(self.logits.dtype, torch.float32))
            self._top[k] = _copied(*greatest_of(laws, k))
        return self._top[k]

    def top_logits(self, k: int) -> tuple[list[Any], list[Any]]:
        """The ids of the ``k`` greatest logits and these, (rows, columns, k) each; copied once a pass."""
        if k not in self._top_logits:
            self._top_logits[k] = _copied(*greatest_of(self.logits, k))
        return self._top_logits[k]

    def fetch(self, places: Sequence[tuple[int, int]]) -> None:
        """Copy the logits of some (row, node) to the host, all at once, where they are read from then on."""
        if self.logits.is_cpu or not places:
            return
        rows, nodes = zip(*places, strict=True)
        copied = self.logits[list(rows), [self.column_of[node] for node in nodes]].cpu()
        self._fetched.update(zip(places, copied, strict=True))

    def at(self, row: int, node: int) -> torch.Tensor:
        """The logits at a node, ``(vocab,)``: on the host where they were fetched, else on the model's device."""
        fetched = self._fetched.get((row, node))
        return self.logits[row, self.column_of[node]] if fetched is None else fetched


def _copied(values: torch.Tensor, ids: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """Ids and values on the host, copied at once."""
    both = torch.stack([ids.double(), values.double()]).cpu()
    return both[0].long().tolist(), both[1].tolist()


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row's part of an output, addressed by the nodes of its tree; ``trunk`` nodes were forwarded before them."""

    output: Output
    row: int
    trunk: int = 0

    def argmax(self, node: int) -> int:
        """The id of the greatest logit at a node, the lowest of equals."""
        found = self.output.greatest(self.row, node + self.trunk)
        return found if found >= 0 else ~found

    def is_finite(self, node: int) -> bool:
        """Return True if the node's greatest logit is finite."""
        return self.output.greatest(self.row, node + self.trunk) >= 0

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, shape ``(vocab,)``."""
        return self.output.at(self.row, node + self.trunk)

    def likeliest(self, node: int, k: int) -> tuple[tuple[int, float], ...]:
        """The ``k`` likeliest next tokens at a node by the raw logits, likeliest first, each with its probability."""
        ids, chances = self.output.top(k)
        column = self.output.column_of[node + self.trunk]
        return tuple(zip(ids[self.row][column], chances[self.row][column], strict=True))

    def top_logits(self, node: int, k: int) -> tuple[tuple[int, float], ...]:
        """The ``k`` greatest raw logits at a node, greatest first, as pairs of token and logit."""
        ids, logits = self.output.top_logits(k)
        column = self.output.column_of[node + self.trunk]
        return tuple(zip(ids[self.row][column], logits[self.row][column], strict=True))

    def place(self, node: int) -> tuple[int, int]:
        """The (row, node) of the output that a node of the tree is."""
        return self.row, node + self.trunk

    def hidden(self, node: int, layers: Sequence[int]) -> torch.Tensor:
        """The hidden states of some layers at a node, (layers, size), on the model's device."""
        return torch.stack([self.output.hidden[layer][self.row, node + self.trunk] for layer in layers])

    def hidden_alone(self) -> "OutputRow":
        """The same row without its logits, which takes less memory to keep."""
        return replace(self, output=Output(self.output.logits.new_empty(0), (), self.output.hidden))


@dataclass(frozen=True, slots=True)
class Held:
    """Keys and values of a stretch of text, apart from any row; ``parts`` are the backend's own."""

    parts: tuple[torch.Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first kind of pass with other bits than plain steps ("" for none), and the greatest difference of a logit."""

    where: str
    noise: float


class BackendOptions(BaseModel):
    """Options of a backend, as ``"name:key=value"`` gives them; a backend that has any declares a subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid")


NO_OPTIONS = BackendOptions()


class Backend(ABC):
    """A model with a cache.

    Attributes:
        Options: the class of its options.
        copies_weights: True where it computes with a copy of the weights that it made when it was loaded.
        version: of the engine that computes its passes, where that isn't torch: findings are kept for it alone.
        options: those that it was loaded with.
        lossy: why it computes another model than it was given, as options may ask for; "" where it doesn't.
        inexact: why its logits' bits depend on what else is in a pass, or "" where nothing like that is known.
        deviation: how far passes deviate from plain steps, where loading has tried it.
        costs: what its passes cost, where that needs no measuring.
        is_settled: False after a pass such that others like it will be faster later, once the backend knows them.
        runs_layers: True where it calls the model's own layers, which may have packed weights then.
        holds_prefixes: True where it defines ``hold`` and ``put``.
        is_preferred: True for a backend that is taken without being named: ``backend="auto"`` offers it each model that
            is given by its name, before torch loads it. Models that are given as objects stay with torch.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions
    version: ClassVar[str] = ""
    runs_layers: ClassVar[bool] = False
    copies_weights: ClassVar[bool] = False
    holds_prefixes: ClassVar[bool] = False
    is_preferred: ClassVar[bool] = False

    options: BackendOptions = NO_OPTIONS
    lossy: str = ""
    shapes: Shapes
    inexact: str = ""
    deviation: Deviation | None = None
    costs: Costs | None = None
    is_settled: bool = True

    @classmethod
    @abstractmethod
    def accepts(cls, model: object) -> bool:
        """Return True if this backend is for such an object; the check is cheap, and never raises an error."""

    @classmethod
    def declines(cls, source: ModelSource) -> str:
        """Return why a preferred backend shouldn't be given a model, or ""; the check is cheap, and reads no weights.

        It declines what it would drive as another model than torch does: another dtype, other weights, another device.
        What it finds out only later, ``read`` and ``load`` say by an error, and torch drives the model then.
        """
        return ""

    @classmethod
    def read(cls, source: ModelSource, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
        """A model that ``load`` takes, and its tokenizer, from a path or hub name; by default transformers'.

        Args:
            source: the name, and the device and dtype that were asked for. What can't be honoured is refused.

        Raises:
            ModelError: with what went wrong.
        """
        return load_pretrained(source.name, tokenizer, source.dtype, source.torch_device)

    @classmethod
    @abstractmethod
    def load(cls, model: object, compiler: Compiler, options: Any) -> "Backend":
        """A backend driving the model with layouts of the given compiler; the caller closes it.

        Args:
            model: an object that ``accepts`` takes.
            compiler: of the layouts that it will be given.
            options: an object of the class ``Options``.

        Raises:
            ModelError: when the model can't be driven, with the reason.
        """

    def refresh(self) -> None:  # noqa: B027 - optional
        """Look at the model anew: called before a request's first pass where no row is opened for it.

        The model's owner may have changed it since the last request.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Undo what ``load`` changed in the model, and free memory; called once, and nothing else after it.

        Backends of one model are closed in the opposite order to that in which they were loaded.
        """

    @abstractmethod
    def open(self, capacity: int) -> None:
        """Open the next row, empty; ``capacity`` is the number of committed tokens that it may grow to."""

    def expect(self, capacities: Sequence[int]) -> None:  # noqa: B027 - optional
        """Hear of the capacities of all rows that will soon be open together: memory need not grow row by row."""

    @abstractmethod
    def forward(self, layout: Layout) -> Output:
        """One pass over the layout's rows; keys and values of its nodes wait behind the committed ones for ``keep``."""

    @abstractmethod
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit a path of the last forward for each of its rows, root first, and drop all its other nodes.

        An empty path commits nothing.
        """

    @abstractmethod
    def rollback(self, row: int, length: int) -> None:
        """Take a row's committed tokens back to the first ``length``, which may be none."""

    @abstractmethod
    def release(self, row: int) -> None:
        """Close a row; the last row takes its number."""

    def hold(self, row: int, start: int, stop: int) -> Held:
        """A copy of the keys and values of a row's committed tokens from ``start`` to ``stop``."""
        raise NotImplementedError

    def put(self, row: int, held: Sequence[Held]) -> None:
        """Commit copies of keys and values, one behind another, behind a row's committed tokens.

        The row is then as if it had read the tokens that they were copied from, which stood at the same positions
        behind the same text.
        """
        raise NotImplementedError

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        """Bytes held for keys and values once rows of these capacities are open; of none, those that are held now.

        0 where that isn't known. Memory that isn't given back when a row closes counts as well.
        """
        return 0

    def trim(self) -> bool:
        """Give back memory that the open rows don't need; False where none was."""
        return False

    def clear(self, row: int) -> None:  # noqa: B027 - optional
        """Overwrite what a row's uncommitted nodes left behind, where a mask can't hide it: NaN reaches any sum."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows that are open."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes held for the keys and values of one row."""
