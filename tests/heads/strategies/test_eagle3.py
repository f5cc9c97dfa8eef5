"""EAGLE-3 as a strategy: the reference's drafts, plain decoding's text, and heads of other models are refused."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec import Budget, DraftTree, Generator, ModelError, ToyModel, demo
from specdec.decoding.request_state import TokenView
from specdec.heads.base import HeadRunners
from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_folder import write_head
from specdec.heads.pair_head import PairHead
from specdec.heads.strategies.drafter import HeadDrafter
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.heads.strategies.p_eagle import PEagleProposer
from specdec.heads.torch_runner import TorchRunner
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.signals import Hidden, HiddenAnswers, Nodes
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer
from tests.support.drafts import plain_decodings
from tests.support.eagle3_reference import ReferenceHead
from tests.support.plain import decode_model
from tests.support.random_heads import random_head, reference_of

SEED, NUM_TOKENS, LAYERS = 11, 24, (3, 5)
LARGE = Budget(num_nodes=512, depth=100, num_tokens=100)


@pytest.fixture(scope="module")
def prompts(built_in: tuple[Any, Any]) -> list[list[int]]:
    """Four prompts of ragged lengths; the second has more than one chunk."""
    _, tokenizer = built_in
    texts = [prompt.text for prompt in demo.prompts()[:4]]
    ids = [list(tokenizer(text)["input_ids"]) for text in texts]
    return [ids[0], (ids[1] * 20)[:300], ids[2][:3], ids[3]]


@pytest.fixture(scope="module")
def random_folder(built_in: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small head of random weights with a reduced vocabulary for the built-in model."""
    model, _ = built_in
    config = Eagle3Config(
        hidden_size=384,
        target_hidden_size=384,
        intermediate_size=24,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=2048,
        draft_vocab_size=64,
        layer_ids=(1, 2, 3),
    )
    head = Eagle3Head(config, model.get_input_embeddings().weight)
    draw = torch.Generator().manual_seed(0)
    for name, parameter in head.named_parameters():
        if "norm" not in name:
            parameter.data = torch.randn(parameter.shape, generator=draw) / parameter.shape[-1] ** 0.5
    head.set_vocabulary(torch.arange(100, 228, 2))
    folder = tmp_path_factory.mktemp("random-head")
    write_head(head, folder, num_layers=4)
    return folder


def merged(head: Eagle3Proposer) -> MergedProposer:
    return MergedProposer([SuffixProposer(), TokenRecyclingProposer(), head], clock=False, loss=0.9)


@pytest.fixture(scope="module")
def plain(built_in: tuple[Any, Any]) -> Callable[[Sequence[int], int | None], list[int]]:
    """Plain decoding's new tokens after a prompt, decoded once."""

    @cache
    def decoded(prompt: tuple[int, ...], seed: int | None) -> list[int]:
        return decode_model(built_in[0], prompt, NUM_TOKENS, seed)

    return lambda prompt, seed: decoded(tuple(prompt), seed)


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("is_random", [False, True])
def test_text_is_plain_decodings_in_a_ragged_batch(
    built_in: tuple[Any, Any],
    prompts: list[list[int]],
    plain: Callable[[Sequence[int], int | None], list[int]],
    random_folder: Path,
    is_random: bool,
    is_merged: bool,
) -> None:
    model, tokenizer = built_in
    head = Eagle3Proposer(head=random_folder if is_random else demo.head_folder(), num_nodes=8, depth=3)
    generator = Generator(model, tokenizer, proposer=merged(head) if is_merged else head, numerics="exact")
    for results in plain_decodings(generator, prompts, SEED, NUM_TOKENS, plain):
        assert not [note for result in results for note in result.notes if "eagle" in note]
        if not is_random:
            steps = sum(result.stats.steps for result in results)
            assert sum(result.stats.num_tokens for result in results) / steps > 1.5
    generator.close()


def reference_head(folder: Path) -> ReferenceHead:
    """The reference with the tensors of the head's file and, for what it shares, of the built-in model's."""
    settings = json.loads((folder / "config.json").read_text())
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    shared = load_file(Path(demo.__file__).parent / "model" / "model.safetensors")["model.embed_tokens.weight"].float()
    tensors["embed_tokens.weight"] = shared
    tensors.setdefault("lm_head.weight", shared)  # the model's embeddings are tied
    tensors["d2t"] = tensors.get("d2t", torch.zeros(len(shared))).long()
    names = "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta"
    return ReferenceHead(tensors, *(settings[name] for name in names))


