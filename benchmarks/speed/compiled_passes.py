"""Passes that torch's inductor compiles ahead of time, compared with `hf`'s recorded passes and OpenVINO's.

    python -m benchmarks compiled_passes --model smollm2 --folder build/packages --build
    python -m benchmarks compiled_passes --model smollm2 --folder build/packages

With ``--build``: export the model's forward over a cache of fixed tensors, compile an AOTInductor package for each
number of nodes that the folder has none of, and show seconds and megabytes. ``--nodes any`` makes one package for every
number above one and every number of slots. Building needs a C++ compiler; a package that is built needs none.

Without it: time passes over chains of nodes after ``CONTEXT`` tokens, in rounds over all contenders, and show medians
and quartiles. Contenders are the packages, `hf` and, if the plug-in is installed, OpenVINO, both in fast numerics. Then
the packages are compared: is a node's row of logits the same to the bit in passes over other numbers of nodes, and how
far are they from the model's own?
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, description, load_model
from benchmarks.speed.overhead import text_of
from benchmarks.summary import Spread
from benchmarks.tables import table
from specdec import Generator
from specdec.target import CacheRow, Target
from specdec.tree import ROOT, DraftTree

ATTENTION = "specdec_fixed"
CONTEXT, SLOTS = 256, 320  # tokens; and slots of the cache that a package of a fixed shape reads
WARM_UP, ROUNDS = 10, 25
ANY = "any"
MOST_NODES, MOST_SLOTS = 512, 8192  # of the package for any number
JOINED = {"freezing": True, "cpp.enable_concat_linear": True}
SEPARATE = {"freezing": True}

Pass = Callable[[], torch.Tensor]


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scaling: float, **others: Any
) -> tuple[torch.Tensor, None]:
    """Fused attention; a single node's heads that read the same keys are passed as more nodes."""
    rows, heads, width, size = query.shape
    fused = torch.nn.functional.scaled_dot_product_attention
    if width > 1:
        return fused(query, key, value, mask, scale=scaling, enable_gqa=True).transpose(1, 2).contiguous(), None
    folded = query.reshape(rows, key.shape[1], -1, size)
    attended = fused(folded, key, value, mask.expand(-1, -1, folded.shape[2], -1), scale=scaling)
    return attended.reshape(rows, 1, heads, size), None


class FixedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """A layer's keys and values in tensors that a pass is given, with the slots that it writes to."""

    is_sliding = False
    is_compileable = True

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        self.keys, self.values, self.slots = keys, values, slots
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("it is initialised from the start")

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class FixedPass(torch.nn.Module):
    """A model's forward as a function of tensors alone; it writes to the keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        slots = positions[0]
        cache = Cache(layers=[FixedLayer(*states, slots) for states in zip(keys, values, strict=True)])
        arguments = {"attention_mask": mask, "position_ids": positions, "past_key_values": cache, "use_cache": True}
        logits: torch.Tensor = self.model(input_ids, return_dict=True, **arguments).logits
        return logits


@dataclass(frozen=True)
class State:
    """A text's keys and values by layer, ``(1, groups, slots, size)``, and the tokens of the nodes after it."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    nodes: list[int]

    @classmethod
    def empty(cls, config: Any, dtype: torch.dtype, nodes: list[int]) -> "State":
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = 1, config.num_key_value_heads, SLOTS, size
        keys, values = ([torch.zeros(shape, dtype=dtype) for _ in range(config.num_hidden_layers)] for _ in range(2))
        return cls(keys, values, nodes)

    def inputs(self, tokens: Sequence[int], start: int) -> tuple[Any, ...]:
        """The arguments of a pass over a chain from a position on."""
        positions = torch.arange(start, start + len(tokens))
        dtype = self.keys[0].dtype
        mask = torch.zeros(len(tokens), SLOTS, dtype=dtype)
        mask.masked_fill_(torch.arange(SLOTS) > positions[:, None], torch.finfo(dtype).min)
        return torch.tensor([tokens]), positions[None], mask[None, None], self.keys, self.values


