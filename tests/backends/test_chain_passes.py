"""Rows of models with states share passes: which, how often, and with the logits of each row alone."""

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from specdec import Generator
from specdec.backends.cache import RaggedLayer
from specdec.backends.chain_passes import causal_masks
from specdec.backends.hf import HFBackend
from specdec.backends.placement import Placement
from specdec.backends.states import stateful_cache
from specdec.backends.states.state_costs import passes_of_step, shared_passes
from specdec.layout import Shapes, Window
from specdec.masks.dense import DenseCompiler
from specdec.target import CacheRow
from specdec.tree import ROOT, DraftTree
from tests.backends.test_stateful_cache import TOLERANCE, counted, made, texts, without_a_cache
from tests.support import families
from tests.support.examined import examined_target
from tests.support.plain import decode_model

compiler = DenseCompiler()
DRAFT = [5, 6, 7]


def chain(root: int, num_drafted: int) -> DraftTree:
    tree = DraftTree(root)
    tree.add_chain(ROOT, DRAFT[:num_drafted])
    return tree


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "mamba", "nemotron_h"])
def test_a_plain_step_of_rows_of_any_length_is_one_pass(name: str) -> None:
    model, prompts = made(name), texts(3)
    generator = Generator(model, proposer="autoregressive", max_batch_size=3)
    fed = counted(model)
    results = generator.generate(prompts, max_new_tokens=8, eos_token_id=())
    assert fed[-7:] == [3] * 7
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == decode_model(model, prompt, 8, None, eos=())


def test_drafts_of_rows_share_a_pass_although_other_tokens_are_pending() -> None:
    """Rows that read 4, 4 and 6 tokens share one; a row that reads 15 has its own."""
    model = made("qwen3_next")
    target, lengths = examined_target(HFBackend.load(model, compiler)), (9, 5, 12, 7)
    rows = [target.open(capacity=64) for _ in lengths]
    texts_of = {row: list(range(2, 2 + length)) for row, length in zip(rows, lengths, strict=True)}
    for row, text in texts_of.items():
        target.read_all(row, text)
    pending, drafted = (0, 2, 14, 4), (3, 1, 0, 1)
    for row, count in zip(rows, pending, strict=True):
        for step in range(count):
            planned = target.compile({row: chain(20 + step, 1)})
            target.forward(planned)
            target.commit(planned, {row: (ROOT,)})
            texts_of[row].append(20 + step)
    fed, trees = counted(model), [chain(40 + number, size) for number, size in enumerate(drafted)]
    output = target.forward(target.compile(dict(zip(rows, trees, strict=True))))
    assert sorted(fed) == [15, 3 * 6]
    assert output.num_passes == len(fed)
    assert passes_of_step(pending, [count > 0 for count in drafted]) == ([(1, 15)], [(3, 4)])
    for row, tree in zip(rows, trees, strict=True):
        text = [*texts_of[row], *tree.tokens]
        expected = families.plain_logits(model, text)[-len(tree) :]
        found = torch.stack([output.rows[row].logits(node) for node in range(len(tree))])
        assert float((found - expected).abs().max()) <= TOLERANCE


