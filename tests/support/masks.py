"""Masks of JSON schemas by a matcher that consumes the whole path each time, by another loop than specdec's."""

import json
from typing import Any

import llguidance
import numpy as np
from llguidance.hf import from_tokenizer

from specdec.constraints.formats import with_exact_formats
from tests.support.plain import Allowed


def allowed_by(grammar: str, tokenizer: Any, vocab_size: int) -> Allowed:
    """The tokens of ``vocab_size`` logits that a grammar in the library's own form allows."""
    library = from_tokenizer(tokenizer, max(vocab_size, len(tokenizer)))

    def allowed(new_tokens: list[int]) -> tuple[np.ndarray, bool]:
        matcher = llguidance.LLMatcher(library, grammar)
        assert matcher.consume_tokens(new_tokens)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        bits[library.eos_tokens] = 0
        return bits[:vocab_size].astype(bool), matcher.is_accepting()

    return allowed


def grammar_of(schema: Any) -> str:
    """A schema's grammar, with the whitespace, escapes and dates that ``JsonSchema`` has by default."""
    options = {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
        "json_allowed_escapes": 'nrbtf\\"',
    }
    return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(with_exact_formats(schema)), overrides=options))
