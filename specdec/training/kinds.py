"""The kinds of heads that can be trained."""

from collections.abc import Mapping

from specdec.training.base import HeadTraining
from specdec.training.eagle3_training import Eagle3Training
from specdec.training.medusa_training import MedusaTraining
from specdec.training.p_eagle_training import PEagleTraining

KINDS: Mapping[str, type[HeadTraining]] = {
    kind.strategy: kind for kind in (Eagle3Training, MedusaTraining, PEagleTraining)
}
