"""Processors and criteria that remember: each request of a list has its own, so that no text depends on the company."""

import threading
from typing import Any

import pytest
import torch
from transformers import (
    EosTokenCriteria,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkLogitsProcessor,
)

from specdec import Generator, RequestError, ToyModel
from specdec.apps.auditing import audit
from specdec.sampling.processors import is_path_pure
from tests.support import families

PROMPTS = [[5, 9, 2, 7], [1, 2, 3], [4, 4, 11, 60, 8]]
PROMPTS_OF_THE_TOY = [[0, 1], [1, 2]]
STRATEGIES = ["autoregressive", "prompt_lookup:num_matches=2", "jacobi:n=4"]


class EveryThird:
    """Forbids the likeliest token in every third call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return scores if self.num_calls % 3 else scores.index_fill(1, scores.argmax(-1), -torch.inf)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_list_writes_what_its_prompts_write_alone(strategy: str) -> None:
    model = families.make(*families.TREES["llama"])
    plain = Generator(model, proposer="autoregressive")
    alone = [plain.generate(prompt, max_new_tokens=9, logits_processor=EveryThird()).token_ids for prompt in PROMPTS]
    assert alone != [plain.generate(prompt, max_new_tokens=9).token_ids for prompt in PROMPTS]
    given = EveryThird()
    results = Generator(model, proposer=strategy).generate(PROMPTS, max_new_tokens=9, logits_processor=given)
    assert [result.token_ids for result in results] == alone
    assert given.num_calls == 0, "the caller's own stays as it was"


def test_a_watermark_of_transformers_is_the_same_for_every_strategy() -> None:
    model = families.make(*families.TREES["llama"])

    def texts(strategy: str) -> list[tuple[int, ...]]:
        watermark = SynthIDTextWatermarkLogitsProcessor(
            ngram_len=3, keys=[1, 5, 9], sampling_table_size=64, sampling_table_seed=0, context_history_size=8,
            device=torch.device("cpu"),
        )  # fmt: skip
        settings = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}
        results = Generator(model, proposer=strategy).generate(PROMPTS, logits_processor=watermark, **settings)
        return [result.token_ids for result in results]

    assert texts("prompt_lookup") == texts("autoregressive")


def test_what_cannot_be_copied_is_refused_for_a_list_and_taken_for_one_prompt() -> None:
    generator = Generator(families.make(*families.TREES["llama"]), proposer="jacobi")
    calls: list[int] = []

    def counting(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return scores

    locked = EveryThird()
    locked.lock = threading.Lock()  # type: ignore[attr-defined]
    remedy = "give it is_path_pure = True if what it returns follows from its arguments alone, or pass the prompts"
    with pytest.raises(RequestError, match=f"counting is a function, which may have state .*: {remedy}"):
        generator.generate(PROMPTS, logits_processor=counting)
    with pytest.raises(RequestError, match=f"EveryThird can't be copied for a list .*: {remedy}"):
        generator.generate(PROMPTS, logits_processor=locked)
    assert len(generator.generate(PROMPTS[0], max_new_tokens=3, logits_processor=[counting, locked]).token_ids) == 3
    counting.is_path_pure = True  # type: ignore[attr-defined]
    assert len(generator.generate(PROMPTS, max_new_tokens=3, logits_processor=counting)) == 3


def test_one_processor_given_twice_stays_one() -> None:
    model = families.make(*families.TREES["llama"])
    generator = Generator(model, proposer="autoregressive")

    def twice() -> list[EveryThird]:
        processor = EveryThird()
        return [processor, processor]

    alone = [generator.generate(prompt, max_new_tokens=9, logits_processor=twice()).token_ids for prompt in PROMPTS]
    together = generator.generate(PROMPTS, max_new_tokens=9, logits_processor=twice())
    assert [result.token_ids for result in together] == alone


def test_a_processor_that_holds_the_model_is_copied_without_it() -> None:
    class WeightsLease(EveryThird):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def __deepcopy__(self, memo: dict[int, object]) -> "WeightsLease":
            seen.append(memo.get(id(self.model)) is self.model)
            return WeightsLease(self.model)

    seen: list[bool] = []
    model = families.make(*families.TREES["llama"])
    Generator(model, proposer="jacobi").generate(PROMPTS, max_new_tokens=3, logits_processor=WeightsLease(model))
    assert seen == [True] * 3


class AfterTenCalls:
    """Ends a text after its tenth token."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any) -> bool:
        self.num_calls += 1
        return self.num_calls == 10


@pytest.mark.parametrize("strategy", [*STRATEGIES, "auto"])
def test_each_request_of_a_list_counts_by_a_criterion_of_its_own(strategy: str) -> None:
    generator, settings = Generator(ToyModel.random(), proposer=strategy), {"max_new_tokens": 30}
    prompts = [[0, 1], [1, 2], [2, 3, 4]]

    def lengths(**more: Any) -> list[int]:
        return [len(result.token_ids) for result in generator.generate(prompts, **settings, **more)]

    criterion = AfterTenCalls()
    assert lengths(stopping_criteria=criterion) == [10, 10, 10]
    assert lengths(each=[{"stopping_criteria": criterion}] * 3) == [10, 10, 10]
    assert criterion.num_calls == 0
    samples = generator.generate(
        [0, 1], **settings, temperature=1.0, num_return_sequences=3, stopping_criteria=criterion
    )
    assert [len(result.token_ids) for result in samples] == [10, 10, 10]


