"""Where a pass on OpenVINO spends its time: by kind of operator, and outside of the graph.

    python -m benchmarks step_profile --model smollm2 --dtype float32
    python -m benchmarks step_profile --model smollm2 --dtype float32 --weights int8 int4 --nodes 1 4 8 16 --profiled 1

Each pass follows the same context; its nodes are a chain, and logits are computed for all of them. The first table has
medians by number of nodes: the pass as the backend runs it, the graph alone (the same inference request again), and
what is left for the host: making the inputs and copying the logits. The second has OpenVINO's own counters by kind of
operator, of another compilation of the graph, since counting takes time itself; its last rows have their sum and the
graph's time without counters. Peak memory is the process's, so give one kind of ``--weights`` at a time to compare it.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint
from benchmarks.peers.memory import resident_bytes
from benchmarks.report import command, write
from benchmarks.tables import table
from specdec.layout import NO_PADDING, Layout
from specdec.models.loading import ModelSource

try:
    from specdec_openvino.backend import OpenVINOBackend
    from specdec_openvino.engine.filling import Filling
    from specdec_openvino.engine.graphs import Compiled, Graphs
    from specdec_openvino.engine.passes import Passes
    from specdec_openvino.options import OpenVINOOptions
except ImportError as error:
    raise SystemExit("this profiles passes on OpenVINO: pip install ./plugins/specdec-openvino") from error

WARM_UPS = 6
_STRIDE = 7919  # between the ids of successive tokens
_MS = 1e3


class Counting(OpenVINOOptions):
    """Options with which the engine counts the time of each operator."""

    def properties(self, dtype: torch.dtype) -> dict[Any, Any]:
        return {**super().properties(dtype), "PERF_COUNT": True}


class Context:
    """A row of ``length`` tokens, after which passes run; none of their nodes is kept.

    Args:
        static: graphs for passes of one size each; ``compiled`` runs the others.
    """

    def __init__(self, compiled: Compiled, length: int, vocab_size: int, static: Sequence[Compiled] = ()) -> None:
        blocks = compiled.blocks()
        blocks.open()
        self.passes = Passes(compiled, blocks, Filling(NO_PADDING), static)
        self._length, self._vocab_size, self.num_passes = 0, vocab_size, 0
        self.run(length)
        self.request = self.passes._requests[-1].request
        blocks.commit(0, range(length))
        self._length = length

    def run(self, num_nodes: int) -> None:
        """A pass over a chain."""
        positions = torch.arange(self._length, self._length + num_nodes)[None]
        ids = (positions * _STRIDE + 1) % self._vocab_size
        self.num_passes += 1
        self.passes.run(Layout((self._length,), (num_nodes,), ids, positions, {}, tuple(range(num_nodes))))

    def infer(self) -> None:
        """The graph of the last pass again, with the same inputs."""
        self.request.infer(share_outputs=True)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """The median milliseconds of a call."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return _MS * statistics.median(taken)


def times(context: Context, num_nodes: int, repeats: int) -> tuple[float, float]:
    """The median milliseconds of passes, and of the graph alone."""
    for _ in range(WARM_UPS):
        context.run(num_nodes)
    whole = median_ms(lambda: context.run(num_nodes), repeats)
    return whole, median_ms(context.infer, repeats)


def by_operator(context: Context, num_nodes: int, repeats: int) -> dict[str, float]:
    """Milliseconds of a pass by kind of operator, on average."""
    for _ in range(WARM_UPS):
        context.run(num_nodes)
    before = _counted(context)
    for _ in range(repeats):
        context.run(num_nodes)
    return {kind: max(0.0, total - before[kind]) / repeats for kind, total in _counted(context).items()}


def _counted(context: Context) -> Counter[str]:
    """Milliseconds by kind of operator in all passes so far: the counters are averages over these."""
    found = Counter[str]()
    for each in context.request.get_profiling_info():
        found[each.node_type] += each.real_time.total_seconds() * _MS * context.num_passes
    return found