def trees_of(generator: Generator, prompts: Sequence[list[int]], num_tokens: int, **settings: Any) -> dict[int, Any]:
    """By request, in the order of prompts, each step's text before it and its draft."""
    found: dict[int, list[tuple[list[int], DraftTree]]] = {}
    with generator.open_batch() as batch:
        handles = batch.add(list(prompts), max_new_tokens=num_tokens, **settings)
        texts = {id(handle): list(prompt) for handle, prompt in zip(handles, prompts, strict=True)}
        while (record := batch.advance()) is not None:
            for outcome in record.outcomes:
                if outcome.tree is not None:
                    text = texts[id(outcome.request)]
                    found.setdefault(handles.index(outcome.request), []).append((list(text), outcome.tree))
                    text += outcome.tokens
    return found


@torch.no_grad()
def test_drafts_are_the_references_fed_with_transformers_hidden_states(
    built_in: tuple[Any, Any], prompts: list[list[int]], random_folder: Path
) -> None:
    """Hidden states, pairs, positions, vocabulary and trees, after accepted and rejected branches."""
    model, tokenizer = built_in
    for folder, num_tokens in ((demo.head_folder(), 24), (random_folder, 8)):
        proposer = Eagle3Proposer(head=folder, top_k=3, depth=4, num_nodes=12, min_probability=0.0, dtype="float32")
        generator = Generator(model, tokenizer, proposer=proposer)
        num_compared = 0
        for index, steps in trees_of(generator, prompts, num_tokens).items():
            start = len(prompts[index])
            for text, tree in steps[1:6]:
                states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
                joined = torch.cat([states[layer][0] for layer in (1, 2, 3)], -1)
                reference = reference_head(folder)
                last = reference.extend(joined[:-1], torch.tensor(text[1:]))
                num_left = num_tokens - (len(text) - start)
                tokens, parents, log_probs = reference.grow(last, 3, min(4, num_left - 1) - 1, 12)
                if num_left > 4 and is_clear(log_probs) and 0 not in tokens and 1 not in tokens:
                    assert (tree.tokens[1:], [each - 1 for each in tree.parents[1:]]) == (tokens, parents)
                    num_compared += 1
        assert num_compared >= 4
        generator.close()


def is_clear(log_probs: Sequence[float]) -> bool:
    """No two paths are so close that rounding could swap them."""
    ranked = sorted(log_probs)
    return all(more - less > 1e-4 for less, more in pairwise(ranked))


def request_of(tokens: list[int], prompt_length: int, **fields: Any) -> Request:
    values = {"tokens": TokenView(tokens), "prompt_length": prompt_length, "vocab_size": 57, "temperature": 0.0}
    return Request(**values, eos_token_ids=frozenset(), rng=Randomness(5).stream("x"), **fields)


def told(drafter: HeadDrafter, states: Hidden, tensor: torch.Tensor, start: int) -> None:
    """Pass the states of a part of the prompt, which begins at a position."""
    stop = start + len(tensor)
    answers = HiddenAnswers(range(start, stop), lambda: tensor)
    drafter.read(stop, LARGE, {(Nodes.PROMPT, states): answers})


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_drafts_of_a_batch_are_the_references_over_steps_after_rejections(seed: int) -> None:
    head, _ = random_head(seed)
    engine = HeadEngine(
        TreeOptions(top_k=3, depth=3, num_nodes=9, min_probability=0.0), TorchRunner(head, 3), (1, 2, 3), "eagle3"
    )
    references = [reference_of(head) for _ in range(4)]
    draw = torch.Generator().manual_seed(seed)
    texts = [torch.randint(40, (length,), generator=draw).tolist() for length in (2, 5, 9, 4)]
    drafters = [engine.start(request_of(text, len(text))) for text in texts]
    size = head.config.target_hidden_size
    for text, drafter, reference in zip(texts, drafters, references, strict=True):
        assert isinstance(drafter, HeadDrafter)
        states = torch.randn(len(text) - 1, 3, size, generator=draw)
        cut = len(states) // 2
        told(drafter, engine.states, states[:cut], 0)
        told(drafter, engine.states, states[cut:], cut)
        reference.extend(states.flatten(1), torch.tensor(text[1:]))
    for step in range(5):
        for row, (text, drafter, reference) in enumerate(zip(texts, drafters, references, strict=True)):
            num_new = 1 + (step + row) % 3  # a draft that nothing says the tokens of is rejected, or accepted in part
            new = torch.randint(40, (num_new,), generator=draw).tolist()
            states = torch.randn(num_new, 3, size, generator=draw)
            tree = DraftTree(text[-1])
            path = (0, *tree.add_chain(0, new[:-1]))
            text.extend(new)
            answers = HiddenAnswers(path, partial(lambda states: states, states))
            drafter.receive(Feedback(tree, path, tuple(new), {(Nodes.PATH, engine.states): answers}))
            reference.last = reference.extend(states.flatten(1), torch.tensor(new))  # type: ignore[attr-defined]
        if step == 2:
            continue  # the merge drafts nothing in this step
        trees = engine.propose_many(drafters, [LARGE] * 4)
        for found, reference in zip(trees, references, strict=True):
            assert isinstance(found, DraftTree)
            tokens, parents, _ = reference.grow(reference.last, 3, 2, 9)  # type: ignore[attr-defined]
            assert (found.tokens[1:], [each - 1 for each in found.parents[1:]]) == (tokens, parents)


