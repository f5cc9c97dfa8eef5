"""Training of draft heads on text that their model writes itself."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec.training.progress import Plan, Progress, Watch
from specdec.training.settings import HeadSettings

if TYPE_CHECKING:
    from specdec.training.head_training import train_head, write_own_text
    from specdec.training.run import TrainedHead

__all__ = [
    "HeadSettings",
    "Plan",
    "Progress",
    "TrainedHead",
    "Watch",
    "train_head",
    "write_own_text",
]

# The training itself is imported at first use: it needs transformers' models.
_HOMES = {
    "TrainedHead": "run",
    "train_head": "head_training",
    "write_own_text": "head_training",
}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"specdec.training.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