def test_a_function_that_requests_would_share_as_their_criterion_is_refused() -> None:
    calls: list[int] = []

    def tenth(input_ids: torch.Tensor, scores: Any) -> bool:
        calls.append(1)
        return len(calls) == 10

    def never(input_ids: torch.Tensor, scores: Any) -> bool:
        return False

    generator, settings = Generator(ToyModel.random()), {"max_new_tokens": 12}
    with pytest.raises(RequestError, match=r"tenth is a function, .*: give it is_path_pure = True"):
        generator.generate(PROMPTS_OF_THE_TOY, **settings, stopping_criteria=tenth)
    each = [{"stopping_criteria": tenth}, {"stopping_criteria": never}]
    results = generator.generate(PROMPTS_OF_THE_TOY, **settings, each=each)
    assert [len(result.token_ids) for result in results] == [10, 12]


def test_a_subclass_of_a_processor_without_state_may_have_some() -> None:
    class Fading(RepetitionPenaltyLogitsProcessor):
        """Penalises less with each call."""

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.penalty = 1 + (self.penalty - 1) * 0.9
            return super().__call__(input_ids, scores)

    model = families.make(*families.TREES["llama"])
    plain = Generator(model, proposer="autoregressive")
    alone = [plain.generate(each, max_new_tokens=9, logits_processor=Fading(3.0)).token_ids for each in PROMPTS]
    for strategy in STRATEGIES:
        results = Generator(model, proposer=strategy).generate(PROMPTS, max_new_tokens=9, logits_processor=Fading(3.0))
        assert [result.token_ids for result in results] == alone


def test_a_subclass_that_computes_as_its_parent_does_is_as_pure() -> None:
    class Named(RepetitionPenaltyLogitsProcessor):
        """With a constructor and a name of its own."""

        def __init__(self) -> None:
            super().__init__(3.0)

    class Banned(NoBadWordsLogitsProcessor):
        """Computes as its parent's parent does."""

    class AtTwo(EosTokenCriteria):
        """For another token."""

        def __init__(self) -> None:
            super().__init__(2)

    class Counting(AtTwo):
        """Has state."""

        def __call__(self, *given: Any, **more: Any) -> torch.Tensor:
            self.num_calls = getattr(self, "num_calls", 0) + 1
            return super().__call__(*given, **more)

    class CountingStill(Counting):
        """Inherits it."""

    class Alternating(StoppingCriteria):
        """Of a class that computes nothing itself."""

    assert [is_path_pure(each) for each in (Named(), Banned([[1]]), AtTwo())] == [True] * 3
    assert [is_path_pure(each) for each in (Counting(), CountingStill(), Alternating())] == [False] * 3


class UntilTold:
    """Ends texts once its attribute has been set from outside."""

    stop = False

    def __call__(self, input_ids: torch.Tensor, scores: Any) -> bool:
        return self.stop


class SharedUntilTold(UntilTold):
    is_path_pure = True


@pytest.mark.parametrize(("kind", "length"), [(UntilTold, 30), (SharedUntilTold, 3)])
def test_what_is_set_later_reaches_a_shared_criterion_and_no_copy(kind: type[UntilTold], length: int) -> None:
    criterion, heard = kind(), []

    def note(record: Any) -> None:
        heard.append(record)
        criterion.stop = len(heard) > 2

    generator, settings = Generator(ToyModel.random(), proposer="autoregressive"), {"max_new_tokens": 30}
    results = generator.generate(PROMPTS_OF_THE_TOY, **settings, stopping_criteria=criterion, on_step=note)
    assert [len(result.token_ids) in range(length, length + 2) for result in results] == [True, True]


def test_requests_of_an_open_batch_cant_share_what_may_have_state() -> None:
    criterion = AfterTenCalls()
    with Generator(ToyModel.random()).open_batch() as batch:
        batch.add([0, 1], max_new_tokens=20, stopping_criteria=criterion)
        with pytest.raises(RequestError, match=r"AfterTenCalls may have state.*give each its own"):
            batch.add([1, 2], max_new_tokens=20, stopping_criteria=criterion)
        while batch.advance() is not None:
            pass
        assert not isinstance(batch.add([1, 2], stopping_criteria=criterion)[0], Exception)


def test_an_audit_refuses_what_its_two_texts_would_share() -> None:
    with pytest.raises(RequestError, match="AfterTenCalls may have state, which the two texts would share"):
        audit(Generator(ToyModel.random()), [[0, 1]], stopping_criteria=AfterTenCalls())