@torch.no_grad()
def test_after_a_gap_a_head_goes_on_with_what_follows() -> None:
    head, reference = random_head(4)
    engine = HeadEngine(
        TreeOptions(top_k=3, depth=2, num_nodes=6, min_probability=0.02), TorchRunner(head, 3), (1, 2, 3), "eagle3"
    )
    text, draw = [1, 2, 3, 4, 5, 6, 7, 8], torch.Generator().manual_seed(1)
    drafter = engine.start(request_of(text, 8, num_reused=3))
    assert isinstance(drafter, HeadDrafter)
    states = torch.randn(4, 3, head.config.target_hidden_size, generator=draw)
    told(drafter, engine.states, states, 3)
    last = reference.extend(states.flatten(1), torch.tensor(text[4:]))
    tokens, _, _ = reference.grow(last, 3, 1, 6)
    assert set(drafter.propose(LARGE).tokens[1:]) <= set(tokens)
    assert len(drafter.propose(LARGE)) > 1
    assert drafter.retain(0, 5) is None, "the state of the first positions is unknown"


def test_a_context_and_the_prefix_cache_keep_the_heads_state(built_in: tuple[Any, Any], prompts: list[Any]) -> None:
    model, tokenizer = built_in
    generator = Generator(model, tokenizer, proposer=Eagle3Proposer(head=demo.head_folder()), numerics="exact")
    prompt = prompts[0]
    with generator.context() as context:
        first = generator.generate(prompt, max_new_tokens=12, context=context)
        text = [*prompt, *first.token_ids, *prompts[3][:5]]
        second = generator.generate(text, max_new_tokens=20, context=context)
    fresh = generator.generate(text, max_new_tokens=20)
    assert second.stats.num_reused > len(prompt)
    assert (second.token_ids, second.stats.accepted_lengths) == (fresh.token_ids, fresh.stats.accepted_lengths)
    shared = prompts[1][:100]
    with generator.open_batch(max_prefix_bytes=1 << 24) as batch:
        for _ in range(2):
            (handle,) = batch.add([shared], max_new_tokens=20)
            while batch.advance() is not None:
                pass
    alone = generator.generate(shared, max_new_tokens=20)
    assert handle.stats.num_reused > 60
    assert handle.stats.accepted_lengths == alone.stats.accepted_lengths
    generator.close()


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_rules_that_read_q_take_its_drafts(built_in: tuple[Any, Any], prompts: list[list[int]], rule: str) -> None:
    head = Eagle3Proposer(head=demo.head_folder())
    generator = Generator(*built_in, proposer=head, verifier=rule)
    whole = [prompts[0], prompts[1], prompts[1][9:]]  # two have more than one chunk
    for prompt, greedy in zip(whole, generator.generate(whole, max_new_tokens=9), strict=True):
        assert list(greedy.token_ids) == decode_model(built_in[0], prompt, 9, None)
    sampled = generator.generate(whole[1:], max_new_tokens=4, temperature=1.0, seed=3)
    assert [result.finish_reason for result in sampled] == ["length"] * 2
    twice = [generator.generate(prompts[0], max_new_tokens=8, temperature=1.0, seed=3) for _ in range(2)]
    assert twice[0].token_ids == twice[1].token_ids
    steps = trees_of(generator, prompts[:2], NUM_TOKENS, temperature=1.0, seed=3)
    drafts = [tree for of_one in steps.values() for _, tree in of_one if len(tree) > 1]
    assert drafts
    assert all(tree.has_sampled_draws and tree.has_true_q and len(tree) <= 17 for tree in drafts)
    assert max(max(tree.depths) for tree in drafts) > 2
    generator.close()


