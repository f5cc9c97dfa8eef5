"""Exact attention: bits that don't depend on the tree, sums that are exact, and nearly what float64 gives."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from specdec import DraftTree, Generator, ModelError
from specdec.backends.grouped_attention import grouped_attention
from specdec.layout import Shapes, Window
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact import kernel as exact
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.exact.regions import BLOCK, OPEN, closed_region, found_regions
from tests.support import families

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
WINDOWS = [None, Window("sliding", 9), Window("sliding", 300), Window("chunked", 100)]
# Behind so many committed tokens: none, few, and on both sides of where closed regions begin and change.
PREFIXES = (0, 1, 20, 31, 150, 158, 190, 222, 254, 500)
KIND = "attention"


@dataclass
class Case:
    """A tree's keys, values and queries, and the same of one of its nodes in plain decoding."""

    shapes: Shapes
    tree: DraftTree
    prefix: int
    node: int
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    plain_states: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    options: dict[str, Any]

    def in_tree(self, compiler: Any = None, attend: Any = exact.exact_attention) -> torch.Tensor:
        layout = (compiler or ExactCompiler()).compile([self.tree], [self.prefix], self.shapes)
        return attended(attend, self.states, layout, self.options)[self.node]

    def plainly(self, compiler: Any = None, attend: Any = exact.exact_attention) -> torch.Tensor:
        length = self.prefix + self.tree.depths[self.node]
        layout = (compiler or ExactCompiler()).compile([DraftTree(0)], [length], self.shapes)
        return attended(attend, self.plain_states, layout, self.options)[0]


def attended(attend: Any, states: Any, layout: Any, options: dict[str, Any]) -> torch.Tensor:
    output, _ = attend(torch.nn.Module(), *states, layout.masks.get(KIND), **options)
    result: torch.Tensor = output[0]
    return result


def random_tree(rng: np.random.Generator, size: int) -> DraftTree:
    tree = DraftTree(0)
    for token in range(1, size):
        shallow = [node for node in range(len(tree)) if tree.depths[node] < OPEN]
        tree.add(shallow[-1] if rng.random() < 0.5 else int(rng.choice(shallow)), token)
    return tree


def cases(dtype: torch.dtype, window: Window | None, seed: int, spread: float = 1.0) -> Iterator[Case]:
    rng, torch_rng = np.random.default_rng(seed), torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch_rng).mul(spread).to(dtype)

    for prefix in PREFIXES:
        groups, heads = int(rng.choice([1, 2])), int(rng.choice([1, 3, 4]))
        size, multiple = int(rng.choice([8, 32, 64])), int(rng.choice([1, 4]))
        value_size = int(rng.choice([size, 8]))
        shapes = Shapes(100, None, True, {KIND: window}, dtype, torch.device("cpu"), multiple)
        tree = random_tree(rng, int(rng.choice([2, 7, 30, 90])))
        width = -(-len(tree) // multiple) * multiple
        node = int(rng.integers(len(tree)))
        length = prefix + tree.depths[node]
        query, key, value = (random(1, *shape) for shape in (
            (groups * heads, width, size), (groups, prefix + width, size), (groups, prefix + width, value_size)
        ))  # fmt: skip
        plain_query = random(1, groups * heads, multiple, size)
        plain_key = random(1, groups, length + multiple, size)
        plain_value = random(1, groups, length + multiple, value_size)
        slots = [*range(prefix), *(prefix + ancestor for ancestor in tree.lineage(node))]
        plain_query[:, :, 0] = query[:, :, node]
        plain_key[:, :, : length + 1], plain_value[:, :, : length + 1] = key[:, :, slots], value[:, :, slots]
        options: dict[str, Any] = {"scaling": size**-0.5}
        if rng.random() < 0.25:
            options["softcap"] = 20.0
        if rng.random() < 0.25:
            options["s_aux"] = torch.randn(groups * heads, generator=torch_rng)
        yield Case(shapes, tree, prefix, node, (query, key, value), (plain_query, plain_key, plain_value), options)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_node_has_the_bits_of_plain_decoding(dtype: torch.dtype, window: Window | None) -> None:
    for seed in range(4):
        for case in cases(dtype, window, seed):
            assert torch.equal(case.in_tree(), case.plainly()), (seed, case.prefix, len(case.tree), case.options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ordinary_attention_fails_the_same_test(dtype: torch.dtype) -> None:
    plain = [
        case
        for seed in range(8)
        for case in cases(dtype, None, seed)
        if case.options.keys() == {"scaling"} and case.prefix  # without one, chains have no mask
    ]
    ordinary = DenseCompiler(), grouped_attention
    assert not all(torch.equal(case.in_tree(*ordinary), case.plainly(*ordinary)) for case in plain)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 3e-6)])
