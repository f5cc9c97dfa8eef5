"""Every family of models: trees equal paths, keeping equals starting anew, and a flaw would show."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from specdec import ROOT, DraftTree, Generator, ModelError
from specdec.backends.hf import HFBackend
from specdec.backends.output import OutputRow
from specdec.layout import Layout, Shapes
from specdec.masks.dense import DenseCompiler
from specdec.target import Target
from tests.support import families
from tests.support.examined import examined
from tests.support.generators import end_of_prompt, open_row, path_to, random_tree

TOLERANCE = 1e-5
SEEN = 1e-3
compiler = DenseCompiler()


@pytest.fixture(params=families.TREES, scope="module")
def backend(request: pytest.FixtureRequest) -> HFBackend:
    model = families.make(*families.TREES[request.param])
    loaded = examined(HFBackend.load(model, compiler))
    loaded.model_under_test = model  # type: ignore[attr-defined]
    return loaded


@pytest.fixture(autouse=True)
def _closed(request: pytest.FixtureRequest) -> None:
    """Rows that a failed test left open must not fail the next."""
    loaded = request.getfixturevalue("backend") if "backend" in request.fixturenames else None
    while loaded is not None and loaded.num_rows:
        loaded.release(loaded.num_rows - 1)


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, families.VOCAB, size=length).tolist() for length in (23, 40, 31, 5)[:count]]


def difference(backend: HFBackend, batch: Sequence[list[int]], trees: Sequence[DraftTree], layout: Layout) -> float:
    """Of a forward of a layout, as ``furthest``."""
    output = backend.forward(layout)
    return furthest(backend, [OutputRow(output, row) for row in range(len(trees))], batch, trees)


def furthest(
    backend: HFBackend, rows: Sequence[OutputRow], batch: Sequence[list[int]], trees: Sequence[DraftTree]
) -> float:
    """Over all nodes of all rows: the greatest distance of a logit to the model's own forward along that path."""
    worst = 0.0
    for row, prompt, tree in zip(rows, batch, trees, strict=True):
        for leaf in {*range(len(tree))} - {*tree.parents}:
            path = path_to(tree, leaf)
            text = [*prompt, *(tree.tokens[node] for node in path)]
            plain = families.plain_logits(backend.model_under_test, text)[len(prompt) :]  # type: ignore[attr-defined]
            for node, expected in zip(path, plain, strict=True):
                worst = max(worst, float((row.logits(node) - expected).abs().max()))
    return worst


def test_logits_spread_widely(backend: HFBackend) -> None:
    logits = families.plain_logits(backend.model_under_test, prompts(2)[1])  # type: ignore[attr-defined]
    assert float(logits.std()) >= 1.0


@pytest.mark.parametrize("num_rows", [pytest.param(1, marks=pytest.mark.nightly), 4])
def test_a_tree_equals_its_paths_and_keeping_equals_starting_anew(backend: HFBackend, num_rows: int) -> None:
    assert backend.shapes.takes_trees, backend.examination.reason
    rng, batch, target = np.random.default_rng(num_rows), prompts(num_rows), Target(backend, compiler)
    for prompt in batch:
        tree = random_tree(rng, families.VOCAB, 9, prompt.pop())
        row = target.open(capacity=64)
        planned, first = end_of_prompt(target, row, prompt, tree)
        assert furthest(backend, [first], [prompt], [tree]) <= TOLERANCE
        path = path_to(tree, 7)
        target.commit(planned, {row: path})
        prompt += [tree.tokens[node] for node in path]
    for _ in range(3):
        trees = [random_tree(rng, families.VOCAB, int(rng.integers(5, 13))) for _ in batch]
        layout = compiler.compile(trees, [len(prompt) for prompt in batch], backend.shapes)
        assert difference(backend, batch, trees, layout) <= TOLERANCE
        paths = []
        for prompt, tree in zip(batch, trees, strict=True):
            paths.append(path_to(tree, int(rng.integers(len(tree)))))
            prompt += [tree.tokens[node] for node in paths[-1]]
        backend.commit(paths)
    for number in range(num_rows - 1, -1, -1):
        backend.release(number)


