"""Split attention: a prefix without a mask and a small masked tail, merged by log-sum-exp."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec_flash.compiler import SplitCompiler as SplitCompiler
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
