"""Block drafters as strategies: the reference's drafts, plain decoding's text, and the target's law where q is read."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from specdec import Generator, ModelError
from specdec.heads.strategies.block import DFlashProposer, DSparkProposer
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.sources.suffix import SuffixProposer
from tests.support.block_folders import LAYOUTS, write
from tests.support.block_reference import BlockReference
from tests.support.drafts import drafts_of, paths, plain_decodings
from tests.support.families import SMALL, make
from tests.support.plain import decode_model

NUM_TOKENS, SEED = 12, 5
PROMPTS = [[5, 17, 40, 8, 33], [7 + index % 60 for index in range(280)], [9]]  # the second has more than one chunk
DRAFTERS = {
    "z-lab": DFlashProposer, "z-lab, sliding": DFlashProposer, "DeepSpec, gated": DSparkProposer,
    "DeepSpec, rnn": DSparkProposer, "speculators, dspark": DSparkProposer,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return make("LlamaConfig", {**SMALL, "num_hidden_layers": 4, "max_position_embeddings": 512})


def drafter(folder: Path, name: str, **options: Any) -> Any:
    write(folder, LAYOUTS[name])
    return DRAFTERS[name](head=folder, **options)


@torch.no_grad()
@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_are_the_references_fed_with_transformers_hidden_states(model: Any, tmp_path: Path, name: str) -> None:
    """Chains and trees after prompts of several chunks and after rejected drafts."""
    layout = LAYOUTS[name]
    proposer = drafter(tmp_path, name, top_k=2, depth=2, num_nodes=6, min_probability=0.0, dtype="float32")
    output = model.get_output_embeddings().weight
    reference = BlockReference(layout, write(tmp_path, layout), model.get_input_embeddings().weight, output)
    num_compared = 0
    with Generator(model, proposer=proposer) as generator:
        for index, text, tree in drafts_of(generator, PROMPTS, NUM_TOKENS):
            num_new = len(text) - len(PROMPTS[index])
            if num_new == 0 or NUM_TOKENS - num_new <= 3:
                continue
            states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
            joined = torch.cat([states[layer][0, :-1] for layer in layout.layer_ids], -1)
            expected = set()
            for first in best(reference, joined, text[-1], ()):
                expected |= {(first,), *((first, second) for second in best(reference, joined, text[-1], (first,)))}
            assert paths(tree) == expected
            num_compared += 1
    assert num_compared >= 12


def best(reference: BlockReference, states: torch.Tensor, anchor: int, path: tuple[int, ...]) -> list[int]:
    """The two most probable tokens after a path."""
    ranks = reference.log_probs(states, anchor, path, num_kept=64).topk(2).indices
    tokens: list[int] = reference.draft_ids[ranks].tolist()
    return tokens


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_is_plain_decodings_in_a_ragged_batch(model: Any, tmp_path: Path, name: str, is_merged: bool) -> None:
    head = drafter(tmp_path, name, num_nodes=8)
    proposer = MergedProposer([SuffixProposer(), head], clock=False, loss=0.9) if is_merged else head
    with Generator(model, proposer=proposer, numerics="exact") as generator:
        for results in plain_decodings(
            generator,
            PROMPTS,
            SEED,
            NUM_TOKENS,
            lambda prompt, seed: decode_model(model, prompt, NUM_TOKENS, seed, eos=()),
        ):
            assert not [note for result in results for note in result.notes if head.name in note]
        assert max(length for result in results for length in result.stats.accepted_lengths) > 1


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "rule", "num_samples"),
    [
        ("z-lab", "rejection", 120),
        ("DeepSpec, rnn", "traversal", 120),
        *(
            pytest.param(name, rule, 3000, marks=pytest.mark.nightly)
            for name in ("z-lab", "DeepSpec, rnn")
            for rule in ("rejection", "traversal")
        ),
    ],
)
def test_rules_that_read_q_keep_the_targets_law(
    model: Any, tmp_path: Path, name: str, rule: str, num_samples: int
) -> None:
    """Three tokens of three choices each, all 27 texts enumerated; drafts are drawn after the first token."""
    prompt, expected = PROMPTS[0], dict[tuple[int, ...], float]()

    def choices(text: list[int]) -> list[tuple[int, float]]:
        found = (model(torch.tensor([text])).logits[0, -1] / 2.0).topk(3)
        return [*zip(found.indices.tolist(), found.values.softmax(-1).tolist(), strict=True)]

    for first, p in choices(prompt):
        for second, q in choices([*prompt, first]):
            for third, r in choices([*prompt, first, second]):
                expected[first, second, third] = p * q * r
    settings: dict[str, Any] = {"temperature": 2.0, "top_k": 3, "max_new_tokens": 3}
    proposer = drafter(tmp_path, name, depth=2, num_nodes=4)
    with Generator(model, proposer=proposer, verifier=rule, max_batch_size=64) as generator:
        results = generator.generate([prompt] * num_samples, seed=[*range(num_samples)], **settings)
        drawn = [tree for *_, tree in drafts_of(generator, [prompt], 3, temperature=2.0, top_k=3, seed=1)]
    assert any(tree.has_sampled_draws for tree in drawn)
    counts = dict.fromkeys(expected, 0)
    for result in results:
        counts[tuple(result.token_ids)] += 1
    keys = [key for key in expected if expected[key] * num_samples >= 5]
    rest = num_samples - sum(counts[key] for key in keys)
    observed = [*(counts[key] for key in keys), rest]
    hoped = [
        *(expected[key] * num_samples for key in keys),
        num_samples - sum(expected[key] * num_samples for key in keys),
    ]
    assert len(keys) > 5
    assert chisquare(observed, [each * num_samples / sum(hoped) for each in hoped]).pvalue > 1e-4


def test_a_wrong_folder_is_refused_before_a_model_is_run(model: Any, tmp_path: Path) -> None:
    proposer = drafter(tmp_path / "a", "DeepSpec, rnn")
    with pytest.raises(ModelError, match="dspark:head="):
        Generator(model, proposer=DFlashProposer(head=proposer.head)).generate([1, 2], max_new_tokens=2)
    with pytest.raises(ModelError, match="there is no folder"):
        Generator(model, proposer=DFlashProposer(head=tmp_path / "none")).generate([1, 2], max_new_tokens=2)


def test_all_combinations_are_named(model: Any, tmp_path: Path) -> None:
    """In a string, as the command line takes it."""
    for name, strategy in product(["z-lab"], ["dflash", "auto+dflash"]):
        write(tmp_path, LAYOUTS[name])
        with Generator(model, proposer=f"{strategy}:head={tmp_path}") as generator:
            assert generator.generate([5, 6, 7], max_new_tokens=4).token_ids