@pytest.mark.usefixtures("no_findings")
@pytest.mark.parametrize("most_bytes", [0, 1 << 30])
@pytest.mark.parametrize("name", ["mamba2", "nemotron_h"])
def test_a_prompt_and_a_plain_step_move_every_rows_checkpoint_whatever_room_states_have(
    name: str, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is padded without room for the states after each token would read its text again."""
    monkeypatch.setattr(stateful_cache, "_MOST_BYTES", most_bytes)
    model = made(name)
    target = examined_target(HFBackend.load(model, compiler))
    rows = {target.open(capacity=64): list(range(2, 2 + length)) for length in (9, 5, 7)}
    first = target.open(capacity=64)
    target.read_all(first, [3, 4, 5])  # so that the size of a state is known
    target.release(first)
    fed, trees = counted(model), {row: chain(text[-1], 2) for row, text in rows.items()}
    planned = target.compile(trees, {row: text[:-1] for row, text in rows.items()})
    output = target.forward(planned)
    for row, text in rows.items():
        expected = families.plain_logits(model, text)[-1]
        assert float((output.rows[row].logits(ROOT) - expected).abs().max()) <= TOLERANCE
    for _ in range(2):
        target.commit(planned, dict.fromkeys(rows, (ROOT,)))
        planned = target.compile({row: chain(10, 0) for row in rows})
        target.forward(planned)
    assert fed[-1] == len(rows)  # the second plain step reads nothing again


def test_rows_share_passes_such_that_all_take_the_least_time() -> None:
    """Against every division of the rows in order, a pass costing as much as eight tokens."""
    rng = random.Random(2)
    for _ in range(40):
        lengths = sorted((rng.randint(1, 24) for _ in range(rng.randint(1, 6))), reverse=True)

        def cost(cuts: Sequence[int], lengths: list[int] = lengths) -> int:
            return sum(8 + (end - begin) * lengths[begin] for begin, end in pairwise([0, *cuts, len(lengths)]))

        inner = range(1, len(lengths))
        best = min(cost(cuts) for count in range(len(lengths)) for cuts in combinations(inner, count))
        passes = sorted(shared_passes(lengths), key=lambda places: places.start)
        assert [place for places in passes for place in places] == [*range(len(lengths))]
        assert cost([places.start for places in passes[1:]]) == best
    assert [*shared_passes([5, 5], is_shared=False)] == [range(1), range(1, 2)]


def test_a_padded_row_keeps_its_checkpoint() -> None:
    """Its draft is accepted as a whole, and read again: the state after the pass has seen padding tokens."""
    model = made("qwen3_next")
    target = examined_target(HFBackend.load(model, compiler))
    rows = [target.open(capacity=64) for _ in range(2)]
    for row in rows:
        target.read_all(row, [2, 3, 4, 5])
    grown: dict[CacheRow, DraftTree] = {rows[0]: chain(8, 3), rows[1]: chain(9, 1)}
    planned = target.compile(grown)
    target.forward(planned)
    target.commit(planned, {row: tuple(range(len(tree))) for row, tree in grown.items()})
    output = target.forward(target.compile({row: chain(10, 0) for row in rows}))
    assert list(output.num_reread) == [0, 2]
    expected = families.plain_logits(model, [2, 3, 4, 5, 9, 5, 10])[-1]
    assert float((output.rows[rows[1]].logits(ROOT) - expected).abs().max()) <= TOLERANCE


def test_rows_are_read_alone_if_passes_of_several_are_wrong() -> None:
    """MiniMax calls its layers' attention full, and limits it to a window nevertheless."""
    config_class, arguments = families.STATES["minimax"]
    model, prompts = families.make(config_class, {**arguments, "sliding_window": families.WINDOW}), texts(3)
    generator = Generator(model, proposer="prompt_lookup:num_tokens=4", max_batch_size=3)
    fed = counted(model)
    results = generator.generate(prompts, max_new_tokens=12, eos_token_id=())
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == without_a_cache(model, prompt, 12)
    assert len(fed) >= sum(result.stats.steps for result in results)
    assert not any("without drafts" in note for note in results[0].notes)


def test_each_node_sees_its_rows_tokens_before_it() -> None:
    """The masks are those of the reference compiler."""
    starts, width = (4, 0, 11), 5
    windows = {"full_attention": None, "sliding_attention": Window("sliding", 6), "chunked": Window("chunked", 4)}
    shapes = Shapes(100, None, False, windows, torch.float32, torch.device("cpu"))
    trees = [DraftTree(1) for _ in starts]
    for tree in trees:
        tree.add_chain(ROOT, range(2, 1 + width))
    positions = np.array(starts)[:, None] + np.arange(width)
    expected, found = compiler.masks(trees, starts, positions, shapes), causal_masks(starts, width, shapes)
    assert found.keys() == expected.keys()
    for kind, mask in found.items():
        assert torch.equal(mask, expected[kind])


def test_rows_that_are_not_consecutive_are_written_and_read_in_their_own_places() -> None:
    placement = Placement(num_rows=4)
    layer = RaggedLayer(placement)
    placement.move(1, (0, 2), (1, 3))
    states = torch.arange(2 * 2 * 3 * 4.0).view(2, 2, 3, 4)
    keys, values = layer.update(states, -states)
    assert torch.equal(keys[0, :, :3], states[0])
    assert torch.equal(values[1, :, 2:5], -states[1])
    assert torch.equal(layer.keys[1, :, :3], states[0])
    assert torch.equal(layer.keys[3, :, 2:5], states[1])
    assert not layer.keys[[0, 2]].any()
