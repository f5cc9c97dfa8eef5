"""The strategies that come with specdec, those that draft with trained heads included."""

from collections.abc import Mapping
from pkgutil import resolve_name

from specdec.heads import plugin
from specdec.plugins.names import BUILT_INS
from specdec.strategies import Proposer


def our_proposers() -> Mapping[str, type[Proposer]]:
    """Return the classes by name."""
    places = {**BUILT_INS["proposers"], **plugin.specdec_proposers()}
    return {name: resolve_name(place) for name, place in places.items()}
