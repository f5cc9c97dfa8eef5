"""The reference of the published lookahead: its mask, its greedy tokens and the price of its lost token."""

import random
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from benchmarks.drafting import reference_lookahead

PICTURE = """\
#..............
##.............
###............
####...........
#####..........
#....#.........
##....#........
###....#.......
####....#......
#####....#.....
#....#....#....
##....#....#...
###....#....#..
####....#....#.
#####....#....#
"""
SIZES = [(3, 4, 4), (4, 5, 5), (5, 7, 7)]
NEW_TOKENS = 32


class Successor:
    """A model that counts round and round, so that a known n-gram always matches in full."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, *given, **asked) -> CausalLMOutput:
        return self.forward(*given, **asked)

    def forward(self, input_ids, *, cache, **_kwargs) -> CausalLMOutput:
        entries = torch.zeros(1, 1, input_ids.shape[1], 1)
        cache.update(entries, entries, 0)
        following = (input_ids + 1) % self._vocab_size
        return CausalLMOutput(logits=torch.nn.functional.one_hot(following, self._vocab_size).float())


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model loses most of its time to the meeting of threads
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    source = random.Random(1)
    return [[source.randrange(48) for _ in range(length)] for length in (1, 9, 20)]


@pytest.fixture(scope="module")
def expected(model, prompts) -> list[list[int]]:
    rows = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS)
        rows.append(output[0, len(prompt) :].tolist())
    return rows


@pytest.fixture(scope="module")
def runs(model, prompts) -> dict[tuple[tuple[int, int, int], bool], list[tuple[list[int], int]]]:
    """(tokens, steps) of every prompt, for each of the sizes as published and repaired."""
    return {
        (sizes, repair_bonus): [
            reference_lookahead.decode(model, prompt, NEW_TOKENS, *sizes, 10, repair_bonus) for prompt in prompts
        ]
        for sizes in SIZES
        for repair_bonus in (False, True)
    }


def _drawn(mask: torch.Tensor) -> list[str]:
    return ["".join("#" if seen else "." for seen in row) for row in mask.tolist()]


def test_step_mask_is_the_published_picture():
    assert _drawn(reference_lookahead.step_mask(4, 5, 0)) == PICTURE.splitlines()


def test_candidates_see_the_current_token_and_themselves():
    assert _drawn(reference_lookahead.step_mask(3, 2, 2)) == [
        "#.......",
        "##......",
        "#.#.....",
        "##.#....",
        "#...#...",
        "#...##..",
        "#.....#.",
        "#.....##",
    ]


@pytest.mark.parametrize("sizes", SIZES)
def test_tokens_are_greedy(model, prompts, expected, runs, sizes):
    for repair_bonus in (False, True):
        assert [tokens for tokens, _ in runs[sizes, repair_bonus]] == expected


def test_tokens_are_greedy_with_the_prompt_in_the_pool(model, prompts, expected):
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert reference_lookahead.decode(model, prompt, NEW_TOKENS, 3, 4, 4, 10, True, True)[0] == tokens


def test_the_repair_costs_no_steps_in_total(runs):
    published, repaired = (
        sum(num_steps for sizes in SIZES for _, num_steps in runs[sizes, repair_bonus])
        for repair_bonus in (False, True)
    )
    assert repaired <= published < NEW_TOKENS * len(SIZES) * 3


@pytest.mark.parametrize(("repair_bonus", "num_steps"), [(False, 2 + 8), (True, 2 + 6)])
def test_a_full_match_yields_n_tokens_and_one_less_as_published(repair_bonus, num_steps):
    prompt = list(range(12))
    tokens, steps = reference_lookahead.decode(Successor(12), prompt, 2 + 24, 4, 5, 5, 10, repair_bonus, True)
    assert tokens == [*prompt, *prompt, 0, 1]
    assert steps == num_steps  # two to warm up, then three or four tokens in each


def test_stops_at_the_first_end_token(model, prompts, expected):
    end = expected[2][20]
    first = expected[2].index(end)
    tokens, _ = reference_lookahead.decode(
        model, prompts[2], NEW_TOKENS, 4, 5, 5, 10, repair_bonus=True, eos_token_ids=frozenset({end})
    )
    assert tokens == expected[2][: first + 1]


def test_the_pool_keeps_the_latest_of_a_key():
    pool = reference_lookahead.Pool(2)
    for ngram in ([7, 1, 1], [7, 2, 2], [7, 1, 1], [7, 3, 3], [8, 4, 4]):
        pool.insert(ngram)
    assert pool.candidates(7) == [(1, 1), (3, 3)]
    assert pool.candidates(9) == []


def test_n_below_three_is_refused(model):
    with pytest.raises(ValueError, match="N >= 3"):
        reference_lookahead.decode(model, [1], 4, 2, 4, 4, 10, repair_bonus=False)
