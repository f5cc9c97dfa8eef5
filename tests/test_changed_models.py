"""A model that changes after its generator was made: the generator follows it, or refuses with the remedy."""

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from specdec import Generator, ModelError, RequestError
from specdec.models.notes import lock_of, notes_of, remembered
from tests.support import families
from tests.support.plain import decode_model

PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]


def llama() -> PreTrainedModel:
    return families.make(*families.TREES["llama"])


def resized(model: PreTrainedModel) -> None:
    model.resize_token_embeddings(families.VOCAB - 30)


def eager(model: PreTrainedModel) -> None:
    model.set_attn_implementation("eager")


def swapped_layer(model: PreTrainedModel) -> None:
    layer = model.model.layers[0].mlp
    layer.down_proj = torch.nn.Linear(layer.down_proj.in_features, layer.down_proj.out_features, bias=False)


@pytest.mark.parametrize(
    "change",
    [
        torch.nn.Module.double,
        torch.nn.Module.half,
        resized,
        swapped_layer,
        lambda m: m.set_attn_implementation("eager"),
    ],
    ids=["double", "half", "resized", "a layer replaced", "attention"],
)
def test_text_follows_a_model_that_was_changed(change: Callable[[PreTrainedModel], object]) -> None:
    model = llama()
    generator = Generator(model, proposer="lookahead:N=3,W=3,G=3")
    generator.generate(PROMPT, max_new_tokens=4)
    change(model)
    result = generator.generate(PROMPT, max_new_tokens=24, eos_token_id=())
    assert list(result.token_ids) == decode_model(model, PROMPT, 24, None, eos=())
    assert str(result.numerics) == str(Generator(model, proposer="jacobi").numerics)
    assert generator.vocab_size == model.get_output_embeddings().weight.shape[0]


def test_a_cast_model_is_not_called_bit_exact_by_what_was_found_before() -> None:
    model = llama()
    generator = Generator(model)
    assert generator.numerics.is_bit_exact
    model.double()
    with pytest.warns(UserWarning, match="fast numerics: exact numerics are unavailable: specdec_exact supports"):
        assert not generator.numerics.is_bit_exact
    assert not generator.generate(PROMPT, max_new_tokens=2).numerics.is_bit_exact


def test_a_changed_window_is_seen() -> None:
    model = families.make(*families.TREES["mistral-window"])
    generator = Generator(model, proposer="prompt_lookup")
    texts = []
    for window in (families.WINDOW, None):
        model.config.sliding_window = window
        texts.append(list(generator.generate(PROMPT * 3, max_new_tokens=16, eos_token_id=()).token_ids))
        assert texts[-1] == decode_model(model, PROMPT * 3, 16, None, eos=())
    assert texts[0] != texts[1]


def test_a_fact_is_found_once_for_each_state() -> None:
    model, found = llama(), list[torch.dtype]()

    def find() -> int:
        found.append(model.dtype)
        return len(found)

    assert [remembered(model, "a question", find) for _ in range(2)] == [1, 1]
    model.double()
    assert [remembered(model, "a question", find) for _ in range(2)] == [2, 2]
    model.float()
    assert remembered(model, "a question", find) == 1
    assert found == [torch.float32, torch.float64]


def test_facts_of_former_states_are_dropped() -> None:
    model = llama()
    for _ in range(10):
        swapped_layer(model)
        Generator(model.eval(), proposer="autoregressive")
    assert len(notes_of(model)._facts) <= 8


@pytest.mark.parametrize("train", [lambda model: model.train(), lambda model: model.model.layers[1].train()])
def test_a_model_in_training_mode_is_refused_until_it_is_not(train: Callable[[PreTrainedModel], object]) -> None:
    model = llama()
    generator = Generator(model, proposer="jacobi")
    text = generator.generate(PROMPT, max_new_tokens=8).token_ids
    train(model)
    with pytest.raises(ModelError, match=r"training mode, in which dropout changes its logits: call model.eval\(\)"):
        generator.generate(PROMPT, max_new_tokens=8)
    model.eval()
    assert generator.generate(PROMPT, max_new_tokens=8).token_ids == text


def test_an_unchanged_model_is_bound_once() -> None:
    generator = Generator(llama())
    target = generator._binding.target
    generator.generate(PROMPT, max_new_tokens=3)
    assert generator._binding.target is target


def test_a_changed_end_of_text_is_seen() -> None:
    model = llama()
    generator = Generator(model, proposer="jacobi")
    first = generator.generate(PROMPT, max_new_tokens=6)
    assert first.finish_reason == "length"
    model.generation_config.eos_token_id = first.token_ids[2]
    second = generator.generate(PROMPT, max_new_tokens=6)
    assert second.finish_reason == "stop"
    assert second.token_ids[-1] == first.token_ids[2]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_generator_says_why_it_cannot_be_copied_or_pickled(how: Callable[[Generator], object]) -> None:
    with pytest.raises(RequestError, match=r"a generator can't be copied or pickled, .*: make another one of"):
        how(Generator(llama(), proposer="autoregressive"))


def test_a_model_that_was_driven_can_be_copied_and_the_copy_is_tried_anew() -> None:
    model = llama()
    Generator(model, proposer="autoregressive")
    assert notes_of(model)._facts
    twin = copy.deepcopy(model)
    assert not notes_of(twin)._facts
    assert lock_of(twin) is not lock_of(model)
    assert Generator(twin).numerics.is_bit_exact


def test_falling_back_to_fast_numerics_is_said_once_in_a_place() -> None:
    model = llama().double()
    with pytest.warns(
        UserWarning, match="fast numerics: exact numerics are unavailable: specdec_exact supports"
    ) as told:
        Generator(model)
    assert "\n" not in str(told[0].message)
    assert told[0].filename == __file__
    with warnings.catch_warnings(record=True) as repeated:
        warnings.simplefilter("default")
        for proposer in ("prompt_lookup", "jacobi"):
            Generator(model, proposer=proposer)
    assert len(repeated) == 1
