"""Split attention: ten lines of float64 arithmetic are the reference, whatever the parts that it is merged from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from specdec_flash import SplitCompiler
from specdec_flash import kernel as split
from specdec_flash.parts import SplitMask

from specdec import DraftTree, ModelError
from specdec.backends import HFBackend
from specdec.layout import Layout, Shapes, Window
from specdec.masks import DenseCompiler
from specdec.target import Target
from tests.support import families
from tests.support.devices import DEVICES
from tests.support.examined import examined
from tests.support.generators import open_row, random_tree

KIND = "attention"
WINDOWS = [None, Window("sliding", 4), Window("sliding", 40), Window("chunked", 7), Window("chunked", 64)]
# What a result's rounding allows: twice that of one number, since the prefix and the sum are each rounded.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}


@dataclass
class Case:
    """Trees behind prefixes: which slots their nodes see, their states, and what the attention is told besides."""

    layout: Layout
    seen: torch.Tensor
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    options: dict[str, Any]

    def error(self) -> float:
        """The greatest distance from the reference, over all nodes that aren't padding."""
        output, weights = split.split_attention(
            torch.nn.Module(), *self.states, self.layout.masks[KIND], **self.options
        )
        assert weights is None
        assert output.is_contiguous()
        assert output.isfinite().all()
        assert output.dtype == self.states[0].dtype
        rows = zip(output.double(), self.expected(), self.layout.num_nodes, strict=True)
        return max(float((own[:nodes] - other[:nodes]).abs().max()) for own, other, nodes in rows)

    def expected(self) -> torch.Tensor:
        return reference(self.seen, *self.states, **self.options)


