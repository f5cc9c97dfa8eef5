"""The hf backend at its edges: faulty rows, limits of position, refusals, and memory that comes back."""

import pytest
import torch

from specdec import Generator, ModelError, RequestError
from tests.support import families
from tests.support.plain import decode_model

LLAMA = families.TREES["llama"]


def test_a_row_of_nans_does_not_poison_the_rows_that_follow_it() -> None:
    model = families.make(*LLAMA)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    prompts = [[5] * 60, [7] * 50, [1, 2, 3], [2, 3, 9, 10]]
    for max_batch_size in (2, 4):
        generator = Generator(model, proposer="autoregressive", max_batch_size=max_batch_size)
        results = generator.generate(prompts, max_new_tokens=12, suppress_tokens=[7])
        assert [result.finish_reason for result in results] == ["length", "error", "length", "length"]
        for prompt, result in zip(prompts, results, strict=True):
            if result.error is None:
                alone = generator.generate(prompt, max_new_tokens=12, suppress_tokens=[7])
                assert alone.token_ids == result.token_ids


def test_a_processor_may_write_in_place() -> None:
    def forbid_five(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 5] = -torch.inf
        return scores

    generator = Generator(families.make(*LLAMA), proposer="prompt_lookup")
    result = generator.generate([1, 2, 3], max_new_tokens=30, logits_processor=forbid_five)
    assert 5 not in result.token_ids
    assert result.token_ids == generator.generate([1, 2, 3], max_new_tokens=30, suppress_tokens=[5]).token_ids


def test_rotary_frequencies_that_switch_limit_the_positions() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    arguments = {**families.SMALL, "sliding_window": None, "original_max_position_embeddings": 40}
    model = families.make(
        "Phi3Config", {**arguments, "rope_parameters": {**rope, "original_max_position_embeddings": 40}}
    )
    generator = Generator(model, proposer="jacobi")
    assert len(generator.generate([1, 2, 3], max_new_tokens=38).token_ids) == 38
    with pytest.raises(RequestError, match="would need 41 positions, but the model supports 40"):
        generator.generate([1, 2, 3], max_new_tokens=39)


@pytest.mark.parametrize("backend", ["hf", "static"])
@pytest.mark.parametrize("proposer", ["prompt_lookup:min_ngram=1", "lookahead:N=4,W=5,G=5", "jacobi:n=4"])
def test_rotary_frequencies_that_grow_with_the_text_are_the_original_ones_up_to_the_limit(
    backend: str, proposer: str
) -> None:
    """Beyond it, transformers computes new frequencies for each length, also for keys that are cached already."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    kind, options = families.TREES["llama"][:2]
    model, other = (
        families.make(kind, {**options, "max_position_embeddings": 48, "rope_parameters": rope}) for _ in range(2)
    )
    prompt = [*range(1, 16), *range(1, 16)]

    def beyond_the_limit() -> None:
        """Leaves the model with frequencies of another length."""
        model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)

    beyond_the_limit()
    generator = Generator(model, proposer=proposer, backend=backend)
    beyond_the_limit()
    result = generator.generate(prompt, max_new_tokens=19, eos_token_id=())
    assert list(result.token_ids) == decode_model(other, prompt, 19, None, eos=())
    with pytest.raises(RequestError, match="would need 49 positions, but the model supports 48"):
        generator.generate(prompt, max_new_tokens=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dynamic_masks_limit_the_positions(dtype: torch.dtype) -> None:
    model = families.make("DogeConfig", {**families.SMALL, "keep_window_size": 60}).to(dtype)
    generators = [Generator(model, proposer=name, numerics="fast") for name in ("autoregressive", "jacobi")]
    texts = [list(made.generate([1, 2, 3, 1, 2], max_new_tokens=55).token_ids) for made in generators]
    expected = decode_model(model, [1, 2, 3, 1, 2], 55, None, eos=())
    assert [text[:4] for text in texts] == [expected[:4]] * 2
    assert dtype != torch.float32 or texts == [expected] * 2  # in bfloat16 near-ties may fall otherwise
    with pytest.raises(RequestError, match="the model supports 60"):
        Generator(model).generate([1, 2, 3, 1, 2], max_new_tokens=57)


def test_moshis_text_beyond_its_window_is_that_of_its_forward_without_a_cache() -> None:
    """transformers' cache keeps a window that the model's masks don't have; the documentation says so."""
    model = families.make(
        "MoshiConfig", {**families.SMALL, "num_key_value_heads": 4, "head_dim": 8, "ffn_dim": 64, "sliding_window": 8}
    )
    prompt = torch.tensor([[5, 9, 2, 7, 1, 8, 3]])
    call = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    cached, uncached = (model.generate(prompt, **call, use_cache=use)[0, 7:].tolist() for use in (True, False))
    assert cached != uncached
    for proposer in ("autoregressive", "prompt_lookup:min_ngram=1"):
        result = Generator(model, proposer=proposer).generate(prompt[0], max_new_tokens=24)
        assert list(result.token_ids) == uncached


@pytest.mark.parametrize("name", ["gpt2", "opt", "mpt"])
def test_text_may_fill_all_positions_and_no_more(name: str) -> None:
    model = families.make(*{**families.TREES, **families.CHAINS}[name])
    for proposer in ("lookahead:N=4,W=6,G=6", "jacobi"):
        generator = Generator(model, proposer=proposer)
        settings = {"max_new_tokens": 13, "eos_token_id": ()}
        prompts = [list(range(1, 96)) + list(range(1, 95)) + list(range(1, 56)), [4, 5]]
        assert len(prompts[0]) == 244
        results = generator.generate(prompts, **settings)
        for prompt, result in zip(prompts, results, strict=True):
            tokens = list(prompt)
            for _ in range(13):
                tokens.append(int(families.plain_logits(model, tokens)[-1].argmax()))
            assert list(result.token_ids) == tokens[len(prompt) :]
        with pytest.raises(RequestError, match="supports 256"):
            generator.generate([*prompts[0], 1], **settings)


def test_a_model_without_a_head_is_refused() -> None:
    from transformers import AutoModel, LlamaConfig

    with pytest.raises(ModelError, match="no language-model head: load it with AutoModelForCausalLM"):
        Generator(AutoModel.from_config(LlamaConfig(**families.SMALL)).eval())


def test_memory_is_a_rows_own_and_comes_back() -> None:
    generator = Generator(families.make(*LLAMA), proposer="autoregressive")
    alone = generator.generate([1, 2, 3], max_new_tokens=20).stats.peak_cache_bytes
    batch = [result.stats.peak_cache_bytes for result in generator.generate([[1, 2, 3]] * 8, max_new_tokens=20)]
    assert batch == [alone] * 8
    assert generator.generate([1, 2, 3], max_new_tokens=20).stats.peak_cache_bytes == alone
    heads, width, layers = 2, 8, 2
    assert alone >= 2 * layers * heads * width * 4 * 23, "keys and values of 23 float32 tokens at the least"
