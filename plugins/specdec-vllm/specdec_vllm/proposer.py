"""The class that vLLM's engine makes, and calls for drafts after each step."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specdec_vllm.drafting import Drafting
from specdec_vllm.rows import Rows

_STRATEGY = "auto"
_log = logging.getLogger("vllm.specdec")


class Proposer:
    """Drafts by a specdec strategy, for ``speculative_config={"method": "custom_class", …}``.

    The strategy is set by ``additional_config={"specdec": "auto"}``. It must need nothing but tokens from the model;
    ``auto`` leaves out sources that do. Drafts can't change the text: vLLM's own sampler verifies them.
    """

    def __init__(self, vllm_config: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        model = vllm_config.model_config
        asked = vllm_config.additional_config
        self._drafting = Drafting(
            str(asked.get("specdec", _STRATEGY)) if isinstance(asked, dict) else _STRATEGY,
            vocab_size=model.get_vocab_size(),
            eos_token_ids=_eos_of(model.hf_config),
            tokenizer=_tokenizer_of(model),
            num_tokens=vllm_config.speculative_config.num_speculative_tokens,
            max_length=model.max_model_len,
            clock=clock,
        )
        self._rows = Rows()
        self._has_failed = False

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return a chain for each row of the batch.

        Args:
            sampled_token_ids: by row, the tokens emitted by the last step; none during prefill.
            num_tokens_no_spec: by row, the length of its text, including these tokens, (rows,).
            token_ids_cpu: the texts, (rows, longest).
            slot_mappings: not used.
        """
        if not self._has_failed:
            try:
                if self._drafting.rests(sum(map(bool, sampled_token_ids))):
                    return [[] for _ in sampled_token_ids]
                return self._chains(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            except Exception:  # an error would end vLLM, which can continue without drafts
                self._has_failed = True
                _log.exception("specdec stops drafting")
        return [[] for _ in sampled_token_ids]

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: the strategy has no model."""

    def _chains(self, emitted: list[list[int]], lengths: np.ndarray, tokens: np.ndarray) -> list[list[int]]:
        rows = [tokens[row, :length] for row, length in enumerate(lengths[: len(emitted)].tolist())]
        found, gone = self._rows.find(emitted, rows)
        for text in gone:
            self._drafting.end(text)
        new_tokens = {text: rows[row][len(text.tokens) :].tolist() for row, text in found.items()}
        for row, text in found.items():
            if len(new_tokens[text]) != len(emitted[row]):  # vLLM has continued without a call for drafts
                text.draft = None
        is_plain_step = all(emitted) and all(text.draft is not None for text in found.values())
        self._drafting.learn(new_tokens, is_plain_step)
        numbers = sorted(found)
        chains = self._drafting.propose([found[row] for row in numbers])
        drafted = dict(zip(numbers, chains, strict=True))
        return [drafted.get(row, []) for row in range(len(emitted))]


def _eos_of(config: Any) -> Sequence[int]:
    ends = getattr(config, "eos_token_id", None)
    if ends is None:
        return ()
    return tuple(ends) if isinstance(ends, list | tuple) else (int(ends),)


def _tokenizer_of(model: Any) -> Any:
    """The model's tokenizer, by which a datastore knows that it was made for the same; None without one."""
    if model.skip_tokenizer_init:
        return None
    from transformers import AutoTokenizer

    named = {"revision": model.tokenizer_revision, "trust_remote_code": model.trust_remote_code}
    try:
        return AutoTokenizer.from_pretrained(model.tokenizer, **named)
    except Exception:  # one that vLLM reads in a way of its own
        return None
