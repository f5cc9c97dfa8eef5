"""specdec's strategies inside vLLM: ``specdec_vllm.Proposer`` is a custom proposer class for vLLM."""

from specdec_vllm.proposer import Proposer

__all__ = ["Proposer"]
