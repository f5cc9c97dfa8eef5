"""References in every form, and those that are refused."""

from typing import Any

import numpy as np
import pytest
import torch

from specdec import Generator, RequestError, ToyModel
from specdec.costs import NOMINAL_COSTS
from specdec.models.encoder_decoders import has_one_vocabulary
from specdec.testing import toy_tokenizer
from tests.support import encoder_decoders

VOCAB = 10
PROMPT = [0]  # the model goes on with 1, 2, 3, …
TEXT = [*range(1, 10)]


def num_steps(reference: Any, **options: Any) -> int:
    generator = Generator(ToyModel.counting(VOCAB), toy_tokenizer(VOCAB), proposer="reference")
    result = generator.generate(PROMPT, max_new_tokens=9, reference=reference, **options)
    assert result.token_ids == tuple(TEXT)
    return result.stats.steps


def test_ids_arrays_tensors_and_text_are_references() -> None:
    for reference in (TEXT, tuple(TEXT), np.array(TEXT), torch.tensor(TEXT), toy_tokenizer(VOCAB).decode(TEXT)):
        assert num_steps(reference) == 1
    assert num_steps(range(9)) == num_steps([*range(9)])
    for nothing in (None, [], ""):
        assert num_steps(nothing) == 9


def test_a_text_is_encoded_without_what_begins_a_prompt() -> None:
    class Beginning:
        """A tokenizer that begins each prompt with token 9."""

        def __init__(self) -> None:
            self._own = toy_tokenizer(VOCAB)

        def __len__(self) -> int:
            return VOCAB

        def __getattr__(self, name: str) -> Any:
            return getattr(self._own, name)

        def __call__(self, text: str, add_special_tokens: bool = True, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [9] * add_special_tokens + self._own(text)["input_ids"]}

    text = toy_tokenizer(VOCAB).decode(TEXT)
    generator = Generator(ToyModel.counting(VOCAB), Beginning(), proposer="reference")
    assert generator.generate(PROMPT, max_new_tokens=9, reference=text).stats.steps == 1


def test_prompts_share_a_reference_or_have_one_each_and_samples_their_prompts() -> None:
    generator = Generator(ToyModel.counting(VOCAB), proposer="reference", max_batch_size=1)

    def steps(**options: Any) -> list[int]:
        results = generator.generate([PROMPT, [0, 1, 2]], max_new_tokens=7, **options)
        return [result.stats.steps for result in results]

    assert steps(reference=TEXT) == [1, 3]  # the second text begins with 3, after which the place is known
    assert steps(reference=[None, TEXT[2:]]) == [7, 1]
    assert steps(reference=[TEXT, None], num_return_sequences=2, temperature=1.0, top_k=1) == [1, 1, 7, 7]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            [1, VOCAB],
            f"the reference's token 1 is {VOCAB}, but ids go from 0 to {VOCAB - 1}: was it encoded by another",
        ),
        ([1, -1], "the reference's token 1 is -1"),
        ([1, 2.5], "the reference's token 1 is 2.5, not an integer id; a reference is text or token ids"),
        ([1, True], "the reference's token 1 is True, not an integer id"),
        (3, "a reference of type int was given; a reference is text or token ids"),
        ({"content": "x"}, "a reference of type dict was given"),
        ([[1], [2]], "2 references were given for 1 prompt: give one, or one for each"),
        ("text", "a text as reference needs a tokenizer"),
    ],
)
def test_other_references_are_refused_with_what_is_wrong(reference: Any, message: str) -> None:
    generator = Generator(ToyModel.counting(VOCAB), proposer="reference")
    with pytest.raises(RequestError) as refused:
        generator.generate(PROMPT, reference=reference)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_of_a_list_only_the_request_with_a_wrong_reference_fails() -> None:
    generator = Generator(ToyModel.counting(VOCAB))
    right, wrong = generator.generate([PROMPT, PROMPT], max_new_tokens=2, reference=[[1], [VOCAB]])
    assert right.token_ids == (1, 2)
    assert isinstance(wrong.error, RequestError)


class Copying:
    """A rule by which an encoder-decoder's text copies its input."""

    is_path_pure = True

    def __init__(self, source: list[int]) -> None:
        self._source = source

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self._source[(input_ids.shape[1] - 1) % len(self._source)]
        return torch.full_like(scores, -1e3).index_fill_(-1, torch.tensor(token), 0.0)


@pytest.mark.parametrize("family", ["bart", "t5", "t5gemma"])
@pytest.mark.parametrize("proposer", ["reference", "auto"])
def test_what_an_encoder_has_read_is_the_reference_by_default(
    family: str, proposer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.runtime.binding.costs_of", lambda *_: NOMINAL_COSTS)  # on a busy machine nothing pays
    source = [*range(10, 34)]
    options: dict[str, Any] = {"max_new_tokens": 24, "eos_token_id": (), "forced_eos_token_id": None}
    with Generator(encoder_decoders.make(family), proposer=proposer, numerics="fast") as generator:
        copied, plain, other = (
            generator.generate(source, logits_processor=Copying(source), reference=reference, **options)
            for reference in (None, [], source[::-1])
        )
    assert copied.token_ids == plain.token_ids == other.token_ids == (*source,)
    assert sum(accepted for _, accepted in copied.stats.sources["reference"].values()) > 12
    assert copied.stats.steps < plain.stats.steps / 2


def test_other_vocabularies_and_what_is_heard_are_no_reference() -> None:
    assert not has_one_vocabulary(encoder_decoders.make("whisper"))
    bart = encoder_decoders.make("bart")
    assert has_one_vocabulary(bart)
    bart.get_encoder().set_input_embeddings(torch.nn.Embedding(9, 32))
    assert not has_one_vocabulary(bart)
    with Generator(encoder_decoders.make("bart"), proposer="suffix") as generator:
        assert generator.generate(PROMPT, max_new_tokens=2).error is None  # which reads no reference
