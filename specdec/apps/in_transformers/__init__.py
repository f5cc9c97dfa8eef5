"""specdec inside transformers: ``custom_generate``, and candidate generators in both directions."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.apps.in_transformers.candidates import CandidatesProposer as CandidatesProposer
    from specdec.apps.in_transformers.candidates import ProposerCandidates as ProposerCandidates
    from specdec.apps.in_transformers.generator_cache import release as release
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
