"""Ids whose vectors come with an image's features, as Ovis2's ends of images."""

import torch

from specdec import Generator
from tests.support import multimodal

FIRST, LAST = 80, 84  # of the family's visual_indicator_token_ids


def test_ends_of_images_are_read_and_never_drafted() -> None:
    model = multimodal.make("ovis2")
    prompt = multimodal.prompt("ovis2", 1, 1, 40)
    ids = prompt["input_ids"].clone()
    places = (ids[0] == multimodal.IMAGE).nonzero().flatten()
    ids[0, places[0] - 1], ids[0, places[-1] + 1] = FIRST, LAST
    text = {**prompt, "input_ids": ids}
    settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    own, unmarked = (model.generate(**each, **settings)[0, ids.shape[1] :].tolist() for each in (text, prompt))
    assert own != unmarked
    # The first draft follows the whole reference, with an end of an image among its tokens.
    for reference in (None, [*own[:2], FIRST, *own[2:]]):
        with Generator(model, proposer="auto" if reference is None else "reference") as generator:
            given = {} if reference is None else {"reference": reference}
            (result,) = generator.generate(**text, max_new_tokens=24, eos_token_id=[], **given)
        assert result.error is None
        assert list(result.token_ids) == own


def test_an_end_that_is_read_apart_from_its_image_has_its_vector() -> None:
    model = multimodal.make("ovis2")
    prompt = multimodal.prompt("ovis2", 1, 1, 13)
    ids = torch.cat([torch.randint(1, 60, (1, 300)), prompt["input_ids"]], 1)  # the image begins a chunk of its own
    ids[0, 100:250] = FIRST
    text = {"input_ids": ids, "pixel_values": prompt["pixel_values"]}
    own = model.generate(**text, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
    with Generator(model) as generator:
        (result,) = generator.generate(**text, max_new_tokens=8, eos_token_id=[])
    assert result.error is None
    assert list(result.token_ids) == own[0, ids.shape[1] :].tolist()
