"""Decoding: the step, the requests that share it, their results and statistics."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.decoding.context import Context as Context
    from specdec.decoding.request_state import TokenView as TokenView
    from specdec.decoding.result import Chunk as Chunk
    from specdec.decoding.result import Result as Result
    from specdec.decoding.stats import Stats as Stats
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
