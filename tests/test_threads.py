"""Several threads on one generator, and several generators of one model: each answer is right, or clearly refused."""

import threading
from collections.abc import Callable
from typing import Any

from specdec import Generator, RequestError, Result, demo
from tests.support import families
from tests.support.plain import decode_model

NUM_THREADS = 10
NUM_ROUNDS = 10
BUSY = "this generator is already decoding: exhaust or close its stream, or wait for the other thread"


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """The value that each of some calls returned, or the error it raised, all begun at the same time."""
    barrier = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        try:
            found[index] = calls[index]()
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ten_threads_on_one_generator_are_served_or_refused_and_never_mixed_up() -> None:
    model, tokenizer = demo.load()
    prompts = [prompt.text[:60] for prompt in demo.prompts()[:NUM_THREADS]]
    texts = [decode_model(model, tokenizer(prompt)["input_ids"], 8, None, eos=()) for prompt in prompts]
    generator = Generator(model, tokenizer, proposer="prompt_lookup")
    num_served = 0
    for _ in range(NUM_ROUNDS):
        calls = [
            lambda prompt=prompt: generator.generate(prompt, max_new_tokens=8, eos_token_id=()) for prompt in prompts
        ]
        for answer, text in zip(at_once(calls), texts, strict=True):
            if isinstance(answer, Result):
                assert list(answer.token_ids) == text
                num_served += 1
            else:
                assert isinstance(answer, RequestError)
                assert str(answer) == BUSY
    assert num_served >= NUM_ROUNDS, "one thread of each round finds the generator free"
    assert generator.generate(prompts[0], max_new_tokens=8, eos_token_id=()).token_ids == tuple(texts[0])


def test_ten_threads_on_two_generators_of_one_model_are_right_and_leave_its_settings_alone() -> None:
    model, tokenizer = demo.load()
    before = model.config._attn_implementation
    prompts = [prompt.text[:60] for prompt in demo.prompts()[:NUM_THREADS]]
    texts = [decode_model(model, tokenizer(prompt)["input_ids"], 8, None, eos=()) for prompt in prompts]
    generators = [
        Generator(model, tokenizer, proposer="prompt_lookup", numerics=numerics)  # type: ignore[arg-type]
        for numerics in ("exact", "fast")
    ]
    for _ in range(NUM_ROUNDS):
        calls = [
            lambda generator=generators[index % 2], prompt=prompt: generator.generate(
                prompt, max_new_tokens=8, eos_token_id=()
            )
            for index, prompt in enumerate(prompts)
        ]
        answers = at_once(calls)
        served = [(answer, text) for answer, text in zip(answers, texts, strict=True) if isinstance(answer, Result)]
        assert len(served) >= 2, "one thread finds each generator free"
        assert [list(answer.token_ids) for answer, _ in served] == [text for _, text in served]
        assert {str(answer) for answer in answers if not isinstance(answer, Result)} <= {BUSY}
        assert model.config._attn_implementation == before


def test_generators_made_of_one_model_by_several_threads_agree_with_one_made_alone() -> None:
    arguments = families.TREES["llama"]
    alone = Generator(families.make(*arguments), proposer="autoregressive")
    model = families.make(*arguments)
    before = model.config._attn_implementation
    made = at_once([lambda: Generator(model, proposer="prompt_lookup") for _ in range(4)])
    assert [str(one.numerics) for one in made] == [str(alone.numerics)] * 4
    assert model.config._attn_implementation == before
    text = alone.generate([1, 2, 3], max_new_tokens=12).token_ids
    assert [one.generate([1, 2, 3], max_new_tokens=12).token_ids for one in made] == [text] * 4


def test_a_stream_may_be_begun_in_one_thread_and_closed_in_another() -> None:
    generator = Generator(families.make(*families.TREES["llama"]), proposer="autoregressive")
    stream = generator.stream([1, 2, 3], max_new_tokens=12)
    next(stream)
    assert str(at_once([lambda: generator.generate([1], max_new_tokens=2)])[0]) == BUSY
    assert at_once([stream.close]) == [None]  # type: ignore[attr-defined]  # a generator
    assert len(generator.generate([1], max_new_tokens=2).token_ids) == 2


def test_generators_of_one_model_with_different_backends_leave_its_settings_alone() -> None:
    model, tokenizer = demo.load()
    before = model.config._attn_implementation
    prompts = [prompt.text[:60] for prompt in demo.prompts()[:6]]
    texts = [decode_model(model, tokenizer(prompt)["input_ids"], 6, None, eos=()) for prompt in prompts]
    generators = [
        Generator(model, tokenizer, proposer="prompt_lookup", numerics="fast", backend=backend)
        for backend in ("hf", "static")
    ] + [Generator(model, tokenizer, proposer="draft_model:layers=2", numerics="exact")]
    for _ in range(5):
        calls = [
            lambda generator=generators[index % 3], prompt=prompt: generator.generate(
                prompt, max_new_tokens=6, eos_token_id=()
            )
            for index, prompt in enumerate(prompts)
        ]
        for answer, text in zip(at_once(calls), texts, strict=True):
            assert str(answer) == BUSY or list(answer.token_ids) == text
        assert model.config._attn_implementation == before


def test_several_models_may_be_tried_at_once() -> None:
    models = [families.make(*families.TREES[name]) for name in ("llama", "qwen2", "gpt2", "olmo2")]
    for _ in range(3):
        found = at_once([lambda model=model: Generator(model, proposer="jacobi").numerics for model in models])
        assert [str(numerics) for numerics in found] == ["exact, bit-exact"] * 4
        for model in models:
            del model._specdec_notes