def package_of(folder: Path, nodes: str, dtype: str, is_separate: bool) -> Path:
    """The file of a package."""
    return folder / f"{dtype}-{nodes}{'-separate' if is_separate else ''}.pt2"


def build(model: Any, state: State, nodes: str, path: Path, options: Mapping[str, Any]) -> list[str]:
    """Export and compile one package; a line of the table."""
    num_nodes, shapes = (int(nodes), None) if nodes != ANY else (8, _any_number(len(state.keys)))
    start, before = time.perf_counter(), _cpu_seconds()
    with torch.no_grad():
        inputs = state.inputs(state.nodes[:num_nodes], CONTEXT)
        exported = torch.export.export(FixedPass(model), inputs, strict=False, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=dict(options))
    seconds = time.perf_counter() - start
    return [path.stem, f"{_cpu_seconds() - before:.0f}", f"{seconds:.0f}", f"{path.stat().st_size / 2**20:.0f}"]


def _any_number(num_layers: int) -> tuple[Any, ...]:
    nodes = torch.export.Dim("nodes", min=2, max=MOST_NODES)
    slots = torch.export.Dim("slots", min=64, max=MOST_SLOTS)
    states = [{2: slots} for _ in range(num_layers)]
    return {1: nodes}, {1: nodes}, {2: nodes, 3: slots}, states, states


def _cpu_seconds() -> float:
    """Processor seconds of this process and of the compilers that it ran."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def packages(arguments: argparse.Namespace, state: State) -> Iterator[tuple[str, int, Pass]]:
    """Each built package with a number of nodes that it is for; shows what loading takes."""
    for is_separate in (False, True):
        for nodes in [*map(str, numbers(arguments)), ANY]:
            path = package_of(arguments.folder, nodes, arguments.dtype, is_separate)
            if not path.exists():
                continue
            start = time.perf_counter()
            run = torch._inductor.aoti_load_package(str(path))
            print(f"{path.stem}: loaded in {time.perf_counter() - start:.1f} s", flush=True)
            name = "package for any number" if nodes == ANY else "packages for one number"
            name += ", products apart" if is_separate else ""
            for number in [each for each in numbers(arguments) if each > 1] if nodes == ANY else [int(nodes)]:
                yield name, number, partial(run, *state.inputs(state.nodes[:number], CONTEXT))


def numbers(arguments: argparse.Namespace) -> list[int]:
    """The numbers of nodes to time."""
    return [int(each) for each in arguments.nodes if each != ANY]


def engine(generator: Generator, tokens: Sequence[int], counts: Sequence[int], state: State) -> Iterator[Pass]:
    """Passes of a generator's engine, one for each number of nodes, warmed up; they make their inputs as steps do."""
    target = generator.open_target()
    row = target.open(SLOTS + CONTEXT)
    target.read_all(row, tokens)
    trees = [_chain(state.nodes[:number]) for number in counts]
    for rounds in range(WARM_UP):  # contexts of two lengths, for recordings
        for tree in trees:
            planned = target.compile({row: tree})
            target.forward(planned)
        if rounds % 2:
            target.rollback(row, len(tokens))
        else:
            target.commit(planned, {row: (ROOT,)})
    for tree in trees:
        yield _forward(target, row, tree)


def _chain(tokens: Sequence[int]) -> DraftTree:
    tree = DraftTree(tokens[0])
    tree.add_chain(ROOT, tokens[1:])
    return tree


def _forward(target: Target, row: CacheRow, tree: DraftTree) -> Pass:
    def forward() -> torch.Tensor:
        return target.forward(target.compile({row: tree})).rows[row].logits(ROOT)

    return forward


