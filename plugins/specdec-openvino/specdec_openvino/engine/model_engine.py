"""Makes a backend's passes from a model's graphs and options."""

from dataclasses import dataclass
from typing import Any

from specdec.layout import Padding, Shapes
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.graphs import Compiled, Graphs
from specdec_openvino.engine.pass_sizes import uses_avx2
from specdec_openvino.engine.passes import Passes
from specdec_openvino.engine.trial import most_rounded_alike
from specdec_openvino.options import OpenVINOOptions


@dataclass(frozen=True, slots=True)
class ModelEngine:
    """A model's graphs, and the options to compile them with."""

    model: Any
    graphs: Graphs
    options: OpenVINOOptions
    shapes: Shapes

    def compiled(self, hidden: frozenset[int]) -> Compiled:
        """Return the compiled graph with some hidden states, which all backends of the model share."""
        return self.graphs.compiled(self.options, hidden)

    def passes(self, hidden: frozenset[int], blocks: Blocks, filling: Filling) -> Passes:
        """Return the passes of a graph with some hidden states over a cache."""
        dynamic = self.compiled(hidden)  # first, and held: the model's graphs retain the last one only
        static = [self.graphs.compiled(self.options, hidden, size) for size in filling.static_sizes]
        return Passes(dynamic, blocks, filling, static)

    def most_tokens(self, least: int) -> int | None:
        """Return how many tokens a pass may have for all to be rounded alike; None for any number.

        Args:
            least: tokens of a row that are computed at least.
        """
        if not uses_avx2(self.options.device):
            return None  # larger passes were found to be rounded differently by AVX2's kernels alone

        dynamic = self.compiled(frozenset())

        def passes() -> tuple[Passes, Blocks]:
            blocks = dynamic.blocks()
            return Passes(dynamic, blocks, Filling(Padding(least_width=least))), blocks

        return most_rounded_alike(passes, self.shapes.vocab_size)
