"""The passes that a transformers model supports, as far as is known without running it."""

from dataclasses import dataclass, replace
from typing import Self

from transformers import PreTrainedModel

from specdec.layout import Shapes
from specdec.models.architecture import READS_BEGINNINGS_ONLY, shapes_of, state_kinds

PREFILL_CHUNK = 256  # 512 is 8 % faster on a small model, but its activations set the memory peak
WHOLE = 1 << 30  # a chunk that no prompt fills

# Known cases that the self-test misses: windows by slot longer than its text, and slot biases hidden by rounding in
# deep models.
_CHAINS_ONLY = {
    "gpt_neo": "its local attention goes by cache slot, not by position",
    "mpt": "its attention's bias goes by cache slot, not by position",
}


@dataclass(frozen=True, slots=True)
class SupportedPasses:
    """The passes that a transformers model supports.

    Attributes:
        shapes: say whether trees, chains or no drafts are supported.
        reason: why the model supports chains only, or no drafts, or "".
        reads_rows_alone: each row has a pass of its own; for models with states.
    """

    shapes: Shapes
    reason: str = ""
    reads_rows_alone: bool = False

    def by_chains(self, why: str) -> Self:
        """Return these passes without trees."""
        return replace(self, shapes=replace(self.shapes, takes_trees=False), reason=why)

    def by_single_tokens(self, why: str) -> Self:
        """Return these passes without drafts: one token per pass, except for the beginning of a text."""
        shapes = replace(self.shapes, takes_drafts=False, chunk=WHOLE)
        return replace(self, shapes=shapes, reason=f"{self.reason}, and {why}")


def assumed_passes(model: PreTrainedModel, widths: tuple[int, ...] = (), keeps_states: bool = True) -> SupportedPasses:
    """Return the passes that a model supports as far as is known without running it.

    Args:
        widths, keeps_states: of the backend.
    """
    config = model.config.get_text_config()
    passes = SupportedPasses(replace(shapes_of(model, widths, keeps_states), chunk=PREFILL_CHUNK))
    if kinds := state_kinds(config):
        passes = passes.by_chains(f"its {' and '.join(kinds)} layers keep a state of one text")
        why = READS_BEGINNINGS_ONLY.get(config.model_type)
        return passes.by_single_tokens(why) if why else passes
    return passes.by_chains(_CHAINS_ONLY[config.model_type]) if config.model_type in _CHAINS_ONLY else passes
