"""The backend's contract.

A backend owns the model and its cache. Rows are sequences, numbered from 0 without gaps; a pass covers consecutive
rows.

Laws:
- A tree forward equals forwarding each root-to-node path alone.
- Keep-then-forward equals a fresh forward over the committed tokens; so does rollback-then-forward.
- A row's output doesn't depend on the other rows, except by rounding; under a ``bit_exact`` compiler not even by
  rounding, unless the examination says why.
- A model that can't satisfy these laws is refused with the reason, or driven with chains if that is correct. The
  self-test that finds this out (``specdec/runtime/probes/examination.py``) tests ``HFBackend`` and its subclasses
  alone: any other backend knows its engine, sets ``shapes`` and ``examination`` in ``load``, and is tested by
  ``specdec.testing.check_backend``.

The smallest backend is ``toy.py``.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import BaseModel, ConfigDict

from specdec.backends.output import Output
from specdec.costs import CostModel, Costs, StepCosts
from specdec.inputs.base import PromptInputs
from specdec.layout import Compiler, Layout, Shapes
from specdec.models.loading import ModelSource, load_pretrained


@dataclass(frozen=True, slots=True)
class KVBlock:
    """Copied keys and values of a stretch of text; ``parts`` are in the backend's own format."""

    parts: tuple[torch.Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def is_resumable(self) -> bool:
        """False if a row with this copy as its last one would have to read all of it again."""
        return True

    @property
    def is_final(self) -> bool:
        """False if a later copy of the same text may be better."""
        return True

    def improved(self, other: "KVBlock") -> "KVBlock":
        """Return the better of this copy and another row's of the same text."""
        return self


@dataclass(frozen=True, slots=True)
class Examination:
    """The facts about a loaded model's passes that its engine knows or that probes at load have found.

    A backend sets what it knows in ``load``. The probes add the rest, and the target holds the result.

    Attributes:
        reason: why the model supports chains only, or no drafts, or "".
        inexact: why the bits of logits depend on the rest of the pass, or "".
        lossy: why options make the backend compute another model than the given one, or "".
        noise: the largest difference of a logit between plain steps and other passes; None if it wasn't measured yet.
        key: as text, all that findings about the passes depend on besides the model.
    """

    reason: str = ""
    inexact: str = ""
    lossy: str = ""
    noise: float | None = None
    key: str = ""


class BackendOptions(BaseModel):
    """The options of a backend, as in ``"name:key=value"``; backends with options declare a subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid")


NO_OPTIONS = BackendOptions()
E = TypeVar("E")


class Backend(ABC):
    """A model with a cache.

    Attributes:
        Options: the class of the options.
        version: of the plug-in and its engine; "" for specdec's own backends. Probes' findings are cached by version.
        shapes: the facts that layouts and drafts depend on; set by ``load``.
        examination: what ``load`` knows about the passes without running any.
        costs: the costs of passes, if they are known without measuring.
        is_warm: False while the backend is still warming up for passes like the last one.
        runs_layers: True if passes call the model's own layers, whose weights may then be packed; False if they use a
            copy of the weights, made at load.
        is_preferred: True if ``backend="auto"`` offers it each model that is given by name, before torch loads it.
        holds_prefixes: True if the backend supports ``copy_block`` and ``append_blocks``.
        takes_inputs: True if the backend supports ``set_inputs``: prompts with images, audio or an encoder's states.
        replaces_layers: True if passes run something else in the place of the model's layers. Whatever fails there, or
            has other bits, the next backend may do better with the layers.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions
    version: ClassVar[str] = ""
    runs_layers: ClassVar[bool] = False
    is_preferred: ClassVar[bool] = False
    replaces_layers: ClassVar[bool] = False
    takes_inputs: ClassVar[bool] = False

    holds_prefixes: bool = False
    shapes: Shapes
    examination: Examination = Examination()
    costs: Costs | None = None
    is_warm: bool = True

    @classmethod
    @abstractmethod
    def accepts(cls, model: object) -> bool:
        """Return True if this backend drives such objects; cheap, and never raises."""

    @classmethod
    def declines(cls, source: ModelSource) -> str:
        """Return why a preferred backend declines a model, or ""; cheap, and reads no weights.

        A backend declines if it would compute something else than torch: with another dtype, other weights or another
        device. Problems found later are errors of ``read`` and ``load``; torch then decodes.
        """
        return ""

    @classmethod
    def read(cls, source: ModelSource, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
        """Return a model for ``load`` and its tokenizer, from a path or hub name (default: as transformers loads them).

        Args:
            source: the name, device and dtype.

        Raises:
            ModelError: if the model can't be read, or not with this device and dtype.
        """
        return load_pretrained(source.name, tokenizer, source.dtype, source.torch_device, source.hub_answer())

    @classmethod
    @abstractmethod
    def load(cls, model: object, compiler: Compiler, options: Any) -> "Backend":
        """Return a backend for a model; the caller closes it.

        Args:
            model: an object for which ``accepts`` is True.
            compiler: of all layouts.
            options: an instance of ``Options``.

        Raises:
            ModelError: with the reason, if the model is unsupported.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the passes so far, which are reported with each result."""
        return ()

    def refresh(self) -> None:  # noqa: B027 - optional
        """Check whether the model's owner has changed it; called before a request that reuses a row."""

    def close(self) -> None:  # noqa: B027 - optional
        """Undo what ``load`` changed in the model, and free memory; the last call of all.

        Backends of one model are closed in the reverse order of loading.
        """

    def why_slow(self) -> str:
        """Return why the model's next backend is faster, or ""; asked at load if the backend wasn't chosen by name."""
        return ""

    def extension(self, contract: type[E]) -> E | None:
        """Return the engine's own implementation of a contract outside the core, None if it has none (default).

        The passes of trained heads are one: ``specdec.heads.base.HeadRunners``. It may be used after ``close``.
        """
        return None

    @abstractmethod
    def open(self, capacity: int) -> None:
        """Open the next row, empty, for up to ``capacity`` tokens."""

    def set_inputs(self, row: int, inputs: PromptInputs | None) -> None:
        """Set what a row's prompt holds besides tokens, before its passes; it moves with the row on ``release``."""
        raise NotImplementedError

    def expect(self, capacities: Sequence[int]) -> None:  # noqa: B027 - optional
        """Announce the capacities of all rows that will soon be open, so that memory need not grow row by row."""

    def expect_hidden(self, layers: Collection[int]) -> None:  # noqa: B027 - optional
        """Announce layers whose hidden states layouts will request, so that no pass is delayed by preparations.

        Raises:
            ModelError: if the states are unavailable, with the remedy.
        """

    @abstractmethod
    def forward(self, layout: Layout) -> Output:
        """Run a pass; the keys and values of its nodes stay uncommitted until ``commit``."""

    @abstractmethod
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit a path for each row of the last pass, root first, and drop all other nodes."""

    @abstractmethod
    def rollback(self, row: int, length: int) -> None:
        """Drop a row's tokens after the first ``length``."""

    @abstractmethod
    def release(self, row: int) -> None:
        """Close a row; the last row gets its number."""

    def cost_model(self, measured: Costs, max_size: int, learns: bool) -> CostModel:
        """Return a model of what steps cost (default: c(T), corrected by the time that steps take).

        Args:
            measured: c(T), at load.
            max_size: of a step.
            learns: whether the time that steps take corrects it.
        """
        return StepCosts(measured, max_size, learns)

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        """Copy the keys and values of a row's tokens from ``start`` to ``stop``."""
        raise NotImplementedError

    def append_blocks(self, row: int, held: Sequence[KVBlock]) -> None:
        """Append copied keys and values to a row, as if it had read their tokens.

        The copies come from the same positions of the same text.
        """
        raise NotImplementedError

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        """Bytes of the keys and values of rows with these capacities; 0 if unknown.

        Without capacities: the bytes allocated now, including memory that closed rows have not freed.
        """
        return 0

    def trim(self) -> bool:
        """Free memory that the open rows don't need; False if there is none."""
        return False

    def clear(self, row: int) -> None:  # noqa: B027 - optional
        """Overwrite the keys and values of a row's uncommitted nodes, because NaN passes through masks."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of open rows."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of the keys and values of one row."""