def test_it_is_nearly_what_float64_gives(dtype: torch.dtype, tolerance: float, window: Window | None) -> None:
    for case in cases(dtype, window, seed=5):
        query, key, value = (states[0].double() for states in case.states)
        heads = len(query) // len(key)
        scores = (key.repeat_interleave(heads, 0) @ query[:, case.node, :, None])[..., 0] * case.options["scaling"]
        if "softcap" in case.options:
            scores = case.options["softcap"] * (scores / case.options["softcap"]).tanh()
        layout = ExactCompiler().compile([case.tree], [case.prefix], case.shapes)
        scores = scores.masked_fill(~layout.visible(KIND)[0, case.node], -torch.inf)
        sinks = case.options.get("s_aux", torch.full((len(query),), -torch.inf)).double()[:, None]
        weights = torch.cat([scores, sinks], -1).softmax(-1)[:, :-1]
        expected = (weights[:, None] @ value.repeat_interleave(heads, 0))[:, 0]
        assert torch.allclose(case.in_tree().double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_over_open_slots_are_exact(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(3)
    grid = exact._GRIDS[dtype]
    scores = torch.randn(1, 1, 200, generator=rng) * 6
    magnitudes = 2.0 ** torch.randint(-30, 5, (1, 200, 3), generator=rng)
    values = (torch.randn(1, 200, 3, generator=rng) * magnitudes).to(dtype)
    expected = torch.exp(scores.double() - scores.max())
    limbs = exact._softmax_weights([scores], grid)
    assert torch.allclose(limbs.sum(1, keepdim=True), expected, rtol=0, atol=2.0 ** -(grid.weights[-1] - 1))
    for limb, exponent in zip(limbs[0], grid.weights, strict=True):
        assert torch.equal(limb * 2.0**exponent, (limb * 2.0**exponent).round())
    sums = exact._exact_sum(limbs, values, grid)
    finest = Fraction(1, 2 ** (grid.values + (dtype == torch.float32)))
    for column in range(3):
        own_values = values[0, :, column].float()
        rounded = exact._round_to(own_values, grid.values)
        assert ((rounded - own_values).abs() <= (own_values.abs() * 2.0**-23).clamp(min=2.0**-grid.values)).all()
        on_grid = [Fraction(float(v)) for v in rounded]
        assert all(v % finest == 0 for v in on_grid)
        for limb, own in zip(limbs[0], sums[0, :, column], strict=True):
            assert Fraction(float(own)) == sum(Fraction(float(w)) * v for w, v in zip(limb, on_grid, strict=True))
    order = torch.randperm(200, generator=rng)
    assert torch.equal(exact._exact_sum(limbs[..., order], values[:, order], grid), sums)


def test_the_example_of_a_closed_region() -> None:
    assert closed_region(0, 250) == slice(0, 192)
    tree = DraftTree(0)
    path = [0, *tree.add_chain(0, range(1, 10))]
    for token in range(10, 35):
        tree.add(0, token)
    path.append(tree.add(path[-1], 35))
    assert (tree.depths[path[-1]], path[-1]) == (10, 35)
    compiler = ExactCompiler()
    shapes = Shapes(100, None, True, {KIND: None}, torch.float32, torch.device("cpu"))
    for trees, length, nodes in ((tree, 240, path), (DraftTree(0), 250, [0])):
        (region,) = compiler.compile([trees], [length], shapes).masks[KIND].regions  # type: ignore[attr-defined]
        assert (region.closed, region.open) == (slice(0, 192), (slice(192, length + len(trees)),))
        seen = (region.hidden[-1] == 0).nonzero().flatten() + 192
        assert seen.tolist() == [*range(192, length), *(length + node for node in nodes)]
        assert len(seen) == 59


def test_a_closed_region_depends_on_the_position_alone_and_ends_before_any_root() -> None:
    width, ends = 700, {}
    mask = torch.ones(1, 1, width, width, dtype=torch.bool).tril()
    for region in found_regions(mask):
        assert isinstance(region.nodes, slice)
        for position in range(region.nodes.start, region.nodes.stop):
            ends[position] = region.closed
    assert ends.keys() == set(range(width))
    assert ends[width - 1].stop > 0
    for position, closed in ends.items():
        assert closed.start % BLOCK == closed.stop % BLOCK == 0
        assert closed.stop <= max(0, position - OPEN)
        single = mask[:, :, position : position + 1, : position + 1]
        assert [region.closed for region in found_regions(single)] == [closed]


def test_regions_of_kept_masks_are_those_found_in_the_mask() -> None:
    compiler, rng = ExactCompiler(), np.random.default_rng(0)
    shapes = Shapes(100, None, True, {KIND: None}, torch.float32, torch.device("cpu"))
    shared = [DraftTree(0), random_tree(rng, 7), random_tree(rng, 30)]
    for length in range(0, 700, 3):
        for tree in shared:
            mask = compiler.compile([tree], [length], shapes).masks[KIND]
            given, found = list(mask.regions), list(found_regions(mask))  # type: ignore[attr-defined]  # it carries them
            assert [(region.closed, region.open) for region in given] == [(r.closed, r.open) for r in found]
            for own, region in zip(given, found, strict=True):
                assert torch.equal(torch.arange(len(tree))[own.nodes], torch.arange(len(tree))[region.nodes])
                assert torch.equal(own.hidden, region.hidden)


def test_a_cache_that_has_dropped_its_beginning_keeps_the_same_regions() -> None:
    whole = torch.ones(1, 1, 1, 700, dtype=torch.bool)
    whole[..., :250] = False
    (all_slots,), (cropped,) = found_regions(whole), found_regions(whole[..., 250:], offset=250)
    assert (cropped.closed.start, cropped.closed.stop) == (all_slots.closed.start - 250, all_slots.closed.stop - 250)
    assert all_slots.closed.stop > all_slots.closed.start


def test_nodes_deeper_than_any_tree_should_be_are_right_nonetheless() -> None:
    tree = DraftTree(0)
    tree.add_chain(tree.add(0, 1), range(2, 9))
    last = tree.add_chain(0, range(10, 10 + 5 * OPEN))[-1]
    shapes = Shapes(300, None, True, {KIND: None}, torch.float32, torch.device("cpu"))
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, n, 32, generator=rng) for n in (len(tree), 300 + len(tree), 300 + len(tree)))
    layout = ExactCompiler().compile([tree], [300], shapes)
    output = attended(exact.exact_attention, (query, key, value), layout, {})
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, layout.visible(KIND)[:, None])
    assert torch.allclose(output[last], expected[0, :, last], atol=1e-5)


