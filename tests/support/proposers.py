"""The strategies that come with specdec, those that draft with trained heads included."""

from collections.abc import Mapping

from specdec.heads import plugin
from specdec.plugins import builtins
from specdec.strategies import Proposer


def our_proposers() -> Mapping[str, type[Proposer]]:
    """Return the classes by name."""
    return {**builtins.specdec_proposers(), **plugin.specdec_proposers()}
