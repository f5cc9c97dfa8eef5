"""Tests of a model at load, bounded in time; their findings are cached."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.runtime.probes.examination import examine as examine
    from specdec.runtime.probes.selftest import probe as probe
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
