"""Training of draft heads on text that the target writes itself."""

from specdec.training.head_training import TrainedHead, train_head
from specdec.training.progress import Plan, Progress, Watch
from specdec.training.settings import HeadSettings

__all__ = ["HeadSettings", "Plan", "Progress", "TrainedHead", "Watch", "train_head"]
