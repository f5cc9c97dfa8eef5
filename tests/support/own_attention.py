"""A compiler as a third party's: with an attention of its own, and masks of any shape."""

from typing import ClassVar

from specdec.masks import DenseCompiler


class OwnAttention(DenseCompiler):
    """Dense masks for another attention than the model's."""

    attention: ClassVar[str | None] = "specdec_own"