def reference(
    seen: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax attention over the slots that each node sees, (rows, width, heads, head size), in float64."""
    key, value = (states[:, :, : seen.shape[2]].double().repeat_interleave(query.shape[1] // key.shape[1], 1)
                  for states in (key, value))  # fmt: skip
    scores = query.double() @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return (torch.softmax(scores, -1)[..., : seen.shape[2]] @ value).transpose(1, 2)


def laid_out(
    trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes, least_prefix: int = 1
) -> tuple[Layout, torch.Tensor]:
    """The layout, and what the dense compiler says that nodes see."""
    # A window that holds everything, so that there is a dense mask also where models need none.
    everything = {KIND: shapes.attention[KIND] or Window("sliding", 10**6)}
    dense = DenseCompiler().compile(trees, lengths, replace(shapes, attention=everything))
    return SplitCompiler(least_prefix=least_prefix).compile(trees, lengths, shapes), dense.visible(KIND)


def cases(dtype: torch.dtype, window: Window | None, seed: int, device: str = "cpu") -> Iterator[Case]:
    rng, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    shapes = Shapes(100, None, True, {KIND: window}, dtype, torch.device(device))

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise).to(device, dtype)

    for longest in (1, 9, 70, 300):
        num_rows, groups, heads = int(rng.choice([1, 3])), int(rng.choice([1, 2])), int(rng.choice([1, 3]))
        size = int(rng.choice([8, 64, 80]))
        value_size = int(rng.choice([size, 16]))
        lengths = rng.integers(0, longest + 1, size=num_rows).tolist()
        lengths[-1] = longest
        trees = [random_tree(rng, 100, int(rng.integers(1, 50))) for _ in lengths]
        layout, seen = laid_out(trees, lengths, shapes, least_prefix=int(rng.choice([1, 20, 256])))
        slots = longest + layout.width + int(rng.integers(3))  # a cache may have more than the layout needs
        states = (
            random(num_rows, groups * heads, layout.width, size),
            random(num_rows, groups, slots, size),
            random(num_rows, groups, slots, value_size),
        )
        options: dict[str, Any] = {"scaling": size**-0.5}
        if rng.random() < 0.3:
            options["softcap"] = 1.5
        if rng.random() < 0.3:
            options["s_aux"] = random(groups * heads) * 2
        yield Case(layout, seen, states, options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_it_is_softmax_attention(dtype: torch.dtype, window: Window | None, device: str) -> None:
    for seed in range(6):
        for case in cases(dtype, window, seed, device):
            assert case.error() <= TOLERANCES[dtype], (seed, case.layout.lengths, case.layout.num_nodes, case.options)


def made(
    lengths: Sequence[int],
    sizes: Sequence[int],
    window: Window | None = None,
    dtype: torch.dtype = torch.float32,
    least_prefix: int = 1,
) -> Case:
    """Chains behind prefixes, four heads in two groups."""
    trees = [DraftTree(0) for _ in sizes]
    for tree, size in zip(trees, sizes, strict=True):
        tree.add_chain(0, range(1, size))
    shapes_of_model = Shapes(100, None, True, {KIND: window}, dtype, torch.device("cpu"))
    layout, seen = laid_out(trees, lengths, shapes_of_model, least_prefix)
    noise, slots = torch.Generator().manual_seed(1), max(lengths) + layout.width
    shapes = [(4, layout.width), (2, slots), (2, slots)]
    states = [torch.randn(len(sizes), n, width, 16, generator=noise).to(dtype) for n, width in shapes]
    return Case(layout, seen, (states[0], states[1], states[2]), {"scaling": 0.25})


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        pytest.param([0, 0], [5, 2], id="nothing before any row"),
        pytest.param([0, 40, 7], [3, 6, 1], id="ragged, and nothing before one row"),
        pytest.param([62, 63, 64], [9, 9, 9], id="across the end of a chunk"),
        pytest.param([90, 12], [1, 1], id="plain steps"),
        pytest.param([0, 5], [1, 1], id="plain steps, one of them behind nothing"),
        pytest.param([100], [90], id="more nodes than windows hold"),
    ],
)
def test_prefixes_of_no_slots_and_rows_of_any_lengths(
    lengths: list[int], sizes: list[int], window: Window | None
) -> None:
    assert made(lengths, sizes, window).error() <= 1e-6


@pytest.mark.parametrize("options", [{}, {"softcap": 1.5}, {"s_aux": torch.ones(4)}], ids=str)
@pytest.mark.parametrize("window", [None, Window("sliding", 250)], ids=str)
def test_plain_steps_whose_row_is_all_prefix_beside_one_that_is_all_tail(
    window: Window | None, options: dict[str, Any]
) -> None:
    case = made([500, 20], [1, 1], window, least_prefix=128)
    case.options |= options
    assert case.error() <= 1e-6


@pytest.mark.parametrize("window", [None, Window("sliding", 300), Window("chunked", 1000)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_chunk_of_a_long_prompt(dtype: torch.dtype, window: Window | None) -> None:
    case = made([700, 600], [420, 384], window, dtype)
    assert case.error() <= TOLERANCES[dtype]
    case.options |= {"softcap": 1.5, "s_aux": torch.randn(4)}
    assert case.error() <= TOLERANCES[dtype]


def test_half_precision_loses_no_more_than_twice_what_one_fused_call_does() -> None:
    for seed in range(4):
        for case in cases(torch.bfloat16, None, seed):
            if case.options.keys() == {"scaling"}:
                query, key, value = (states[:, :, : case.seen.shape[2]] for states in case.states)
                dense = torch.nn.functional.scaled_dot_product_attention(
                    query, key, value, case.seen[:, None], scale=case.options["scaling"], enable_gqa=True
                )
                errors = (dense.transpose(1, 2).double() - case.expected()).abs()
                assert case.error() <= 2 * float(errors.max()) + 1e-3


def test_a_mask_holds_the_tail_alone_and_windows_cost_no_more_than_the_slots_where_nodes_differ() -> None:
    layout = made([500], [6]).layout
    assert layout.masks[KIND].shape == (1, 1, 6, 6)
    windowed = made([500], [6], Window("sliding", 100)).layout.masks[KIND]
    assert isinstance(windowed, SplitMask)
    assert windowed.shape == (1, 1, 6, 5 + 6)
    assert windowed.prefixes == (slice(406, 500),)
    crossing = made([500], [6], Window("chunked", 503)).layout.masks[KIND]
    assert isinstance(crossing, SplitMask)
    assert crossing.shape == (1, 1, 6, 6)  # nodes in the next chunk see nothing of the prefix, all others all
    assert made([500, 20], [1, 1]).layout.masks[KIND].shape == (2, 1, 1, 0)  # a lone node has no tail


@pytest.mark.parametrize(
    ("mask", "options"),
    [(None, {}), (torch.zeros(1, 1, 2, 2), {}), (made([3], [2]).layout.masks[KIND], {"position_bias": torch.zeros(1)})],
    ids=["no mask", "an ordinary mask", "a position bias"],
)
def test_what_it_does_not_cover_is_refused_by_name(mask: Any, options: dict[str, Any]) -> None:
    states = torch.zeros(1, 1, 2, 8)
    with pytest.raises(ModelError, match=r"specdec_split .* no position bias"):
        split.split_attention(torch.nn.Module(), states, states, states, mask, **options)


def test_a_lone_node_has_no_split_attention_and_the_model_is_left_as_it_was() -> None:
    model, compiler = families.make(*families.TREES["llama"]), SplitCompiler()
    backend = examined(HFBackend.load(model, compiler))
    open_row(Target(backend, compiler), [1, 2, 3])
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    tree = DraftTree(4)
    backend.forward(compiler.compile([tree], [3], backend.shapes))
    tree.add_chain(0, [5, 6])
    backend.forward(compiler.compile([tree], [3], backend.shapes))
    assert seen == ["specdec_grouped", "specdec_split"]
    assert model.config._attn_implementation == "sdpa"
