"""A layout's masks as the engine's inputs: what each row's nodes see of each other, whatever the mask's form."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from specdec_openvino.engine.blocks import BlockRow
from specdec_openvino.engine.pass_inputs import pack
from torch.utils._python_dispatch import TorchDispatchMode

from specdec import DraftTree
from specdec.layout import Shapes
from specdec.masks import DenseCompiler, MaskCompiler
from specdec.masks.visibility import ancestors


class Comparisons(TorchDispatchMode):
    """Counts the numbers that are compared."""

    num_compared = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **kwargs or {})
        if function.overloadpacket is torch.ops.aten.eq:
            self.num_compared += output.numel()
        return output


def split_compiler() -> MaskCompiler:
    made: MaskCompiler = pytest.importorskip("specdec_flash").SplitCompiler(least_prefix=1)
    return made


@pytest.mark.parametrize("compiler_of", [DenseCompiler, split_compiler])
def test_a_row_beside_a_chunk_of_a_prompt_is_packed_by_its_own_nodes(compiler_of: Callable[[], MaskCompiler]) -> None:
    compiler = compiler_of()
    chunk, tree, lengths = DraftTree(1), DraftTree(2), (0, 300, 40)
    chunk.add_chain(0, range(3, 130))
    tree.add_chain(0, [4, 5])
    tree.add_chain(0, [6, 7])
    trees = [chunk, tree, tree]
    layout = compiler.compile(
        trees, lengths, Shapes(200, None, True, {"full": None}, torch.float32, torch.device("cpu"))
    )
    assert layout.masks
    rows = [BlockRow([*range(20)]) for _ in lengths]
    with Comparisons() as comparisons:
        packed = pack(layout, rows, 32, layout.num_nodes, 1)
    expected = ancestors(tree, len(tree)).reshape(-1)
    np.testing.assert_array_equal(packed.inputs["qq_bias"], np.concatenate([expected, expected]))
    assert packed.inputs["qq_bias_begins"].tolist() == [0, 0, 25, 50]
    if isinstance(compiler, DenseCompiler):  # a partial mask says itself what is visible
        assert comparisons.num_compared <= sum(len(each) ** 2 for each in trees)