def test_a_row_that_leaves_does_not_disturb_the_others(backend: HFBackend) -> None:
    batch, target = prompts(3), Target(backend, compiler)
    for prompt in batch:
        open_row(target, prompt)
    backend.release(0)
    batch = [batch[2], batch[1]]
    trees = [random_tree(np.random.default_rng(row), families.VOCAB, 12) for row in range(2)]
    layout = compiler.compile(trees, [len(prompt) for prompt in batch], backend.shapes)
    assert difference(backend, batch, trees, layout) <= TOLERANCE


def flipped(layout: Layout) -> Layout:
    """One bit of every mask wrong: a node sees a node of another branch."""
    masks = {kind: mask.clone() for kind, mask in layout.masks.items()}
    for mask in masks.values():
        hidden = torch.nonzero(mask[0, 0, :, layout.lengths[0] :].tril() < 0)
        query, key = hidden[-1].tolist()
        mask[0, 0, query, layout.lengths[0] + key] = 0.0
    return Layout(layout.lengths, layout.num_nodes, layout.input_ids, layout.positions, masks, layout.columns)


def shifted(layout: Layout) -> Layout:
    """The last node's position is off by one."""
    positions = layout.positions.clone()
    positions[0, -1] += 1
    return Layout(layout.lengths, layout.num_nodes, layout.input_ids, positions, layout.masks, layout.columns)


@pytest.mark.parametrize("spoil", [flipped, shifted])
def test_a_wrong_mask_bit_or_position_shows(backend: HFBackend, spoil: Callable[[Layout], Layout]) -> None:
    if spoil is shifted and backend.model_under_test.config.model_type == "nemotron_h":  # type: ignore[attr-defined]
        pytest.skip("its attention knows no positions")
    batch = prompts(1)
    open_row(Target(backend, compiler), batch[0])
    tree = DraftTree(50)
    left, right = tree.add(ROOT, 51), tree.add(ROOT, 52)
    tree.add(left, 53)
    tree.add(right, 54)
    layout = compiler.compile([tree], [len(batch[0])], backend.shapes)
    assert difference(backend, batch, [tree], spoil(layout)) > SEEN
    assert difference(backend, batch, [tree], layout) <= TOLERANCE


def test_a_wrong_cache_slot_shows(backend: HFBackend) -> None:
    batch = prompts(1)
    open_row(Target(backend, compiler), batch[0])
    tree = DraftTree(50)
    tree.add(ROOT, 51)
    right = tree.add(ROOT, 52)
    backend.forward(compiler.compile([tree], [len(batch[0])], backend.shapes))
    backend.commit([[ROOT, right - 1]])  # the other branch's keys and values
    committed = [[*batch[0], 50, 52]]
    follower = DraftTree(55)
    layout = compiler.compile([follower], [len(committed[0])], backend.shapes)
    assert difference(backend, committed, [follower], layout) > SEEN


@pytest.mark.parametrize("name", families.REFUSED)
def test_recurrent_models_are_refused_with_the_reason(name: str) -> None:
    config_class, arguments, reason = families.REFUSED[name]
    with pytest.raises(ModelError, match=reason):
        examined(HFBackend.load(families.make(config_class, arguments), compiler))


@pytest.mark.parametrize("name", families.CHAINS)
def test_slot_ordered_models_run_on_chains_exactly(name: str) -> None:
    model = families.make(*families.CHAINS[name])
    generator = Generator(model, proposer="prompt_lookup:num_matches=3")
    assert not generator.shapes.takes_trees
    batch = prompts(4)
    for prompt, result in zip(batch, generator.generate(batch, max_new_tokens=20, eos_token_id=()), strict=True):
        tokens = list(prompt)
        for _ in range(20):
            tokens.append(int(families.plain_logits(model, tokens)[-1].argmax()))
        assert list(result.token_ids) == tokens[len(prompt) :]


def test_an_encoder_decoder_is_refused_unless_it_is_seen_as_its_decoder() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ModelError, match="encoder-decoder"):
        HFBackend.load(T5ForConditionalGeneration(config).eval(), compiler)


def test_a_model_in_training_mode_is_refused() -> None:
    model = families.make("LlamaConfig", families.SMALL)
    with pytest.raises(ModelError, match=r"call model.eval\(\)"):
        Generator(model.train())


def test_shapes_say_what_the_configuration_says() -> None:
    loaded = examined(HFBackend.load(families.make("LlamaConfig", families.SMALL), compiler))
    kinds, device = {"full_attention": None}, torch.device("cpu")
    assert loaded.shapes == Shapes(96, 256, True, kinds, torch.float32, device, num_layers=2)
