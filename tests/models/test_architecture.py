"""Models refused by their configurations: each kind of layer for its own reason, each limit as what it is."""

from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES

from specdec import Generator, ModelError
from specdec.models.architecture import attention_kinds
from tests.support import families
from tests.support.plain import decode_model

DRIVEN = {"full_attention", "sliding_attention", "chunked_attention"}


def described(kinds: list[str]) -> Any:
    config = PreTrainedConfig()
    config.layer_types, config.sliding_window, config.attention_chunk_size = kinds, 8, 8
    return config


@pytest.mark.parametrize("kind", sorted(set(ALLOWED_ATTN_LAYER_TYPES) - DRIVEN - {"moe"}))
def test_every_kind_of_layer_that_transformers_knows_and_specdec_does_not_drive_is_refused_with_its_own_reason(
    kind: str,
) -> None:
    with pytest.raises(ModelError, match=f"its layers of kind {kind} ") as refusal:
        attention_kinds(described([kind, "full_attention"]), "Some model")
    assert "unknown" not in str(refusal.value)
    is_recurrent = kind in {"linear_attention", "hybrid", "hybrid_sliding"}
    assert ("recurrent" in str(refusal.value)) == is_recurrent


def test_a_kind_of_layer_that_nobody_knows_is_refused_as_unknown() -> None:
    with pytest.raises(ModelError, match=r"of kind telepathy \(unknown to specdec\)"):
        attention_kinds(described(["telepathy"]), "Some model")


def test_layers_that_keep_nothing_are_no_kind_of_attention() -> None:
    assert attention_kinds(described(["full_attention", "moe", "mlp"]), "Some model") == {"full_attention": None}


def test_a_model_with_too_few_positions_is_refused_for_just_that() -> None:
    for positions in (8, 10):
        with pytest.raises(ModelError, match=f"has {positions} positions, too few to try it out: specdec needs 11"):
            Generator(families.make("GPT2Config", {**families.GPT, "n_positions": positions}, spread_over=4))


def test_the_least_number_of_positions_is_enough() -> None:
    model = families.make("GPT2Config", {**families.GPT, "n_positions": 11}, spread_over=4)
    text = Generator(model, proposer="jacobi").generate([1, 2, 3], max_new_tokens=8, eos_token_id=()).token_ids
    assert list(text) == decode_model(model, [1, 2, 3], 8, None, eos=())


def test_a_model_without_a_cache_is_refused_for_just_that() -> None:
    with pytest.raises(ModelError, match="has a forward without a key-value cache"):
        Generator(families.make("OpenAIGPTConfig", {**families.GPT}))


def test_models_that_write_their_states_into_containers_of_their_own_are_refused_for_just_that() -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2}
    for name, container in (("Rwkv", "the list of tensors"), ("xLSTM", "an xLSTMCache")):
        config = getattr(transformers, f"{name}Config")(**sizes, **({"num_heads": 2} if name == "xLSTM" else {}))
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        with pytest.raises(ModelError, match=f"writes its recurrent states into {container}"):
            Generator(model)
