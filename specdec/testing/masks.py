"""A check of the mask compiler's contract, with random trees, and of passes that are captured as CUDA graphs."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.backends import HFBackend, StaticBackend
from specdec.layout import FixedMask, Shapes, Window
from specdec.machine import Graphs
from specdec.masks import MaskCompiler
from specdec.models import own_logits
from specdec.runtime.probes.walk import fault_of
from specdec.target import Target
from specdec.testing.backends import check_backend, check_steps
from specdec.tree import DraftTree

_NUM_BATCHES = 20
_MOST_NODES = 9
_LENGTHS = 0, 1, 7, 300, 5000  # of the text
_KINDS: dict[str, Window | None] = {
    "full_attention": None,
    "sliding_attention": Window("sliding", 5),
    "chunked_attention": Window("chunked", 4),
}

_Outputs = tuple[torch.Tensor, ...]


def check_mask(compiler: MaskCompiler, model: Any = None, tolerance: float = 1e-3, seed: int = 0) -> None:
    """Check that nodes see the text, their ancestors and themselves alone, and that a model computes just that.

    If the compiler ``has_fixed_shapes``, also that its masks have, and that captured passes equal others. Without a GPU
    they are captured operation by operation: what a pass reads besides tensors is then fixed, as in a CUDA graph.

    Args:
        model: a transformers model whose attention can be replaced, with windows if those are to be tried (default: the
            built-in one, which has none).
        tolerance: the largest difference of a logit that counts as rounding.
        seed: of trees, texts and choices.

    Raises:
        AssertionError: with the law that is broken.
    """
    from specdec import demo

    rng, model = np.random.default_rng(seed), demo.load()[0] if model is None else model
    _check_layouts(compiler, HFBackend.assumed_passes(model).shapes, rng)
    plain = _Plain(model)
    check_backend(HFBackend.load(model, compiler), plain, compiler, tolerance, seed)
    if compiler.has_fixed_shapes:
        _check_shapes(compiler, HFBackend.assumed_passes(model).shapes, rng)
        captured = _Captured(model, compiler)
        check_backend(captured, plain, compiler, tolerance, seed)
        check_steps(Target(captured, compiler), plain, tolerance, seed)
        assert captured.num_replays, f"no pass was captured: {captured.fault}"


class _Plain:
    """A model's own logits after a text. A recent pass also answers for the beginnings of its text."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._passes: deque[tuple[list[int], torch.Tensor]] = deque(maxlen=_MOST_NODES)

    def __call__(self, text: list[int]) -> torch.Tensor:
        found = next((logits for whole, logits in self._passes if whole[: len(text)] == text), None)
        if found is None:
            found = own_logits(self._model, [text])[0]
            self._passes.append((text, found))
        return found[len(text) - 1]


def _check_layouts(compiler: MaskCompiler, shapes: Shapes, rng: np.random.Generator) -> None:
    shapes = replace(shapes, attention=_KINDS)
    for _ in range(_NUM_BATCHES):
        lengths = rng.choice(_LENGTHS[:-1], size=rng.integers(1, 4)).tolist()
        trees = [_tree(int(rng.integers(1, _MOST_NODES)), rng) for _ in lengths]
        fault = fault_of(compiler.compile(trees, lengths, shapes), trees, lengths, shapes)
        assert not fault, f"{fault}, for trees {[tree.parents for tree in trees]} after {lengths} tokens"


def _check_shapes(compiler: MaskCompiler, shapes: Shapes, rng: np.random.Generator) -> None:
    for num_nodes in (1, 2, _MOST_NODES):
        tree, found = _tree(num_nodes, rng), set[tuple[int, ...]]()
        for length in _LENGTHS:
            for mask in compiler.compile([tree], [length], shapes).masks.values():
                assert isinstance(mask, FixedMask), f"{type(mask).__name__} is not a FixedMask"
                found.add(tuple(mask.numbered_from(1).shape))
        assert len(found) <= 1, f"the shape of a mask over {num_nodes} nodes depends on the text's length: {found}"


def _tree(num_nodes: int, rng: np.random.Generator) -> DraftTree:
    tree = DraftTree(0)
    while len(tree) < num_nodes:
        tree.add(int(rng.integers(len(tree))), len(tree))
    return tree


class _Captured(StaticBackend):
    """The static backend, which captures each shape's first pass; few shapes, so that many passes are replayed."""

    widths: ClassVar[tuple[int, ...]] = (32,)

    def _make_cache(self, num_layers: int) -> Any:
        cache = super()._make_cache(num_layers)
        self._graphs: Any = _EveryGraph(self.shapes.device)
        return cache

    @property
    def num_replays(self) -> int:
        """The number of passes that were replayed."""
        return int(self._graphs.num_replays)

    @property
    def fault(self) -> str:
        """The reason why a pass could not be captured, or ""."""
        return str(self._graphs.fault)


class _EveryGraph(Graphs):
    """Graphs that are captured at once: as CUDA graphs on a GPU, elsewhere operation by operation."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.captures, self.num_replays, self.fault = True, 0, ""

    def run(self, call: Callable[[Any], _Outputs], inputs: Any, shape: Any, memory: object) -> _Outputs:
        if self._memory is memory:
            self._seen.add(shape)
        self.num_replays += shape in self._graphs
        return super().run(call, inputs, shape, memory)

    def _captured(self, call: Callable[[Any], _Outputs], inputs: Any) -> Any:
        if self._device.type == "cuda":
            return super()._captured(call, inputs)
        try:
            return _Recording(call, inputs)
        except _NotCapturedError as fault:
            self.captures, self.fault = False, str(fault)
            return None


class _NotCapturedError(Exception):
    """Raised if the host reads numbers from the device in a pass."""


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """The operations of a pass, which are run again on the same tensors as a CUDA graph's are."""

    def __init__(self, run: Callable[[Any], _Outputs], inputs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._inputs, self._calls = inputs.owned(), list[tuple[Any, Any, Any, Any]]()
        self._device = inputs.device
        run(self._inputs)  # what is made in a first call is not part of a graph
        with self:
            self._outputs = run(self._inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        output = None if _reads_numbers(func, args) else func(*args, **(kwargs or {}))
        if output is None or (isinstance(output, torch.Tensor) and output.device.type != self._device.type):
            raise _NotCapturedError(f"{func} reads numbers from the device, which CUDA refuses in a capture")
        self._calls.append((func, args, kwargs or {}, output))
        return output

    def __call__(self, inputs: Any) -> _Outputs:
        self._inputs.copy_(inputs)
        for func, args, kwargs, output in self._calls:
            again = func(*args, **kwargs)
            pairs = zip(output, again, strict=True) if isinstance(output, list | tuple) else [(output, again)]
            for before, after in pairs:
                if isinstance(before, torch.Tensor) and not _is_expanded(before):
                    before.copy_(after)
        return self._outputs


def _reads_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    if func is torch.ops.aten.index.Tensor:  # of these, masks become indices
        return any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in args[1])
    return not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Return True for a view in which numbers repeat, which is what it was."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
