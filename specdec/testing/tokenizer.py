"""A tokenizer for toy models, to test strategies that read or write text."""

from typing import Any


def toy_tokenizer(vocab_size: int) -> Any:
    """Return a transformers tokenizer whose token ``i`` is the number ``i``: "3 1 4" is [3, 1, 4], and the reverse."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({str(token): token for token in range(vocab_size)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
