"""Builds an index from documents."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from specdec.errors import RequestError
from specdec_datastore.index.file import NUM_COLUMNS, Header, write
from specdec_datastore.index.sorting import sorted_suffixes
from specdec_datastore.tokenizer_fingerprint import TokenizerFingerprint

DEPTH = 32  # tokens by which suffixes are sorted
_MOST_TOKENS = (1 << 32) - 2  # places are 32-bit numbers
_BREAK = (1 << 32) - 1


def build_index(
    path: Path,
    documents: Iterable[Sequence[int]],
    tokenizer: TokenizerFingerprint | None = None,
    depth: int = DEPTH,
    on_stage: Callable[[str], None] = lambda _: None,
) -> tuple[Header, int]:
    """Index documents of token ids; return the header and the size of the file, which replaces an existing one.

    Takes about 30 bytes of memory per token. Empty documents are left out.

    Raises:
        RequestError: if no document has a token, if there are too many tokens, or if the file can't be written.
    """
    collected, num_documents = array("I"), 0
    for document in documents:
        if len(document):
            collected.extend(document)
            collected.append(_BREAK)
            num_documents += 1
    if not num_documents:
        raise RequestError("the corpus is empty: give files or folders that contain text")
    if len(collected) > _MOST_TOKENS:
        raise RequestError(f"the corpus has more than {_MOST_TOKENS:,} tokens: make several indexes of it")
    text = np.frombuffer(collected, np.uint32)
    header = Header(
        tokenizer=tokenizer or TokenizerFingerprint(),
        num_documents=num_documents,
        num_tokens=len(text) - num_documents,
        num_ids=int(text[text != _BREAK].max()) + 1,
        depth=depth,
    )
    on_stage("sorting")
    suffixes = sorted_suffixes(text, header.num_ids, depth)
    counts = np.bincount(np.minimum(text, header.num_ids), minlength=header.num_ids)[: header.num_ids]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.uint32)
    tokens = text.astype(np.dtype(header.token_code))  # a break stays the largest number
    on_stage("writing")
    padded = np.append(tokens, tokens[-1:].repeat(NUM_COLUMNS))  # with breaks
    columns = {f"column_{nth}": padded[suffixes + np.uint32(nth)] for nth in range(1, NUM_COLUMNS + 1)}
    return header, write(path, header, {"starts": starts, "tokens": tokens, "suffixes": suffixes, **columns})
