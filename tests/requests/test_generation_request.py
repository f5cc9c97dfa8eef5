"""Requests in transformers' words are translated once, or refused with the remedy."""

from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from transformers import StoppingCriteria, TextIteratorStreamer

from specdec import Generator, RequestError, ToyModel
from specdec.inputs.processor import ProcessedPrompt
from specdec.requests.generation_request import GenerationRequest
from specdec.requests.options import GenerateOptions
from specdec.sampling.randomness import seed_of_sample
from specdec.settings import _OF_GENERATE, Settings
from tests.support import families
from tests.support.byte_tokenizer import trained


def refusal(prompt: Any = None, **given: Any) -> str:
    with pytest.raises(RequestError) as caught:
        GenerationRequest.of(prompt, **given)
    return str(caught.value)


PADDED = {"input_ids": [[0, 0, 5, 6], [1, 2, 3, 4]], "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]]}


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_a_tokenizers_output_is_its_rows_without_padding(make: Any) -> None:
    encoded = {name: make(value) for name, value in PADDED.items()}
    assert (
        GenerationRequest.of(encoded).prompt == GenerationRequest.of(None, **encoded).prompt == [[5, 6], [1, 2, 3, 4]]
    )
    assert GenerationRequest.of(None, input_ids=make([5, 6])).prompt == [5, 6]
    right = {"input_ids": make([[5, 6, 0]]), "attention_mask": make([[1, 1, 0]])}
    assert GenerationRequest.of(right).prompt == [[5, 6]]


def test_a_tokenizers_own_class_of_output_is_taken() -> None:
    encoded = trained()(["the cat", "the"])
    assert GenerationRequest.of(encoded).prompt == GenerationRequest.of(None, **encoded).prompt == encoded["input_ids"]


@pytest.mark.parametrize("name", ["token_type_ids", "mm_token_type_ids"])
def test_what_a_processor_says_of_text_is_taken_and_of_images_is_kept_for_the_model(name: str) -> None:
    text = {"input_ids": [[5, 6]], name: torch.tensor([[0, 0]]), "pixel_values": None}
    assert GenerationRequest.of(text).prompt == [[5, 6]]
    assert GenerationRequest.of(None, **{"input_ids": [5, 6], name: [0, 0]}).prompt == [5, 6]
    for more in ({name: [[0, 1]]}, {"pixel_values": torch.ones(1, 3)}):
        (prompt,) = GenerationRequest.of({"input_ids": [[5, 6]], **more}).prompt
        assert isinstance(prompt, ProcessedPrompt)
        arguments = {argument: value.tolist() for argument, value in prompt.output.arguments.items()}
        assert arguments == {
            "input_ids": [[5, 6]],
            **{key: torch.as_tensor(each).tolist() for key, each in more.items()},
        }
    (prompt,) = GenerationRequest.of(None, input_features=torch.ones(1, 3)).prompt
    assert [*prompt.output.arguments] == ["input_features"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "no prompt was given"),
        ({"prompt": "the", "input_ids": [1]}, "a prompt and input_ids were given"),
        ({"attention_mask": [1]}, "attention_mask were given without input_ids"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "different shapes"),
        ({"prompt": "the", "stop": "a", "stop_strings": "b"}, "stop and stop_strings are the same setting"),
        ({"prompt": "the", "do_sample": True, "temperature": 0}, "do_sample=True with temperature=0"),
        ({"prompt": "the", "num_return_sequences": 2}, "greedy texts are all the same"),
        ({"prompt": "the", "num_return_sequences": 0, "temperature": 1.0}, "an integer of at least 1"),
        ({"prompt": ["the", "cat"], "streamer": object()}, "use Generator.stream"),
        ({"prompt": "the", "chat_template_kwargs": 3}, "give a mapping"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_remedy(given: dict[str, Any], fault: str) -> None:
    assert fault in refusal(**given)


def test_sampling_is_as_transformers_has_it() -> None:
    assert GenerationRequest.of("the", do_sample=True).settings == {"temperature": 1.0, "top_k": 50}
    for more in ({}, {"num_return_sequences": 2}):
        off = GenerationRequest.of("the", do_sample=True, temperature=None, **more)
        assert off.settings == {"temperature": 1.0, "top_k": 50}
    assert GenerationRequest.of("the", do_sample=True, top_k=None).settings == {"temperature": 1.0, "top_k": None}
    assert GenerationRequest.of("the", do_sample=True, temperature=0.5, top_k=3).settings == {
        "temperature": 0.5,
        "top_k": 3,
    }
    assert GenerationRequest.of("the", do_sample=False, temperature=0.5, top_p=0.3).settings == {"temperature": 0.0}
    assert GenerationRequest.of("the", temperature=0.5).settings == {"temperature": 0.5}


def test_several_texts_of_a_prompt_have_seeds_of_their_own() -> None:
    question = GenerationRequest.of("the", num_return_sequences=3, temperature=1.0, seed=5)
    assert question.prompt == ["the"] * 3
    assert question.settings == {"temperature": 1.0, "seed": [5, seed_of_sample(5, 1), seed_of_sample(5, 2)]}
    listed = GenerationRequest.of([[1], [2]], num_return_sequences=2, temperature=1.0, seed=[5, 9])
    assert listed.prompt == [[1], [1], [2], [2]]
    assert listed.settings["seed"] == [5, seed_of_sample(5, 1), 9, seed_of_sample(9, 1)]


def test_samples_of_neighbouring_seeds_are_different_texts_and_the_first_is_the_seeds_own() -> None:
    generator, settings = Generator(ToyModel.random()), {"max_new_tokens": 12, "temperature": 1.0}
    texts = [
        [result.token_ids for result in generator.generate([0, 1], num_return_sequences=4, seed=seed, **settings)]
        for seed in range(5)
    ]
    assert len({text for samples in texts for text in samples}) == 20
    assert [samples[0] for samples in texts] == [
        generator.generate([0, 1], seed=seed, **settings).token_ids for seed in range(5)
    ]
    (again,) = (each for each in generator.generate([0, 1], num_return_sequences=2, seed=3, **settings)[1:])
    assert generator.generate([0, 1], seed=again.seed, **settings).token_ids == again.token_ids
    with pytest.raises(RequestError, match="seed=-1"):
        generator.generate([0, 1], num_return_sequences=2, seed=-1, **settings)


def test_the_typed_options_are_the_settings_and_what_is_translated() -> None:
    others = set(GenerateOptions.__annotations__) - set(Settings.model_fields)
    assert set(Settings.model_fields) <= set(GenerateOptions.__annotations__)
    assert others == {*_OF_GENERATE, "token_type_ids"}


def test_options_of_the_chat_template_are_no_settings() -> None:
    given = {"tools": [max], "enable_thinking": False, "chat_template_kwargs": {"mood": "calm"}, "top_k": 3}
    question = GenerationRequest.of([{"role": "user", "content": "the"}], **given)
    assert question.template == {"tools": [max], "enable_thinking": False, "mood": "calm"}
    assert question.settings == {"top_k": 3}


@pytest.fixture(scope="module")
def generator() -> Generator:
    tokenizer = trained()
    model = families.make("LlamaConfig", {**families.SMALL, "vocab_size": len(tokenizer)})
    return Generator(model, tokenizer, proposer="prompt_lookup", numerics="fast")


def test_an_encoded_call_writes_what_its_text_does(generator: Generator) -> None:
    encoded = trained()("the cat sat", return_tensors="pt")
    (result,) = generator.generate(**encoded, max_new_tokens=12, do_sample=False, pad_token_id=0, use_cache=True)
    assert result.token_ids == generator.generate("the cat sat", max_new_tokens=12).token_ids
    length = encoded["input_ids"].shape[1] + 7
    assert generator.generate("the cat sat", max_length=length).token_ids == result.token_ids[:7]


def test_a_streamer_hears_the_prompt_and_the_text(generator: Generator) -> None:
    streamer = TextIteratorStreamer(trained(), skip_prompt=True, timeout=60)
    call = {"streamer": streamer, "max_new_tokens": 16}
    thread = Thread(target=generator.generate, args=["the cat"], kwargs=call)
    thread.start()
    heard = "".join(streamer)
    thread.join()
    assert heard == generator.generate("the cat", max_new_tokens=16).text


class AtLength(StoppingCriteria):
    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


def test_criteria_are_asked_behind_every_token_and_end_the_text() -> None:
    generator = Generator(ToyModel.random(), proposer="jacobi:n=6")
    criterion = AtLength(13)
    result = generator.generate([0, 1], max_new_tokens=40, stopping_criteria=[criterion])
    assert criterion.seen == [*range(3, 14)]
    assert result.finish_reason == "stop"
    assert result.token_ids == generator.generate([0, 1], max_new_tokens=11).token_ids


def test_a_criterion_that_fails_is_its_requests_fault() -> None:
    def broken(input_ids: torch.Tensor, scores: Any) -> bool:
        raise OSError("broken")

    results = Generator(ToyModel.random()).generate(
        [[0, 1], [1]], each=[{"stopping_criteria": broken}, {}], max_new_tokens=4
    )
    assert [result.finish_reason for result in results] == ["error", "length"]
    assert "a stopping criterion failed with OSError: broken" in str(results[0].error)


def test_time_runs_out() -> None:
    result = Generator(ToyModel.random()).generate([0, 1], max_new_tokens=40, max_time=1e-9)
    assert result.finish_reason == "time"
    assert len(result.token_ids) < 40


def test_prompts_may_have_settings_of_their_own() -> None:
    generator = Generator(ToyModel.random())
    results = generator.generate([[0, 1], [1, 2]], each=[{"max_new_tokens": 3}, {}], max_new_tokens=5)
    assert [len(result.token_ids) for result in results] == [3, 5]
    with pytest.raises(RequestError, match="each has 1 mapping for 2 prompts"):
        generator.generate([[0, 1], [1, 2]], each=[{}])
