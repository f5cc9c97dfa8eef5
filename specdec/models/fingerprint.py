"""Model fingerprints: two models are "the same" if and only if their fingerprints are equal.

All cached results of a model, such as keys and values, a converted graph or a probe's findings, are stored with its
fingerprint, and used only while the fingerprint is the same. It has three parts, and any change to what the model
computes changes one of them:

- structure: classes and attributes of all modules; names, shapes and dtypes of all tensors;
- numbers: a checksum of each tensor's bits;
- answers: the bits of the logits of the model's own forward for a fixed text. They also change with anything outside
  the modules: a hook's closure, a patched function, or a library or number of threads with different rounding.

It takes about as long as one or two plain decoding steps.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

import torch

from specdec.models.gradients import own_logits
from specdec.models.notes import facts_of as tensor_facts
from specdec.models.notes import lock_of, notes_of, state_of
from specdec.models.structure import described, facts_of
from specdec.models.weights.layers import is_sharded, is_sharded_tensor
from specdec.models.weights.tensor import PackedWeight, checksum_of

_TEXT = 17, 5, 11, 2, 7, 13, 3, 19  # token ids, taken modulo the vocabulary


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of a model's structure, numbers and answers; models with equal fingerprints compute the same.

    ``answers`` are empty for a sharded model, since all of its processes would have to run the pass, and for one in
    training mode, which is refused.
    """

    structure: str
    numbers: str
    answers: str

    @property
    def is_known(self) -> bool:
        """False for an object without a fingerprint: nothing about it is cached on disk."""
        return bool(self.structure)


def fingerprint_of(model: object) -> Fingerprint:
    """Return a model's present fingerprint; while the model is ``unchanging``, computed once for each state.

    An object that isn't a torch module can't change; its fingerprint is the text in its attribute ``fingerprint``, such
    as a digest of a checkpoint's files.
    """
    if not isinstance(model, torch.nn.Module):
        return Fingerprint(str(getattr(model, "fingerprint", "")), "", "")
    with lock_of(model):  # passes set the configured attention
        known = notes_of(model).while_unchanging
        if known is None:
            return _made(model, {})
        state = state_of(model), torch.get_num_threads()
        if state not in known:
            known[state] = _made(model, known)
        found: Fingerprint = known[state]
        return found


def _made(model: torch.nn.Module, known: dict[Hashable, Any]) -> Fingerprint:
    """Return a new fingerprint, with the numbers and answers that are known for the same structure."""
    facts = facts_of([*model.modules()])
    structure = _digest(chain(map(described, facts), _names(model)))
    key = structure, torch.get_num_threads()
    if key not in known:
        answers = "" if is_sharded(model) or model.training else _answers(model)
        known[key] = Fingerprint(structure, _digest(_numbers(model, facts)), answers)
    made: Fingerprint = known[key]
    return made


@contextmanager
def unchanging(model: object) -> Iterator[None]:
    """Assume that only specdec changes the model meanwhile, as while a generator is made: each state is read once."""
    notes = notes_of(model)
    before = notes.while_unchanging
    notes.while_unchanging = {} if before is None else before
    try:
        yield
    finally:
        notes.while_unchanging = before


def _names(model: torch.nn.Module) -> Iterator[str]:
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        yield f"{name} {type(tensor).__name__} {tensor_facts(tensor)}"


def _numbers(model: torch.nn.Module, facts: Sequence[object]) -> Iterator[str]:
    """Yield the checksum of each tensor, including attributes that aren't buffers."""
    others = (fact for fact in facts if isinstance(fact, torch.Tensor))
    for tensor in chain(model.parameters(), model.buffers(), others):
        yield from _checksums(tensor)


def _checksums(tensor: torch.Tensor) -> Iterator[str]:
    if isinstance(tensor, PackedWeight):
        yield tensor.checksum()
    elif is_sharded_tensor(tensor):
        yield checksum_of(tensor.to_local())
    elif hasattr(tensor, "__tensor_flatten__"):  # a subclass that wraps plain tensors
        inner: Any = tensor
        for name in inner.__tensor_flatten__()[0]:
            yield from _checksums(getattr(tensor, name))
    elif tensor.layout is torch.strided and tensor.device.type != "meta":
        yield checksum_of(tensor)


def _answers(model: Any) -> str:
    """Return a digest of the logits of a fixed text, or of the error that the forward raises."""
    try:
        vocab_size = model.get_output_embeddings().weight.shape[0]
        logits = own_logits(model, [[token % vocab_size for token in _TEXT]])
    except Exception as error:  # third-party modelling code; the self-test refuses it later
        return f"{type(error).__name__}: {error}"
    return checksum_of(logits)


def _digest(texts: Iterator[str]) -> str:
    digest = blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\n")
    return digest.hexdigest()
