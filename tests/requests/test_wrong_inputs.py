"""Images and recordings that don't fit their prompt: one line names the counts, and the other prompts are decoded."""

from typing import Any

import pytest
import torch

from specdec import Generator, RequestError
from specdec.inputs.processor import ProcessorOutput
from tests.support import multimodal
from tests.support.multimodal import IMAGE, Inputs

SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": []}
NAMES = "llava", "qwen2_vl", "gemma3", "smolvlm", "voxtral", "qwen2_audio"


def damaged(inputs: Inputs, is_longer: bool) -> Inputs:
    """A placeholder more, in the place of a token of text, or less."""
    ids = inputs["input_ids"].clone()
    places = [place for place, token in enumerate(ids[0].tolist()) if token == IMAGE]
    ids[0, places[-1] + is_longer] = IMAGE if is_longer else 7
    return {**inputs, "input_ids": ids}


@pytest.mark.parametrize("is_longer", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_of_placeholders_is_named_and_neighbours_go_on(name: str, is_longer: bool) -> None:
    model = multimodal.make(name)
    good = [multimodal.compose(name, [5, 6], seed, [8, 9, 10, 11]) for seed in (1, 2)]
    generator = Generator(model, proposer="prompt_lookup", numerics="fast")
    wrong = damaged(good[0], is_longer)
    given = [each for one in (good[0], wrong, good[1]) for each in ProcessorOutput(one).prompts()]
    for prompts in ([given[1]], given, given):
        results = generator.generate(prompts, **SETTINGS)
        for result, prompt in zip(results, prompts, strict=True):
            if prompt is not given[1]:
                own = model.generate(**good[prompt is given[2]], max_new_tokens=6, do_sample=False, eos_token_id=None)
                assert list(result.token_ids) == own[0, -6:].tolist()
                continue
            assert isinstance(result.error, RequestError)
            message = str(result.error)
            assert "\n" not in message
            count = sum(token == IMAGE for token in wrong["input_ids"][0].tolist())
            assert str(count) in message
            assert str(count - 1 if is_longer else count + 1) in message


def test_a_processors_arrays_and_lists_are_its_tensors() -> None:
    model = multimodal.make("llava")
    given = multimodal.compose("llava", [5, 6], 1, [8, 9, 10, 11])
    expected = model.generate(**given, max_new_tokens=6, do_sample=False, eos_token_id=None)[0, -6:].tolist()
    mask = (torch.arange(len(given["input_ids"][0])) > 1).long()[None]
    with Generator(model, proposer="prompt_lookup", numerics="fast") as generator:
        arrays = {name: value.numpy() for name, value in given.items()}
        lists = {name: value.tolist() for name, value in given.items()}
        for [result] in (generator.generate(**arrays, **SETTINGS), generator.generate(lists, **SETTINGS)):
            assert list(result.token_ids) == expected
        for wrong, reason in (
            ({"input_ids": given["input_ids"][0]}, r"input_ids has shape \(\d+,\): with images or audio it is"),
            ({"input_ids": None}, "0 image placeholders"),
            ({"input_ids": [[5], [6, 7]]}, "input_ids can't be a tensor .*padding=True"),
            ({"attention_mask": mask[:, 1:]}, "attention_mask has shape"),
            ({"attention_mask": mask * 0}, "has only padding"),
        ):
            with pytest.raises(RequestError, match=reason):
                raise generator.generate(**{**given, **wrong}, **SETTINGS)[0].error


def test_a_batch_that_is_refused_is_encoded_once() -> None:
    model, encoded = multimodal.make("llava"), list[int]()
    given = multimodal.padded("llava", [multimodal.compose("llava", [5, 6], seed, [8]) for seed in (1, 2)])
    given["input_ids"][1, -1] = IMAGE
    hook = model.get_submodule("model.vision_tower").register_forward_hook(lambda *_: encoded.append(1))
    with Generator(model, proposer="prompt_lookup", numerics="fast") as generator:
        encoded.clear()
        results = generator.generate(**given, **SETTINGS)
    hook.remove()
    assert [type(result.error) for result in results] == [RequestError] * 2
    assert len(encoded) == 1
