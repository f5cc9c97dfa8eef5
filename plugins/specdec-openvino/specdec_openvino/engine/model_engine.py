"""Makes a backend's passes from a model's graphs and options."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec import ModelError
from specdec.layout import Shapes
from specdec.machine.facts import free_bytes
from specdec.padding import Padding
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.graphs import Compiled, Graphs
from specdec_openvino.engine.pass_sizes import uses_avx2
from specdec_openvino.engine.passes import Passes
from specdec_openvino.engine.trial import most_rounded_alike, trial_logits
from specdec_openvino.options import OpenVINOOptions

_SHARE_OF_MEMORY = 0.05  # of the free memory, for a graph with static shapes that wasn't asked for
_NUM_READ = 48  # tokens before the passes that compare such a graph with the dynamic one


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
        return Passes(dynamic, blocks, filling, self._static_graphs(dynamic, filling))

    def _static_graphs(self, dynamic: Compiled, filling: Filling) -> list[Compiled]:
        """Return the graphs with static shapes that the options choose; by default that of plain steps, if it is small.

        A static graph has the weights in memory once more, and saves about a millisecond, hardly any of a large model's
        pass.
        """
        if self.options.static_sizes != "auto":
            return [self.graphs.compiled(self.options, dynamic.hidden, size) for size in filling.static_sizes]
        free = free_bytes(torch.device("cpu")) if self.options.device == "CPU" else None
        if free is None or self.graphs.num_bytes > _SHARE_OF_MEMORY * free:
            return []
        with suppress(ModelError, MemoryError):  # the dynamic graph runs all passes
            if static := self._static_graph(dynamic, filling):
                return [static]
        return []

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

    def _static_graph(self, dynamic: Compiled, filling: Filling) -> Compiled | None:
        """Return a graph for plain steps of one row; None if its logits have other bits than the dynamic graph's.

        Texts would depend on the free memory otherwise.

        Args:
            filling: of the passes that the graph is for.

        Raises:
            ModelError: if it can't be compiled.
        """
        (num_tokens,) = filling.smallest(1)
        static = self.graphs.compiled(self.options, dynamic.hidden, num_tokens)
        widths, logits = (_NUM_READ, num_tokens, num_tokens), list[list[torch.Tensor]]()
        for graphs in ((), (static,)):
            blocks = dynamic.blocks()
            passes = Passes(dynamic, blocks, Filling(replace(filling.padding, sizes=())), graphs)
            logits.append(trial_logits(passes, blocks, widths, self.shapes.vocab_size))
        return static if all(map(torch.equal, *logits)) else None
