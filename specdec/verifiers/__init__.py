"""Acceptance rules, which select the accepted path of a draft tree."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.verifiers.base import Verdict as Verdict
    from specdec.verifiers.base import Verifier as Verifier
    from specdec.verifiers.match import MatchVerifier as MatchVerifier
    from specdec.verifiers.rejection import RejectionVerifier as RejectionVerifier
    from specdec.verifiers.traversal import TraversalVerifier as TraversalVerifier
    from specdec.verifiers.typical import TypicalVerifier as TypicalVerifier
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
