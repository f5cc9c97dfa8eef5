"""Makes a backend's passes from a model's graphs and options; a graph compiled while decoding is compared first."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from specdec.layout import Shapes
from specdec.machine.facts import free_bytes
from specdec.padding import Padding
from specdec_openvino.engine.blocks import Blocks
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.graphs import Compiled, Graphs
from specdec_openvino.engine.pass_sizes import uses_avx2
from specdec_openvino.engine.passes import Passes
from specdec_openvino.engine.static_graphs import StaticGraphs
from specdec_openvino.engine.trial import most_rounded_alike, trial_logits
from specdec_openvino.options import OpenVINOOptions

_MOST_STATIC = 4  # sizes of passes that get a graph with static shapes
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
        if self.options.static_sizes != "auto":
            static = [self.graphs.compiled(self.options, hidden, size) for size in filling.static_sizes]
            return Passes(dynamic, blocks, filling, static)
        has_system_memory = self.options.device == "CPU"
        options = self.options.model_copy(update={"threads": self.options.num_threads})  # torch's may change later
        further = StaticGraphs(
            filling.smallest(_MOST_STATIC) if has_system_memory else (),
            partial(replace(self, options=options).static_graph, dynamic, filling),
            dynamic.seconds,
            self.graphs.num_bytes,
            partial(free_bytes, torch.device("cpu")),
        )
        return Passes(dynamic, blocks, filling, further=further)

    def most_tokens(self, least: int) -> int | None:
        """Return how many tokens a pass may have for all to be rounded alike; None for any number.

        Args:
            least: tokens of a row that are computed at least.
        """
        if not uses_avx2(self.options.device):
            return None  # larger passes were found to be rounded differently by AVX2's kernels alone

        def passes() -> tuple[Passes, Blocks]:
            blocks = self.compiled(frozenset()).blocks()
            return self.passes(frozenset(), blocks, Filling(Padding(least_width=least))), blocks

        return most_rounded_alike(passes, self.shapes.vocab_size)

    def static_graph(self, dynamic: Compiled, filling: Filling, num_tokens: int) -> Compiled | None:
        """Return a graph for passes over ``num_tokens`` tokens of one row.

        None if its logits have other bits than the dynamic graph's: texts would depend on when it is ready.

        Args:
            filling: of the passes that the graph is for.

        Raises:
            ModelError: if it can't be compiled.
        """
        static = self.graphs.compiled(self.options, dynamic.hidden, num_tokens)
        widths, logits = (_NUM_READ, num_tokens, num_tokens), list[list[torch.Tensor]]()
        for graphs in ((), (static,)):
            blocks = dynamic.blocks()
            passes = Passes(dynamic, blocks, Filling(replace(filling.padding, sizes=())), graphs)
            logits.append(trial_logits(passes, blocks, widths, self.shapes.vocab_size))
        return static if all(map(torch.equal, *logits)) else None
