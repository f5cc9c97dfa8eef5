"""The contract of backends for several processes."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any

from specdec.backends.base import Backend
from specdec.models.loading import ModelSource


class GroupBackend(Backend):
    """A backend that drives a model with all processes that torchrun has started.

    Every process reads a model of its own and enters ``group`` with it; one of them then decodes. Under torchrun,
    the command line takes the first installed one.
    """

    @classmethod
    @abstractmethod
    def read_on_rank(cls, source: ModelSource, options: Any) -> tuple[Any, Any]:
        """Return this process's model and tokenizer; all processes call this at the same time.

        Args:
            source: the name, device and dtype.
            options: an instance of ``Options``.

        Raises:
            ModelError: if the model can't be read, or not by several processes.
        """

    @classmethod
    @abstractmethod
    def group(cls, model: Any, timeout: float) -> AbstractContextManager[bool]:
        """Enter the group with this process's model; yields True to the one that decodes, False to others at the end.

        torch's own process group is initialised before.

        Args:
            timeout: the longest that processes wait for one another, in seconds.

        Raises:
            ModelError: if the processes differ, or one of them has ended.
        """
