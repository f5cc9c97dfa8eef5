"""Training of draft heads on text that their model writes itself."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.heads.training.head_training import train_head as train_head
    from specdec.heads.training.head_training import write_own_text as write_own_text
    from specdec.heads.training.progress import Plan as Plan
    from specdec.heads.training.progress import Progress as Progress
    from specdec.heads.training.progress import Watch as Watch
    from specdec.heads.training.run import TrainedHead as TrainedHead
    from specdec.heads.training.settings import HeadSettings as HeadSettings
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
