"""A recycling memory, and its file: the target's predictions after tokens and pairs of tokens.

The file is a ``.npz`` without pickled objects. It has a header as JSON and, for tokens and for pairs, oldest first: the
keys ``(n, 1)`` or ``(n, 2)``, the successors ``(n, k)``, padded with -1, and their logits ``(n, k)``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specdec.errors import ModelError, RequestError
from specdec.strategies.sources.index.file import replacing
from specdec.strategies.sources.tokenizer_fingerprint import Fingerprint

Successors = tuple[tuple[int, ...], tuple[float, ...]]  # tokens, most likely first, and their logits
_FORMAT = "specdec token recycling, version 1"
_REMEDY = "save one with token_recycling:save_to=FILE"


@dataclass(frozen=True, slots=True)
class RecyclingMemory:
    """Successors by token and by token pair, oldest first."""

    of_token: Mapping[int, Successors] = field(default_factory=dict)
    of_pair: Mapping[tuple[int, int], Successors] = field(default_factory=dict)

    def cut(self, k: int, num_pairs: int) -> Self:
        """Return the newest ``num_pairs`` entries of both tables, with ``k`` successors each."""

        def latest(table: Mapping[Any, Successors]) -> dict[Any, Successors]:
            newest = islice(table.items(), max(0, len(table) - num_pairs), None)
            return {key: (tokens[:k], logits[:k]) for key, (tokens, logits) in newest}

        return type(self)(latest(self.of_token), latest(self.of_pair))

    def save(self, path: Path, tokenizer: Fingerprint) -> None:
        """Write the file, atomically, in place of any other.

        Raises:
            RequestError: if it can't be written.
        """
        header = json.dumps({"format": _FORMAT, "tokenizer": tokenizer.model_dump()}).encode()
        arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(header, np.uint8)}
        for name, table in (("token", self.of_token), ("pair", self.of_pair)):
            width = max((len(tokens) for tokens, _ in table.values()), default=0)
            successors = [[*tokens, *[-1] * (width - len(tokens))] for tokens, _ in table.values()]
            logits = [[*logits, *[0.0] * (width - len(logits))] for _, logits in table.values()]
            keys = np.array(list(table), np.int64)
            arrays[f"{name}_keys"] = keys.reshape(len(table), 1 if name == "token" else 2)
            arrays[f"{name}_successors"] = np.array(successors, np.int64).reshape(len(table), width)
            arrays[f"{name}_logits"] = np.array(logits, np.float64).reshape(len(table), width)
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path, tokenizer: Any, vocab_size: int) -> Self:
        """Read a file that ``save`` wrote.

        Raises:
            RequestError: if the file is missing, damaged, or not a recycling memory.
            ModelError: for a memory of another tokenizer.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                header = json.loads(arrays["header"].tobytes())
                if header["format"] != _FORMAT:
                    raise ValueError(f"it is of {header['format']!r}")
                made_with = Fingerprint.model_validate(header["tokenizer"])
                of_token = _table(arrays, "token")
                of_pair = _table(arrays, "pair")
        except OSError as error:
            reason = error.strerror or "it is damaged"
            raise RequestError(f"the recycling memory {path} can't be read ({reason}): {_REMEDY}") from error
        except Exception as error:  # a damaged archive raises anything
            raise RequestError(f"{path} isn't a recycling memory, or is damaged: {_REMEDY}") from error
        made_with.check(tokenizer, f"the recycling memory {path}", _REMEDY)
        entries = (*of_token.values(), *of_pair.values())
        largest = max((token for tokens, _ in entries for token in tokens), default=0)
        if largest >= vocab_size:
            raise ModelError(
                f"the recycling memory {path} has ids up to {largest}, but the model's vocabulary is {vocab_size}: "
                f"{_REMEDY}"
            )
        return cls({token: entry for (token,), entry in of_token.items()}, {(a, b): of_pair[a, b] for a, b in of_pair})


def _table(arrays: Any, name: str) -> dict[tuple[int, ...], Successors]:
    """Return the saved successors by key."""
    keys, successors, logits = (arrays[f"{name}_{part}"] for part in ("keys", "successors", "logits"))
    if successors.shape != logits.shape or len(keys) != len(successors):
        raise ValueError("its arrays are of different lengths")
    entries = dict[tuple[int, ...], Successors]()
    for key, padded, values in zip(keys.tolist(), successors.tolist(), logits.tolist(), strict=True):
        known = [(int(token), float(logit)) for token, logit in zip(padded, values, strict=True) if token >= 0]
        entries[tuple(map(int, key))] = tuple(token for token, _ in known), tuple(logit for _, logit in known)
    return entries
