"""Training of draft heads on text that the target writes itself."""

from typing import TYPE_CHECKING, Any

from specdec.training.progress import Plan, Progress, Watch
from specdec.training.settings import HeadSettings

if TYPE_CHECKING:
    from specdec.training.head_training import train_head, write_own_text
    from specdec.training.trained_head import TrainedHead

__all__ = ["HeadSettings", "Plan", "Progress", "TrainedHead", "Watch", "train_head", "write_own_text"]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import the training itself at first use: it needs transformers' models."""
        if name in {"TrainedHead", "train_head", "write_own_text"}:
            from specdec.training import head_training

            return getattr(head_training, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
