"""The strategy ``datastore`` as a plug-in."""

from collections.abc import Mapping

from specdec import hookimpl


@hookimpl
def specdec_proposers() -> Mapping[str, str]:
    return {"datastore": "specdec_datastore.datastore:DatastoreProposer"}
