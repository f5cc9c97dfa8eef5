"""The step over a ragged batch: joining, leaving, and figures that add up."""

from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, DraftTree, Generator, Request, Role, ToyModel
from tests.support.plain import decode_law
from tests.support.scripted import Scripted

MODEL = ToyModel.random(vocab_size=5, order=2, seed=4, sharpness=3.0)


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    max_batch_size=st.integers(1, 4),
    eos=st.integers(0, 4),
)
def test_sequences_join_and_leave_without_touching_one_another(
    lengths: list[int], max_batch_size: int, eos: int
) -> None:
    prompts = [[(index * 3 + step) % 5 for step in range(length)] for index, length in enumerate(lengths)]
    generator = Generator(MODEL, proposer="lookahead:N=3,W=3,G=3", max_batch_size=max_batch_size)
    results = generator.generate(prompts, max_new_tokens=15, temperature=1.0, seed=9, eos_token_id=eos)
    for prompt, result in zip(prompts, results, strict=True):
        expected = decode_law(MODEL.probs, prompt, 15, 9)
        cut = expected.index(eos) + 1 if eos in expected else 15
        assert list(result.token_ids) == expected[:cut]
        assert result.finish_reason == ("stop" if eos in expected else "length")


def test_no_sequence_waits_for_anothers_acceptance() -> None:
    noisy = ToyModel.random(4, order=99, seed=1)

    def law(context: tuple[int, ...]) -> list[float]:  # a prompt of 0s stays predictable, the other never repeats
        return [0.97, 0.01, 0.01, 0.01] if context[0] == 0 else list(noisy.probs(context))

    generator = Generator(ToyModel(law, 4), proposer="prompt_lookup")
    easy, hard = generator.generate([[0, 0, 0], [1, 2, 3]], max_new_tokens=60)
    assert easy.stats.steps < 12
    assert hard.stats.steps > 30
    assert generator.generate([0, 0, 0], max_new_tokens=60).stats.accepted_lengths == easy.stats.accepted_lengths


def test_the_first_draft_goes_along_with_the_prompt() -> None:
    certain = ToyModel(lambda _: [0.97, 0.01, 0.01, 0.01], 4)
    stats = Generator(certain, proposer="prompt_lookup:num_tokens=5").generate([0, 0, 0], max_new_tokens=18).stats
    assert stats.accepted_lengths == [6, 6, 6]


def test_figures_add_up() -> None:
    result = Generator(MODEL, proposer="lookahead:N=3,W=3,G=3").generate([1, 2, 3], max_new_tokens=40, seed=0)
    stats = result.stats
    assert stats.num_tokens == len(result.token_ids) == sum(stats.accepted_lengths) == 40
    assert stats.steps == len(stats.accepted_lengths)
    assert stats.tokens_per_step == 40 / stats.steps
    assert stats.num_nodes > stats.steps
    assert set(stats.seconds) == {"propose", "compile", "forward", "verify", "commit"}
    assert all(seconds > 0 for seconds in stats.seconds.values())
    assert 0 < stats.seconds_to_first_token < stats.total_seconds


def test_acceptance_is_counted_over_the_candidates_of_the_drafts_that_there_were() -> None:
    model = ToyModel(lambda text: [0.96 if token == (text[-1] + 1) % 5 else 0.01 for token in range(5)], 5)

    def script(request: Request, budget: Budget) -> DraftTree:
        """1 ► 2 ► 4 (accepted: 1, 2) with 0 beside 1 and a probe below it; nothing; 0 (accepted); 4 (ends the text)."""
        tree = DraftTree(request.root)
        match len(request.tokens) - request.prompt_length:
            case 0:
                tree.add_chain(0, [1, 2, 4])
                tree.add(tree.add(0, 0), 3, Role.PROBE)
            case 4:
                tree.add(0, 0)
            case 6:
                tree.add(0, 2)
        return tree

    stats = Generator(model, proposer=Scripted(script=script)).generate([0], max_new_tokens=7).stats
    assert stats.accepted_lengths == [3, 1, 2, 1]  # 1 2 3 | 4 | 0 1 | 2
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 4 + 1 + 1, 2 + 1 + 0)
    assert (stats.acceptance_rate, stats.mean_acceptance_length, stats.tokens_per_step) == (3 / 6, 6 / 3, 7 / 4)
    plain = Generator(model, proposer="autoregressive").generate([0], max_new_tokens=7).stats
    assert (plain.num_drafts, plain.acceptance_rate, plain.mean_acceptance_length) == (0, None, 1.0)


def test_each_position_is_drawn_once_even_where_the_proposer_wants_the_draws(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from specdec.sampling.randomness import Randomness

    original, drawn = Randomness.categorical, list[int]()

    def counting(self: Randomness, weights: object, position: int) -> int:
        drawn.append(position)
        return original(self, weights, position)  # type: ignore[arg-type]

    monkeypatch.setattr(Randomness, "categorical", counting)
    Generator(MODEL, proposer="prompt_lookup").generate([1, 2, 3], max_new_tokens=20, temperature=1.0, seed=1)
    assert len(drawn) == len(set(drawn)) >= 20
