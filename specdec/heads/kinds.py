"""The kinds of trained heads, by the strategies that draft with them.

A new kind is a row of ``STRATEGIES``. If it can be trained it is in ``HeadKind`` too, its training in ``KINDS`` of
``specdec/training/kinds.py`` and its strategy in ``READERS`` of ``specdec/strategies/auto.py``.
"""

from collections.abc import Mapping
from typing import Literal

HeadKind = Literal["eagle3", "medusa", "p_eagle"]
"""The kinds that `specdec train head` trains, for `auto` and the strategy of the same name."""

STRATEGIES: Mapping[str, str] = {"eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa", "peagle": "p_eagle"}
"""The strategy for each type of head, as ``speculators_model_type`` or ``model_type`` of its configuration names it."""
