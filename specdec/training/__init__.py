"""Training of draft heads on text that their model writes itself."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.training.head_training import train_head as train_head
    from specdec.training.head_training import write_own_text as write_own_text
    from specdec.training.progress import Plan as Plan
    from specdec.training.progress import Progress as Progress
    from specdec.training.progress import Watch as Watch
    from specdec.training.run import TrainedHead as TrainedHead
    from specdec.training.settings import HeadSettings as HeadSettings
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "head_training": ("train_head", "write_own_text"),
            "progress": ("Plan", "Progress", "Watch"),
            "run": ("TrainedHead",),
            "settings": ("HeadSettings",),
        },
    )
