"""specdec's strategies inside vLLM, as its custom class for drafts, ``specdec_vllm.Proposer``."""

from specdec_vllm.proposer import Proposer

__all__ = ["Proposer"]