def spoilt(folder: Path, to: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a head with its configuration or tensors changed."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    settings, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(settings, tensors)
    (to / "config.json").write_text(json.dumps(settings))
    save_file(tensors, to / "model.safetensors")
    return to


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_head_of_nan_is_left_out_with_a_note(
    built_in: tuple[Any, Any], prompts: list[list[int]], random_folder: Path, tmp_path: Path, is_merged: bool
) -> None:
    folder = spoilt(random_folder, tmp_path, lambda _, tensors: tensors["norm.weight"].fill_(float("nan")))
    head = Eagle3Proposer(head=folder)
    generator = Generator(*built_in, proposer=merged(head) if is_merged else head)
    result = generator.generate(prompts[0], max_new_tokens=NUM_TOKENS)
    assert list(result.token_ids) == decode_model(built_in[0], prompts[0], NUM_TOKENS, None)
    assert [note for note in result.notes if "drafting goes on without" in note and "finite" in note]
    generator.close()


@pytest.mark.parametrize("strategy", ["eagle3", "auto+eagle3"])
def test_a_note_says_that_an_adapter_lowers_acceptance(
    built_in: tuple[Any, Any], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr("specdec.heads.strategies.target_weights.alterations_of", lambda _: ["an adapter"])
    with Generator(*built_in, proposer=f"{strategy}:head={demo.head_folder()}") as generator:
        result = generator.generate(prompts[0], max_new_tokens=4)
    assert [note for note in result.notes if note.startswith("the model has an adapter: a head") and "less" in note]


WRONG: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "vocabulary": (lambda settings, _: settings.update(vocab_size=2000), "2000"),
    "layers": (lambda settings, _: settings.update(eagle_aux_hidden_state_layer_ids=[2, 9, 20]), "4 layers"),
    "tensors": (lambda _, tensors: tensors.pop("midlayer.hidden_norm.weight"), "hidden_norm"),
    "hidden size": (lambda settings, _: settings.update(target_hidden_size=128), "128"),
    "ids": (lambda _, tensors: tensors["d2t"].fill_(5000), "beyond the vocabulary"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_folder_is_refused_with_a_remedy_before_anything_is_decoded(
    built_in: tuple[Any, Any], random_folder: Path, tmp_path: Path, mistake: str
) -> None:
    change, found = WRONG[mistake]
    folder = spoilt(random_folder, tmp_path, change)
    with pytest.raises(ModelError, match=found) as refused:
        Generator(*built_in, proposer=f"auto+eagle3:head={folder}")
    assert "give the folder of an EAGLE-3 head that was trained for this model" in str(refused.value)


def test_targets_without_layers_and_folders_without_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="layers are unknown"):
        Generator(ToyModel.random(), proposer=Eagle3Proposer(head=demo.head_folder()))
    for model in (demo.load()[0], "no/such-model"):  # which isn't loaded
        with pytest.raises(ModelError, match="readable config"):
            Generator(model, proposer=f"eagle3:head={tmp_path}")


def test_a_head_may_be_quantized_unless_its_precision_is_given() -> None:
    passed, (head, _) = list[bool](), random_head(0)

    class Noted(HeadRunners):
        def runner(self, head: PairHead, num_tokens: int | None, may_quantize: bool) -> TorchRunner:
            passed.append(may_quantize)
            return TorchRunner(head, num_tokens)

    def refuse(*_: Any) -> Any:
        raise AssertionError

    host = replace(Host.of_tokens(head.config.vocab_size, None, refuse), extension=lambda _: Noted())
    for settings in ({}, {"dtype": "auto"}, {"dtype": "float32"}, {"dtype": "bfloat16"}):
        Eagle3Proposer(**settings)._engine(host, head, LAYERS)
    assert passed == [True, True, False, False]
    documented = [each.model_fields["dtype"].description or "" for each in (Eagle3Proposer, EagleProposer)]
    assert all("8 bits on OpenVINO" in each for each in documented)
    assert "OpenVINO" not in (PEagleProposer.model_fields["dtype"].description or ""), "it is run by torch"


def test_drafts_stay_within_the_budget(built_in: tuple[Any, Any], prompts: list[list[int]]) -> None:
    generator = Generator(*built_in, proposer=Eagle3Proposer(head=demo.head_folder(), num_nodes=64, top_k=6))
    strategy = generator._binding.strategies.own
    steps = trees_of(generator, [prompts[0]], 9)[0]
    for text, tree in steps:
        left = 9 - (len(text) - len(prompts[0]))
        assert max(tree.depths) <= min(5, left - 1)
        assert len(tree) <= 65
    assert isinstance(strategy.engine, HeadEngine)
    small = replace(LARGE, num_nodes=2, depth=1)
    drafter = strategy.engine.start(request_of([5, 6, 7], 3))
    assert isinstance(drafter, HeadDrafter)
    told(drafter, strategy.engine.states, torch.randn(2, 3, 384), 0)
    assert len(drafter.propose(small)) <= 3
    assert max(drafter.propose(small).depths) <= 1
    generator.close()
