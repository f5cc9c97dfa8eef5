"""specdec inside transformers: what ``specdec.apps.in_transformers`` exports."""

from specdec.apps.in_transformers import CandidatesProposer, ProposerCandidates, release

__all__ = ["CandidatesProposer", "ProposerCandidates", "release"]