def operator_table(found: Mapping[str, Mapping[str, float]], graph: Mapping[str, float], most: int = 14) -> str:
    """A row per kind of operator, the largest first, and a column per kind of pass."""
    totals = Counter[str]()
    for counted in found.values():
        totals.update(counted)
    kinds = [kind for kind, _ in totals.most_common(most)]
    lines = [[f"`{kind}`", *(f"{counted.get(kind, 0.0):.2f}" for counted in found.values())] for kind in kinds]
    rest = [sum(spent for kind, spent in counted.items() if kind not in kinds) for counted in found.values()]
    lines += [["others", *(f"{spent:.2f}" for spent in rest)]]
    lines += [["all counters", *(f"{sum(counted.values()):.2f}" for counted in found.values())]]
    lines += [["the graph without counters", *(f"{graph[name]:.2f}" for name in found)]]
    return table(["ms per pass", *found], lines)


def graphs_of(folder: Path, options: OpenVINOOptions) -> tuple[Graphs, int]:
    """A checkpoint's conversion and the size of its vocabulary."""
    model, _ = OpenVINOBackend.read(ModelSource(str(folder)), None, options)
    return model.graphs, model.config.get_text_config().vocab_size


def measure(folder: Path, weights: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[list[str]]]:
    """The profiles by kind of pass, with the graph's milliseconds, and the lines of the first table."""
    options = {"weights": weights, "threads": arguments.threads}
    graphs, vocab_size = graphs_of(folder, OpenVINOOptions(**options))
    lines, graph_ms, profiles = list[list[str]](), dict[str, float](), dict[str, dict[str, float]]()
    context = Context(graphs.compiled(OpenVINOOptions(**options), frozenset()), arguments.context, vocab_size)
    plain = 0.0
    for num_nodes in arguments.nodes:
        whole, alone = times(context, num_nodes, arguments.repeats)
        plain, graph_ms[f"{weights}, {num_nodes}"] = plain or whole, alone
        peak = f"{resident_bytes('VmHWM') / 2**20:.0f}"
        figures = [f"{whole:.2f}", f"{whole / plain:.2f}", f"{alone:.2f}", f"{whole - alone:.2f}", peak]
        lines.append([weights, str(num_nodes), *figures])
    del context
    for num_nodes in arguments.profiled:
        counted = Context(graphs.compiled(Counting(**options), frozenset()), arguments.context, vocab_size)
        profiles[f"{weights}, {num_nodes}"] = by_operator(counted, num_nodes, arguments.repeats)
        del counted
    return {"profiles": profiles, "graph": graph_ms}, lines


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--weights", nargs="+", default=["model"], help="model, int8, int4: the plug-in's option")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8], help="nodes of the passes that are timed")
    parser.add_argument("--profiled", type=int, nargs="*", default=[1, 8], help="of those, the ones to profile")
    parser.add_argument("--context", type=int, default=128, help="tokens before a pass")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/step_profile"), help="path without .json and .md")
    arguments = parser.parse_args(given)
    if others := sorted({*arguments.profiled} - {*arguments.nodes}):
        parser.error(f"--profiled {' '.join(map(str, others))}: --nodes must contain them too")
    torch.set_num_threads(arguments.threads)
    folder = checkpoint(arguments)
    lines, graph, profiles = list[list[str]](), dict[str, float](), dict[str, dict[str, float]]()
    for weights in arguments.weights:
        found, own = measure(folder, weights, arguments)
        lines += own
        graph.update(found["graph"])
        profiles.update(found["profiles"])
    heading = ["weights", "nodes", "pass, ms", "over the first", "graph alone", "host", "peak MiB so far"]
    parts = [f"`{command('step_profile')}`", facts(), table(heading, lines)]
    parts += [operator_table(profiles, graph)] if profiles else []
    data = {"command": command("step_profile"), "machine": facts(), "passes": lines, "graph": graph}
    write(arguments.out, "\n\n".join(parts) + "\n", {**data, "profiles": profiles})


if __name__ == "__main__":
    main()
