"""The keyed sampler: the right law, independent across positions and seeds, and exactly the documented formula."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from specdec.sampling.randomness import Randomness, seed_of_sample
from tests.support.plain import keyed_gumbel

P = np.array([0.4, 0.25, 0.2, 0.1, 0.05, 0.0])
NUM_SEEDS = 10_000


@cache
def draws(position: int) -> np.ndarray:
    weights = torch.tensor(P, dtype=torch.float32)
    return np.array([Randomness(seed).categorical(weights, position) for seed in range(NUM_SEEDS)])


@pytest.mark.parametrize("position", [0, 1, 8447])
def test_ten_thousand_seeds_follow_the_law(position: int) -> None:
    counts = np.bincount(draws(position), minlength=len(P))
    assert counts[-1] == 0, "a token of zero probability was drawn"
    assert stats.chisquare(counts[:-1], P[:-1] * NUM_SEEDS).pvalue > 1e-3


@pytest.mark.parametrize("other", ["position", "seed"])
def test_neighbours_are_independent(other: str) -> None:
    first = draws(0)[:-1]
    second = draws(1)[:-1] if other == "position" else draws(0)[1:]
    table = np.zeros((5, 5))
    np.add.at(table, (first, second), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_positions_of_one_seed_are_independent_and_follow_the_law() -> None:
    randomness, weights = Randomness(7), torch.tensor(P)
    drawn = np.array([randomness.categorical(weights, position) for position in range(NUM_SEEDS)])
    assert stats.chisquare(np.bincount(drawn)[:5], P[:5] * NUM_SEEDS).pvalue > 1e-3
    table = np.zeros((5, 5))
    np.add.at(table, (drawn[:-1], drawn[1:]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (5, 17), (2**63 - 1, 100_000)])
def test_the_noise_is_the_documented_one(seed: int, position: int) -> None:
    noise = Randomness(seed).gumbel(position, 50).numpy()
    assert np.array_equal(noise, keyed_gumbel(seed, position, 50))
    assert np.isfinite(noise).all()


def test_the_seeds_of_samples_are_the_documented_ones_and_no_two_are_the_same() -> None:
    for seed, number in [(0, 1), (5, 17), (2**63 - 1, 3)]:
        first = int(np.random.Philox(key=[seed, 2**32 + 2], counter=[0, number, 0, 0]).random_raw())
        assert seed_of_sample(seed, number) == first // 2 < 2**63
    seeds = {(seed, number): seed_of_sample(seed, number) for seed in range(200) for number in range(50)}
    assert [seeds[seed, 0] for seed in range(200)] == [*range(200)]
    assert len(set(seeds.values())) == len(seeds)
    low = np.array(
        [value % 5 for (_, number), value in seeds.items() if number]
    )  # as a generator may use low bits alone
    assert stats.chisquare(np.bincount(low)).pvalue > 1e-3


def test_uniforms_are_uniform_and_never_zero_or_one() -> None:
    uniforms = Randomness(3).uniforms(5, NUM_SEEDS)
    assert 0.0 < uniforms.min() < uniforms.max() < 1.0
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3


def test_zero_weights_altogether_are_defined() -> None:
    assert Randomness(0).categorical(torch.zeros(4), 3) == 0
    assert Randomness(0).categorical(torch.tensor([0.0, 0.0, 0.2]), 3) == 2


@pytest.mark.parametrize("entries", [[0], [3, 4, 5, 6, 7], [1, 2, 900], [998, 999]])
def test_some_uniforms_are_those_of_all(entries: list[int]) -> None:
    randomness = Randomness(2**62 + 5)
    assert np.array_equal(randomness.uniforms_at(71, entries), randomness.uniforms(71, 1000)[entries])


@pytest.mark.parametrize("num_possible", [2, 20, 64, 65, 300])
def test_a_draw_from_a_few_of_many_tokens_is_the_one_by_all_the_noise(num_possible: int) -> None:
    draw = torch.Generator().manual_seed(num_possible)
    for position in range(50):
        weights = torch.zeros(3000)
        weights[torch.randperm(3000, generator=draw)[:num_possible]] = torch.rand(num_possible, generator=draw)
        noise = torch.from_numpy(keyed_gumbel(9, position, 3000))
        assert Randomness(9).categorical(weights, position) == int((weights.double().log() + noise).argmax())


def test_a_proposer_never_shares_the_verifiers_noise() -> None:
    randomness = Randomness(3)
    own = randomness.stream("LookaheadProposer").random(64)
    assert not np.isin(own, randomness.stream("JacobiProposer").random(64)).any()
    assert not np.isin(own, randomness.uniforms(0, 64)).any()
    assert np.array_equal(own, randomness.stream("LookaheadProposer").random(64))


def test_a_drafter_that_spoils_its_noise_changes_no_text() -> None:
    spoilt, other = Randomness(3), Randomness(3)
    spoilt.foresee(10, 7).zero_()
    assert torch.equal(spoilt.gumbel(10, 7), other.gumbel(10, 7))


def test_noise_that_a_drafter_has_foreseen_is_the_verifiers_and_is_let_go_when_passed() -> None:
    foreseen, other = Randomness(3), Randomness(3)
    ahead = [foreseen.foresee(position, 7) for position in range(10, 40)]
    assert len(foreseen._foreseen) <= 16
    for position, noise in zip(range(10, 40), ahead, strict=True):
        assert torch.equal(noise, other.gumbel(position, 7))
        assert torch.equal(foreseen.gumbel(position, 7), noise)
        assert all(known >= position for known, _ in foreseen._foreseen)
    foreseen.gumbel(40, 7)
    assert not foreseen._foreseen


def test_noise_of_positions_that_nobody_drew_at_gives_way() -> None:
    randomness = Randomness(3)  # whose passes draw by themselves
    for position in range(40):
        first = randomness.foresee(position, 7)
        assert randomness.foresee(position, 7) is first
    assert len(randomness._foreseen) == 16
