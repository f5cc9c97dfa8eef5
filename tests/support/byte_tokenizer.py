"""A byte-level BPE tokenizer, trained on the spot: a character may be several tokens, a token several characters."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "the cat sat on the mat, the hat and the bat",
    "naïve café, déjà vu, über, señor",
    "東京都は日本の首都です。你好，世界",
    "I ❤ you 😀 😀 👩‍👩‍👧 🎉",
    "stop here. stop there. the end",
]
END = "<|end|>"


@cache
def trained() -> PreTrainedTokenizerFast:
    """256 bytes, an end-of-text token and some merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(CORPUS * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False)


def byte_ids(text: str) -> list[int]:
    """The text as one token for each of its bytes, no merges used."""
    (spelled, _), *rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert not rest
    return [trained().convert_tokens_to_ids(character) for character in spelled]
