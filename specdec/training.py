"""The training of draft heads: what ``specdec.heads.training`` exports."""

from specdec.heads.training import HeadSettings, Plan, Progress, TrainedHead, Watch, train_head, write_own_text

__all__ = ["HeadSettings", "Plan", "Progress", "TrainedHead", "Watch", "train_head", "write_own_text"]
