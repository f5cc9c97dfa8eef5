"""The contract of constraints: the texts that a model may write.

A constraint is configuration (`JsonSchema`, `Regex`, …); `start` returns its state at the end of a prompt, and
`advance` the state one token further. The masked model is just another target: with any strategy, the text is that of
plain decoding under the same masks.

Laws:
- A state never changes: `advance` returns another one, and may be called for several tokens.
- A mask depends on the new tokens of the path alone, not on the prompt, the drafts, or other requests.
- A mask says nothing about ends of text. They are allowed where the state is accepting, and nowhere else. Where an
  accepting state allows no other token, the text ends without one.
- A state that isn't accepting allows at least one token.
- What can't be enforced is refused by the constructor or by `start`, with a `RequestError`: a constraint is never
  weaker than it reads.
- `forced` is advice for drafts. The model may spell a text by other tokens, so nothing is committed unverified.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from specdec.configuration import Configuration
from specdec.errors import RequestError

if TYPE_CHECKING:
    import torch

Made = TypeVar("Made")


class ConstraintError(RequestError):
    """A constraint that, with the request's ends of text and processors, leaves no token."""


class Vocabulary:
    """A model's tokens, as constraints see them; may be used by several threads.

    Attributes:
        tokenizer: the generator's; None if it has none.
        size: entries of the model's logits, which may be more than the tokenizer's.
    """

    def __init__(self, tokenizer: Any | None, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size
        self._made: dict[Callable[..., Any], Any] = {}
        self._lock = Lock()

    def once(self, make: Callable[[Any, int], Made]) -> Made:
        """Return ``make(tokenizer, size)``, called once: a library's own tokenizer takes a second to make.

        Raises:
            RequestError: without a tokenizer.
        """
        if self.tokenizer is None:
            raise RequestError(
                "a constraint on text needs a tokenizer: Generator(model, tokenizer), or custom_generate(tokenizer=…)"
            )
        with self._lock:
            if make not in self._made:
                self._made[make] = make(self.tokenizer, self.size)
            found: Made = self._made[make]
        return found


class ConstraintState(ABC):
    """A constraint's state after some tokens."""

    @property
    @abstractmethod
    def is_accepting(self) -> bool:
        """True if the text may end here."""

    @abstractmethod
    def mask(self) -> "torch.Tensor":
        """The tokens that may come next, ``(vocab,)``, bool, on the CPU; read-only.

        Entries of ends of text are ignored.

        Raises:
            RequestError: if the constraint turns out to exceed a limit of its library.
        """

    @abstractmethod
    def advance(self, token: int) -> "ConstraintState":
        """The state after one more token, which the mask allows and which isn't an end of text."""

    def forced(self) -> Sequence[int]:
        """The text that must come next, by its most usual tokens; empty if more than one text may come next."""
        return ()


class Constraint(Configuration, ABC):
    """A constraint's configuration: equal constraints allow equal texts.

    Its fields are hashable, such as tuples in place of lists, since constraints are cached.
    """

    error_class = RequestError

    @abstractmethod
    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        """Return the state before the first new token; may take milliseconds, and is cached by the constraint.

        Raises:
            RequestError: for a constraint that can't be enforced, is unsatisfiable or is too large; without a tokenizer
                if the constraint is about text.
        """

    def parse(self, text: str) -> Any:
        """The value of a complete text, as ``result.parsed`` returns it: by default the text."""
        return text