@pytest.mark.parametrize(
    ("query", "mask", "options", "fault"),
    [
        (
            torch.zeros(1, 1, 1, 8, dtype=torch.float64),
            torch.ones(1, 1, 1, 1, dtype=torch.bool),
            {},
            "not torch.float64",
        ),
        (torch.zeros(1, 1, 1, 8), None, {}, "boolean mask"),
        (torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 1), {}, "boolean mask"),
        (torch.zeros(1, 1, 1, 8), torch.ones(1, 1, 1, 1, dtype=torch.bool), {"position_bias": 1}, "no position bias"),
    ],
)
def test_what_it_does_not_cover_is_refused_by_name(query: Any, mask: Any, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ModelError, match=f"specdec_exact .*{fault}"):
        exact.exact_attention(torch.nn.Module(), query, query, query, mask, **options)


def test_padded_prompts_are_refused_under_transformers() -> None:
    model = families.make(*families.TREES["llama"])
    exact.register()
    model.set_attn_implementation("specdec_exact")
    with pytest.raises(ModelError, match="doesn't support padded prompts"):
        model(torch.tensor([[0, 5, 6]]), attention_mask=torch.tensor([[0, 1, 1]]))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2", "gemma3", "mistral-window"])
def test_transformers_own_generate_writes_the_same(name: str) -> None:
    """transformers' loop and caches, with specdec's attention: the independent reference."""
    model = families.make(*families.TREES[name])
    prompt = [5, 9, 2, 7, 1, 8, 3] * 10
    generator = Generator(model, proposer="lookahead:N=4,W=6,G=6", numerics="exact")
    expected = generator.generate(prompt, max_new_tokens=24).token_ids
    copies = generator.open_target().shapes.row_multiple  # so that products have as many rows as they are padded to
    model.set_attn_implementation("specdec_exact")
    ids = torch.tensor([prompt] * copies)
    own = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert tuple(own[0, len(prompt) :].tolist()) == expected
