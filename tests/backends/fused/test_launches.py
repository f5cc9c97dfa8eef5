"""Each launch of a pass is compiled by Triton's own compiler, with the arguments that the pass gives it."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.support.triton_interpreter import needs_triton, run_alone

NAMES = "llama", "qwen3", "gemma3", "phi3-part"
KERNELS = {"_norm", "_product", "_place", "_attend", "_merge", "_move", "_draw"}
MOST_SHARED = 100 * 1024  # bytes, which all GPUs from Ampere on have


class Gpu:
    """Triton's driver of a GPU that isn't there."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def check_launches(capability: int) -> None:
    """Compile what passes over prompts, trees and batches launch, without running it."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from specdec.backends.fused.backend import FusedBackend
    from specdec.backends.slot_moves import SlotMoves
    from specdec.masks.slot_table import kernel
    from specdec.masks.slot_table.compiler import SlotTableCompiler
    from specdec.sampling.keyed_draws import draw
    from specdec.target import Target
    from specdec.tree import DraftTree
    from tests.backends.fused.test_fused_backend import model_of

    launched, run = Counter[str](), JITFunction.run

    def compiled(self: Any, *arguments: Any, warmup: bool, **options: Any) -> None:
        made = run(self, *arguments, warmup=True, **options)
        assert made.metadata.shared <= MOST_SHARED, self.fn.__name__
        assert self.fn.__name__ != "_product" or "ld.global.b16" not in made.asm["ptx"], "rows are read one by one"
        launched[self.fn.__name__] += 1

    # A process of its own.
    driver.set_active(Gpu(capability))
    JITFunction.run = compiled
    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]
    kernel.has_kernels = lambda _: True  # type: ignore[attr-defined]
    FusedBackend._serves = lambda _: True  # type: ignore[assignment,method-assign]
    wide = DraftTree(5)
    while len(wide) < 100:
        wide.add(max(0, len(wide) - 1 - len(wide) % 3), 3 + len(wide) % 7)
    for name, dtype in [*((name, torch.bfloat16) for name in NAMES), (NAMES[0], torch.float32)]:
        target = Target(FusedBackend.load(model_of(name, dtype), SlotTableCompiler()), SlotTableCompiler())
        rows = [target.open(400), target.open(300)]
        target.read_all(rows[0], [1 + i % 40 for i in range(300)])
        target.read_all(rows[1], [1, 2, 3])
        for trees in ({rows[0]: DraftTree(5)}, {rows[0]: wide}, {row: DraftTree(4) for row in rows}):
            target.forward(target.compile(trees))
        SlotMoves([torch.zeros(2, 3, 512, 64, dtype=dtype)]).move([(1, 1, [5, 6])])
        for shape in ((1, 1), (2, 4)):
            seeds, temperatures = torch.ones(shape[0], dtype=torch.int64), torch.ones(shape[0], dtype=torch.float64)
            draw(torch.zeros(*shape, 49152, dtype=dtype), torch.zeros(shape, dtype=torch.int64), seeds, temperatures)
    assert launched.keys() == KERNELS


@needs_triton
@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.nightly)])
def test_each_launch_is_compiled(capability: int) -> None:
    run_alone(f"from tests.backends.fused.test_launches import check_launches\ncheck_launches({capability})")
