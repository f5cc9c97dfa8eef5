"""A tokenizer for toy models, to test strategies that read or write text."""

from collections.abc import Mapping
from typing import Any


def toy_tokenizer(vocab_size: int, texts: Mapping[int, str] | None = None) -> Any:
    """Return a transformers tokenizer whose token ``i`` is the number ``i``: "3 1 4" is [3, 1, 4], and the reverse.

    Args:
        vocab_size: the number of tokens.
        texts: other texts of some tokens, without spaces, such as ``{7: "\\n"}`` for strategies that read line breaks.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    own = texts or {}
    tokenizer = Tokenizer(WordLevel({own.get(token, str(token)): token for token in range(vocab_size)}))
    tokenizer.pre_tokenizer = Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
