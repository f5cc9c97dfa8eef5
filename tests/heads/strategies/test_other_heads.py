"""Medusa's and EAGLE's heads as strategies: the references' drafts, plain decoding's text, bad heads left out."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec import Budget, DraftTree, Generator, ModelError, PluginError, Proposer, ToyModel
from specdec.decoding.request_state import TokenView
from specdec.heads.base import Noise
from specdec.heads.medusa import MedusaRunner, MedusaWeights, Predictions, ResBlock
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.levels import Levels
from specdec.heads.strategies.medusa import MedusaProposer
from specdec.heads.strategies.medusa_engine import MedusaDrafter, MedusaEngine, MedusaOptions
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.feedback import Feedback
from specdec.strategies.request import Request
from specdec.strategies.signals import HiddenAnswers, Nodes
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer
from specdec.testing import check_proposer
from tests.support.drafts import plain_decodings
from tests.support.eagle3_reference import EagleReference
from tests.support.fitted_heads import (
    EAGLE_SETTINGS,
    HIDDEN,
    NUM_TOKENS,
    SEED,
    eagle_folder,
    medusa_folder,
    plain_text,
    prompts,
)
from tests.support.medusa_reference import best_paths, random_blocks, reference_log_probs

LARGE = Budget(num_nodes=512, depth=100, num_tokens=100)
STRATEGIES = {"medusa": MedusaProposer, "eagle": EagleProposer}
FOLDERS = {"medusa": medusa_folder, "eagle": eagle_folder}


def proposer(name: str, is_merged: bool = False, folder: Path | None = None, **options: Any) -> Proposer:
    head = STRATEGIES[name](head=folder or FOLDERS[name](), **options)
    return MergedProposer([SuffixProposer(), TokenRecyclingProposer(), head], clock=False) if is_merged else head


@pytest.mark.parametrize(("name", "is_merged"), [("medusa", False), ("medusa", True), ("eagle", False)])
def test_text_is_plain_decodings_in_a_ragged_batch(built_in: tuple[Any, Any], name: str, is_merged: bool) -> None:
    generator = Generator(*built_in, proposer=proposer(name, is_merged, num_nodes=8), numerics="exact")
    for results in plain_decodings(generator, prompts(), SEED, NUM_TOKENS, plain_text):
        assert not [note for result in results for note in result.notes if "without" in note]
        steps = sum(result.stats.steps for result in results)
        assert sum(result.stats.num_tokens for result in results) / steps > 1.3
    generator.close()


def steps_of(generator: Generator, num_tokens: int, **settings: Any) -> list[tuple[list[int], DraftTree, int]]:
    """Each step of a batch of the prompts: the text before it, its draft, and how many tokens are still to come."""
    found = []
    with generator.open_batch() as batch:
        handles = batch.add([list(prompt) for prompt in prompts()], max_new_tokens=num_tokens, **settings)
        texts = {id(handle): list(prompt) for handle, prompt in zip(handles, prompts(), strict=True)}
        ends = {key: len(text) + num_tokens for key, text in texts.items()}
        while (record := batch.advance()) is not None:
            for outcome in record.outcomes:
                if outcome.tree is not None:
                    text = texts[id(outcome.request)]
                    found.append((list(text), outcome.tree, ends[id(outcome.request)] - len(text)))
                    text += outcome.tokens
    return found


def is_clear(log_probs: Sequence[float]) -> bool:
    """No two paths are so close that rounding could swap them."""
    return all(more - less > 1e-4 for less, more in pairwise(sorted(log_probs)))


def last_states(model: Any, text: list[int]) -> torch.Tensor:
    """transformers' last hidden states at a text's tokens but for the last, of which none were read."""
    states: torch.Tensor = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0, :-1]
    return states


@torch.no_grad()
def test_medusas_drafts_are_the_references_fed_with_transformers_hidden_states(
    built_in: tuple[Any, Any], tmp_path: Path
) -> None:
    draw = torch.Generator().manual_seed(7)
    ids = torch.randperm(2000, generator=draw)[:40] + 5
    blocks, shared = random_blocks(3, 2, HIDDEN, draw), torch.randn(40, HIDDEN, generator=draw) / 20
    torch.save(blocks | {"lm_head.weight": shared, "token_map": ids}, tmp_path / "medusa_lm_head.pt")
    for folder in (medusa_folder(), tmp_path):
        head = MedusaProposer(head=folder, top_k=4, num_nodes=12, min_probability=0.0, dtype="float32")
        generator = Generator(*built_in, proposer=head)
        tensors = torch.load(folder / "medusa_lm_head.pt")
        own = [tensors.get(f"{index}.1.weight", tensors.get("lm_head.weight")) for index in range(3)]
        blocks = {name: each for name, each in tensors.items() if "linear" in name}
        blocks |= {name.replace("weight", "bias"): torch.zeros(HIDDEN) for name in blocks if folder != tmp_path}
        target_ids = tensors.get("token_map", torch.arange(2048)).tolist()
        num_compared = 0
        for text, tree, num_left in steps_of(generator, 8):
            if len(tree) == 1:
                continue
            log_probs = reference_log_probs(blocks, own, last_states(built_in[0], text)[-1])
            expected = best_paths(log_probs, 4, min(3, num_left - 1), 13)
            paths = {tuple(target_ids[token] for token in path) for path in [*expected][:12]}
            if is_clear([*expected.values()]) and not any({0, 1} & {*path} for path in paths):
                assert {tuple(tree.path(node)) for node in range(1, len(tree))} == paths
                num_compared += 1
        assert num_compared >= 6
        generator.close()


@torch.no_grad()
def test_eagles_drafts_are_the_references_fed_with_transformers_hidden_states(built_in: tuple[Any, Any]) -> None:
    model, _ = built_in
    folder = eagle_folder(size=0.3)
    head = EagleProposer(head=folder, top_k=3, depth=4, num_nodes=10, min_probability=0.0, dtype="float32")
    generator = Generator(*built_in, proposer=head)
    read = torch.load(folder / "pytorch_model.bin").items()
    tensors = {name.replace("layers.0.", "midlayer."): each for name, each in read}
    tensors["embed_tokens.weight"] = model.get_input_embeddings().weight
    num_compared = 0
    for text, tree, num_left in steps_of(generator, 8):
        if len(tree) == 1 or num_left < 5:
            continue
        reference = EagleReference(tensors, 2, 1, 1e-6, EAGLE_SETTINGS["rope_theta"])
        last = reference.extend(last_states(model, text), torch.tensor(text[1:]))
        tokens, parents, log_probs = reference.grow(last, 3, min(4, num_left - 1) - 1, 10)
        if is_clear(log_probs) and 0 not in tokens and 1 not in tokens:
            assert (tree.tokens[1:], [each - 1 for each in tree.parents[1:]]) == (tokens, parents)
            num_compared += 1
    assert num_compared >= 4
    generator.close()


class Fixed(MedusaRunner):
    """Heads that predict the same for every request; ``num_runs`` counts the passes."""

    def __init__(self, tokens: Any, probabilities: Any) -> None:
        weights = MedusaWeights([[ResBlock(torch.eye(4), None)]] * 2, [torch.eye(50, 4)], torch.arange(50))
        super().__init__(weights, num_tokens=2)
        self._predicted = torch.tensor([tokens]).numpy(), torch.tensor([probabilities]).log().numpy()
        self.num_runs, self.noise = 0, list[Noise | None]()

    def run(self, states: torch.Tensor, noise: Noise | None = None) -> Predictions:
        self.num_runs += 1
        self.noise.append(noise)
        return Predictions(*(each.repeat(len(states), 0) for each in self._predicted))


def request_of(tokens: list[int], eos: frozenset[int] = frozenset(), **fields: Any) -> Request:
    values = {"tokens": TokenView(tokens), "prompt_length": len(tokens), "vocab_size": 50, "temperature": 0.0}
    return Request(**values | fields, eos_token_ids=eos, rng=Randomness(5).stream("x"))


def started(runner: MedusaRunner, requests: Sequence[Request]) -> tuple[MedusaEngine, list[MedusaDrafter]]:
    """An engine and its drafters, which have received the hidden states of a step."""
    engine = MedusaEngine(MedusaOptions(num_nodes=5, min_probability=0.0), runner, layer=4)
    drafters = [engine.start(request) for request in requests]
    for drafter in drafters:
        tree = DraftTree(3)
        answers = HiddenAnswers([0], lambda: torch.ones(9, 1, 4)[:1])  # of a pass over nine nodes
        drafter.receive(Feedback(tree, (0,), (7,), {(Nodes.LAST, engine.state): answers}))
    return engine, [drafter for drafter in drafters if isinstance(drafter, MedusaDrafter)]


def test_all_requests_share_one_pass_which_runs_where_it_pays() -> None:
    runner = Fixed([[10, 11], [12, 13]], [[0.6, 0.3], [0.5, 0.2]])
    engine, drafters = started(runner, [request_of([1, 7]), request_of([2, 5, 7])])
    late = engine.start(request_of([4, 4]))  # without a hidden state
    asked: list[Sequence[float]] = []
    for answer in (False, True):
        engine.prepare_drafts([late, *drafters], [LARGE] * 3, lambda each, answer=answer: asked.append(each) or answer)  # type: ignore[misc]
        assert runner.num_runs == int(answer)
        assert [drafter.root() for drafter in drafters] == [(0, True) if answer else None] * 2
    assert asked == [[0.0, 1.0, 1.0]] * 2
    assert [drafter.last_state.untyped_storage().nbytes() for drafter in drafters] == [16] * 2
    assert isinstance(late, MedusaDrafter)
    assert late.root() is None
    assert runner.noise == [None]


def test_a_source_proposes_each_heads_list_also_after_tokens_of_other_sources() -> None:
    runner = Fixed([[10, 11], [12, 13]], [[0.65, 0.32], [0.55, 0.25]])
    engine, (drafter,) = started(runner, [request_of([1, 7])])
    engine.prepare_drafts([drafter], [LARGE], lambda _: True)
    first = drafter.candidates((0, True))
    assert [token for token, _ in first] == [10, 11]
    assert [round(rate.value, 3) for _, rate in first] == [0.65, 0.35]  # the middles of the bins
    predicted, other = drafter.follow((0, True), 11), drafter.follow((0, True), 40)
    assert (predicted, other) == ((1, True), (1, False))
    assert predicted is not None
    assert other is not None
    rates = [[rate for _, rate in drafter.candidates(state)] for state in (predicted, other)]
    assert [round(rate.value, 3) for rate in rates[0]] == [0.55, 0.25]
    assert all(one is not two for one, two in zip(*rates, strict=True))
    assert drafter.follow(predicted, 12) is None


@pytest.mark.parametrize(
    ("budget", "num_nodes"), [(LARGE, 5), (replace(LARGE, num_nodes=2), 2), (replace(LARGE, depth=1), 2)]
)
def test_a_tree_is_within_the_budget_and_ends_at_the_end_of_text(budget: Budget, num_nodes: int) -> None:
    runner = Fixed([[10, 11], [12, 13]], [[0.6, 0.3], [0.5, 0.2]])
    _, (drafter,) = started(runner, [request_of([1, 7], eos=frozenset({10}))])
    tree = drafter.propose(budget)
    assert len(tree) - 1 == min(num_nodes, 4)  # 10 and 11, and 12 and 13 after 11 alone
    assert max(tree.depths) <= budget.depth
    assert not [node for node in range(1, len(tree)) if tree.path(node)[:1] == [10] and tree.depths[node] > 1]
    assert len(drafter.propose(replace(LARGE, num_tokens=1))) == 1


def test_noise_is_that_of_the_positions_which_the_heads_predict() -> None:
    runner = Fixed([[10, 11], [12, 13]], [[0.6, 0.3], [0.5, 0.2]])
    request = request_of([1, 7], temperature=0.5, noise=lambda position: torch.full((50,), float(position)))
    _, (drafter,) = started(runner, [request])
    drafter.propose(LARGE)
    (noise,) = runner.noise
    assert noise is not None
    assert noise.noise[0, :, 0].tolist() == [2.0, 3.0]  # the text has positions 0 and 1
    assert noise.scale.flatten().tolist() == [2.0]


def test_paths_come_by_the_product_of_the_heads_probabilities() -> None:
    draw = torch.Generator().manual_seed(3)
    for _ in range(30):
        log_probs = (2 * torch.randn(3, 6, generator=draw)).log_softmax(-1)
        values, ids = log_probs.topk(4)
        least = math.log(0.02)
        tree = Levels(ids.tolist(), values.tolist()).candidates(14, 3, least).tree(9, 14, frozenset())
        expected = {path: each for path, each in best_paths(log_probs, 4, 3, 14).items() if each >= least}
        assert {tuple(tree.path(node)) for node in range(1, len(tree))} == expected.keys()


@pytest.mark.parametrize("is_merged", [False, True])
def test_heads_of_nan_are_left_out_with_a_note(built_in: tuple[Any, Any], tmp_path: Path, is_merged: bool) -> None:
    tensors = torch.load(medusa_folder() / "medusa_lm_head.pt")
    tensors["1.1.weight"].fill_(float("nan"))
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    generator = Generator(*built_in, proposer=proposer("medusa", is_merged, tmp_path), numerics="exact")
    result = generator.generate(list(prompts()[2]), max_new_tokens=NUM_TOKENS)
    assert list(result.token_ids) == plain_text(prompts()[2], None)
    assert [note for note in result.notes if "drafting goes on without" in note and "finite" in note]
    generator.close()


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
@pytest.mark.parametrize(("name", "draws"), [("eagle", True), ("medusa", False)])
def test_under_rules_that_read_q_eagle_draws_and_medusa_chooses(
    built_in: tuple[Any, Any], name: str, draws: bool, rule: str
) -> None:
    with Generator(*built_in, proposer=proposer(name, num_nodes=8), verifier=rule) as generator:
        greedy = generator.generate(list(prompts()[0]), max_new_tokens=NUM_TOKENS)
        assert list(greedy.token_ids) == plain_text(prompts()[0], None)
        sampled = [tree for _, tree, _ in steps_of(generator, 6, temperature=1.0, seed=3) if len(tree) > 1]
        assert sampled
        assert all(tree.has_sampled_draws == draws for tree in sampled)


def test_a_merge_of_both_keeps_the_laws_of_proposers(built_in: tuple[Any, Any]) -> None:
    both = MergedProposer([proposer("medusa"), proposer("eagle")], clock=False)
    check_proposer(both, built_in[0], [each[-8:] for each in prompts()[:3]])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_context_keeps_the_text_and_the_drafts(built_in: tuple[Any, Any], name: str) -> None:
    generator = Generator(*built_in, proposer=proposer(name), numerics="exact")
    with generator.context() as context:
        first = generator.generate(list(prompts()[0]), max_new_tokens=5, context=context)
        text = [*prompts()[0], *first.token_ids, *prompts()[3][:5]]
        second = generator.generate(text, max_new_tokens=8, context=context)
    fresh = generator.generate(text, max_new_tokens=8)
    assert second.stats.num_reused > len(prompts()[0])
    assert (second.token_ids, second.stats.accepted_lengths) == (fresh.token_ids, fresh.stats.accepted_lengths)
    generator.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_unsuitable_targets_and_folders_are_refused_before_anything_is_decoded(
    built_in: tuple[Any, Any], tmp_path: Path, name: str
) -> None:
    with pytest.raises(ModelError, match="layers are unknown"):
        Generator(ToyModel.random(), proposer=proposer(name))
    with pytest.raises(ModelError, match=r"heads? that (was|were) trained"):
        Generator(*built_in, proposer=f"auto+{name}:head={tmp_path}")
    with pytest.raises(PluginError, match=f"needs head .folder of the heads?.: give {name}:head="):
        Generator(*built_in, proposer=f"auto+{name}")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_note_says_that_quantised_weights_lower_acceptance(
    built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("specdec.heads.strategies.target_weights.alterations_of", lambda _: ["quantised weights"])
    with Generator(*built_in, proposer=proposer(name)) as generator:
        result = generator.generate(list(prompts()[0]), max_new_tokens=2)
    assert [note for note in result.notes if note.startswith("the model has quantised weights: a head")]
