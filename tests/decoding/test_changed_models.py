"""What is kept of a model's passes isn't used once the model computes something else: the text is the new model's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdec import Generator, RequestError
from specdec.decoding.prefix_block import BLOCK
from tests.support.model_changes import CHANGES, patch_module, tiny
from tests.support.plain import decode_model

PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2] * 4
NEW = [4, 6]


def goes_on(generator: Generator, context: Any) -> tuple[list[int], int]:
    result = generator.generate([*PROMPT, *NEW], context=context, max_new_tokens=12, eos_token_id=())
    return list(result.token_ids), result.stats.num_reused


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
@torch.no_grad()
def test_a_context_is_read_again_by_a_changed_model(change: Callable[[Any], object]) -> None:
    model = tiny()
    generator = Generator(model, proposer="prompt_lookup", weights="stock")
    with generator.context() as context:
        generator.generate(PROMPT, context=context, max_new_tokens=4, eos_token_id=())
        assert goes_on(generator, context)[1] >= len(PROMPT)
        change(model)
        after, num_reused = goes_on(generator, context)
        assert num_reused == 0
        assert after == decode_model(model, [*PROMPT, *NEW], 12, None, eos=())
        assert goes_on(generator, context)[1] >= len(PROMPT)


def test_recordings_and_contexts_of_code_that_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    generator = Generator(model, proposer="autoregressive", weights="stock")
    with generator.context() as context:
        generator.generate(PROMPT, context=context, max_new_tokens=4, eos_token_id=())
        patch_module(monkeypatch)
        after, num_reused = goes_on(generator, context)
        assert num_reused == 0
        assert after == decode_model(model, [*PROMPT, *NEW], 12, None, eos=())


def test_a_hook_that_is_registered_between_two_turns_is_called() -> None:
    model, called = tiny(), list[int]()
    generator = Generator(model, proposer="autoregressive", weights="stock")
    with generator.context() as context:
        # Until the passes of a turn are recorded.
        text = list(generator.generate(PROMPT, context=context, max_new_tokens=20, eos_token_id=()).token_ids)
        model.model.layers[0].register_forward_hook(lambda *_given: called.append(1))
        result = generator.generate([*PROMPT, *text], context=context, max_new_tokens=8, eos_token_id=())
    assert len(called) >= result.stats.steps


@pytest.mark.parametrize("name", ["a step, fused", "data replaced", "embeddings exchanged", "an attribute", "a hook"])
@torch.no_grad()
def test_prefixes_are_forgotten_by_a_changed_model(name: str) -> None:
    model, prompt = tiny(), [*PROMPT, *PROMPT, *NEW]
    generator = Generator(model, proposer="autoregressive", weights="stock")
    found = []
    with generator.open_batch(max_prefix_bytes=1 << 20) as batch:
        for change in (None, None, CHANGES[name], None):
            if change is not None:
                change(model)
            (handle,) = batch.add(prompt, max_new_tokens=8, eos_token_id=())
            assert not isinstance(handle, Exception)
            while batch.advance() is not None:
                pass
            found.append(handle.stats.num_reused >= BLOCK)
            assert handle.new_tokens == decode_model(model, prompt, 8, None, eos=())
    assert found == [False, True, False, True]


def test_a_batch_whose_model_is_cast_says_so() -> None:
    model = tiny()
    generator = Generator(model, proposer="autoregressive", weights="stock")
    settings = {"max_new_tokens": 2}
    with generator.open_batch() as batch:
        batch.add(PROMPT, **settings)
        while batch.advance() is not None:
            pass
        model.double()
        with pytest.raises(RequestError, match="the model has changed since this batch was opened"):
            batch.add(PROMPT, **settings)