def timed(passes: Mapping[tuple[str, int], Pass]) -> dict[tuple[str, int], list[float]]:
    """Milliseconds of each pass by round; each runs twice in a row, and the second is timed."""
    found: dict[tuple[str, int], list[float]] = {key: [] for key in passes}
    for _ in range(ROUNDS):
        for key, forward in passes.items():
            forward()
            start = time.perf_counter()
            forward()
            found[key].append(1e3 * (time.perf_counter() - start))
    return found


def compared(passes: Mapping[tuple[str, int], Pass], own: torch.Tensor) -> Iterator[str]:
    """Sentences about the logits of packages."""
    first: dict[str, tuple[int, torch.Tensor]] = {}
    for (name, number), forward in passes.items():
        logits = forward()[0].float()
        far = (logits - own[0, :number]).abs()
        yield f"{name}, {number} nodes: off the model's own by {far.mean():.2g} on average, {far.max():.2g} at most"
        if name not in first:
            first[name] = number, logits
            continue
        shared = min(number, first[name][0])
        is_same = torch.equal(logits[:shared], first[name][1][:shared])
        relation = "the same bits as" if is_same else "other bits than"
        yield f"    its first rows have {relation} with {first[name][0]} nodes"


def measure(arguments: argparse.Namespace, model: Any, tokens: list[int], state: State, own: torch.Tensor) -> None:
    """Time all contenders, and print the tables."""
    with torch.inference_mode():
        compiled = {(name, number): forward for name, number, forward in packages(arguments, state)}
        passes = dict(compiled)
        generators = {"hf": Generator(model, numerics="fast", backend="hf", proposer="autoregressive")}
        if find_spec("specdec_openvino") is not None:
            folder = str(checkpoint(arguments))
            generators["openvino"] = Generator(folder, numerics="fast", backend="openvino", proposer="autoregressive")
        counts = numbers(arguments)
        for name, generator in generators.items():
            for number, forward in zip(counts, engine(generator, tokens, counts, state), strict=True):
                passes[name, number] = forward
        found = timed(passes)
        cells = {key: str(Spread.of(milliseconds)) for key, milliseconds in found.items()}
        names = dict.fromkeys(name for name, _ in passes)
        lines = [[name, *(cells.get((name, number), "–") for number in counts)] for name in names]
        print(table(["ms per pass, by nodes", *map(str, counts)], lines))
        print("\n".join(compared(compiled, own.float())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--folder", type=Path, default=Path("build/packages"), help="folder of the packages")
    parser.add_argument("--build", action="store_true", help="build packages instead of timing them")
    parser.add_argument("--nodes", nargs="+", default=["1", "4", "8", "16"], help=f"numbers of nodes, or {ANY!r}")
    parser.add_argument("--separate", action="store_true", help="build with each layer's product apart from the others")
    arguments = parser.parse_args()
    if any(number > SLOTS - CONTEXT for number in numbers(arguments)):
        parser.error(f"--nodes: at most {SLOTS - CONTEXT}, the slots after a context of {CONTEXT} tokens")
    AttentionInterface.register(ATTENTION, attention)
    model, tokenizer = load_model(arguments)
    print(f"{facts()}, {description(model)}\n", flush=True)
    tokens = text_of(tokenizer, CONTEXT + 64)
    usual = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    state = State.empty(model.config, model.dtype, tokens[CONTEXT:])
    if arguments.build:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for nodes in arguments.nodes:
            path = package_of(arguments.folder, nodes, arguments.dtype, arguments.separate)
            if not path.exists():
                options = SEPARATE if arguments.separate else JOINED
                print("package, CPU seconds, seconds, MiB:", *build(model, state, nodes, path, options), flush=True)
        return
    with torch.no_grad():
        own = FixedPass(model)(*state.inputs(tokens, 0))[:, CONTEXT:]
    model.set_attn_implementation(usual)
    measure(arguments, model, tokens[:CONTEXT], state, own)


if __name__ == "__main__":
    main()
