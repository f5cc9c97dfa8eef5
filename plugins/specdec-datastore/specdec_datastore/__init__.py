"""A strategy that drafts from a corpus: ``DatastoreProposer``, and ``build_index`` for its index."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec_datastore.datastore import DatastoreProposer as DatastoreProposer
    from specdec_datastore.index.building import build_index as build_index
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
