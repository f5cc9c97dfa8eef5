"""A widened model is the same function, and its dead weights are as dear as live ones."""

import pytest
import torch

from benchmarks.prompts import prompt_ids
from benchmarks.speed.widened import agreement
from benchmarks.widening import SHAPES, head_places, widen
from specdec import demo

SMALL = {"hidden_size": 1536, "num_layers": 6, "num_heads": 24, "num_key_value_heads": 8, "intermediate_size": 1536}
OUTPUTS = ("o_proj", "down_proj", "embed_tokens", "lm_head")


@pytest.fixture(scope="module")
def wide(built_in):
    return widen(built_in[0], **SMALL, seed=1)


@pytest.fixture(scope="module")
def prompts(built_in):
    return prompt_ids(built_in[1], most=6)


def test_logits_are_the_original_ones(wide, prompts):
    found = agreement(demo.load()[0], wide, prompts, num_tokens=8)  # one whose weights no generator packs
    assert found.most <= 1e-4
    assert found.same_argmax == found.same_text == 1.0


def test_other_ratios_and_groups_are_the_same_function_up_to_rounding(prompts):
    """In float64, as float32's own rounding moves this model's logits by more than 1e-4."""
    model = demo.load("float64")[0]
    shape = {**SMALL, "hidden_size": 768, "num_heads": 16}
    assert agreement(model, widen(model, **shape), prompts[:2]).most <= 1e-4


def test_a_width_of_four_times_keeps_norms_exact_in_bfloat16(built_in, wide):
    model = built_in[0]
    norm = wide.model.norm.weight[:384]
    assert torch.equal(norm.bfloat16().float() * 2, model.model.norm.weight)
    assert wide.config.rms_norm_eps == model.config.rms_norm_eps / 4


def test_dead_weights_are_drawn_but_for_those_that_write(wide):
    for name, weight in wide.named_parameters():
        zeros = (weight == 0).float().mean().item()
        if name.split(".")[-2] in OUTPUTS:
            assert zeros > 0.4, name
        else:
            assert zeros < 0.01, name
    dead = wide.model.layers[5].mlp.up_proj.weight
    assert dead.std().item() == pytest.approx(0.02, rel=0.05)


def test_each_seed_draws_its_own_and_leaves_the_global_generator_alone(built_in, wide):
    before = torch.random.get_rng_state()
    other, again = widen(built_in[0], **SMALL, seed=2), widen(built_in[0], **SMALL, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    weights = [model.model.layers[5].mlp.up_proj.weight for model in (wide, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("shape", [(24, 8), (24, 4), (16, 8), (12, 12), (12, 6)])
def test_every_head_keeps_its_key_value_head(shape):
    heads, copies = head_places(6, 2, *shape)
    assert len(set(heads)) == 6
    group = shape[0] // shape[1]
    assert [dict(copies)[head // group] for head in heads] == [0, 0, 0, 1, 1, 1]


def test_a_shape_without_room_is_refused(built_in):
    with pytest.raises(ValueError, match="no room"):
        widen(built_in[0], **{**SMALL, "num_heads": 4, "num_key_value_heads": 4})
    with pytest.raises(ValueError, match="hidden_size=256"):
        widen(built_in[0], **{**SMALL, "hidden_size": 256})


def test_named_shapes_are_as_large_as_they_say():
    def parameters(hidden_size, num_layers, num_heads, num_key_value_heads, intermediate_size):
        attention = 2 * 64 * hidden_size * (num_heads + num_key_value_heads)
        return 2048 * hidden_size + num_layers * (attention + 3 * hidden_size * intermediate_size)

    assert parameters(**SHAPES["0.3b"]) == pytest.approx(0.3e9, rel=0.05)
    assert parameters(**SHAPES["1b"]) == pytest.approx(1e9, rel=0.05)
