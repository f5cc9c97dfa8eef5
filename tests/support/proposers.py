"""The strategies that come with specdec, those that draft with trained heads included."""

from collections.abc import Mapping
from pkgutil import resolve_name

from specdec.heads import plugin
from specdec.plugins import builtins
from specdec.strategies import Proposer


def our_proposers() -> Mapping[str, type[Proposer]]:
    """Return the classes by name."""
    places = {**builtins.specdec_proposers(), **plugin.specdec_proposers()}
    return {name: resolve_name(place) for name, place in places.items()}
