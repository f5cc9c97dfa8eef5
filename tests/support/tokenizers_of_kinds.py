"""Tokenizers of the kinds that join their tokens differently, made on the spot with the ``tokenizers`` library."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MARK = "▁"
BEGIN, END, CHANNEL = "<s>", "</s>", "<|channel|>"
SPECIAL = [BEGIN, END, CHANNEL]
WORDS = ["once", "upon", "a", "time", "there", "was", "one", "don", "t", ".", ",", "'", "x"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _fast(tokenizer: Tokenizer, cleans: bool = False) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, clean_up_tokenization_spaces=cleans
    )


@cache
def llama() -> PreTrainedTokenizerFast:
    """As Llama 2: words begin with a mark, the text's first space is taken away, other characters are bytes."""
    pieces = [*SPECIAL, *BYTES, *(MARK + word for word in WORDS), *WORDS, MARK, MARK * 2]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _fast(tokenizer)


@cache
def metaspace(cleans: bool = False) -> PreTrainedTokenizerFast:
    """As T5 or XLNet: the same mark, without bytes; some take spaces out of the text afterwards."""
    pieces = ["<unk>", *SPECIAL, *(MARK + word for word in WORDS), *WORDS, MARK, MARK * 2, *"abcdef", "東", "�"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
    return _fast(tokenizer, cleans)


@cache
def wordpiece(cleans: bool) -> PreTrainedTokenizerFast:
    """As BERT: a space before each word but the first, and none before a piece that continues one."""
    pieces = ["[UNK]", *SPECIAL, *WORDS, *("##" + word for word in WORDS)]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return _fast(tokenizer, cleans)


def ids_of(tokenizer: PreTrainedTokenizerFast, *tokens: str) -> list[int]:
    """The ids of tokens as the vocabulary spells them; a character of ``bytes:…`` is given by its bytes."""
    spelled = [
        piece
        for token in tokens
        for piece in ([f"<0x{byte:02X}>" for byte in token[6:].encode()] if token.startswith("bytes:") else [token])
    ]
    found = tokenizer.convert_tokens_to_ids(spelled)
    assert tokenizer.convert_ids_to_tokens(found) == spelled
    return list(found)
