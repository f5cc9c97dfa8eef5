"""The numerics that a generator decodes with.

Modes:
- ``exact``: a position's logits have the same bits in plain decoding and in any draft tree, batch or prompt.
- ``fast``: the fastest attention of the device; two logits closer than its noise may change places.
- ``auto``: exact if a probe of model and machine passes, else fast.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.layout import Compiler

Mode = Literal["auto", "exact", "fast"]
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numerics of a bound model.

    Attributes:
        inexact: why the last bits of logits, and so the text, may depend on the strategy; "" if they can't.
        noise: the largest difference of a logit that the probe saw between plain steps and other passes.
    """

    mode: Literal["exact", "fast"]
    inexact: str = ""
    noise: float = 0.0

    @property
    def is_bit_exact(self) -> bool:
        """True if the probe found no bit that depends on the strategy."""
        return not self.inexact

    def __str__(self) -> str:
        return f"{self.mode}, bit-exact" if self.is_bit_exact else f"{self.mode}, not bit-exact: {self.inexact}"


def checked_mode(requested: object, mask: "Compiler | None" = None) -> Mode:
    """Return a valid mode.

    Raises:
        RequestError: for an unknown mode, or if both a mode and a mask are given.
    """
    if requested not in MODES:
        raise RequestError(f"numerics={requested!r}: it must be one of {', '.join(MODES)}")
    if mask is not None and requested != "auto":
        raise RequestError(f"mask={mask!r} decides the numerics: give either it or numerics={requested!r}")
    return cast(Mode, requested)
