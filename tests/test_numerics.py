"""Exact where a probe passes, fast with a reason elsewhere; results always say which."""

from typing import Any

import pytest
import torch

from specdec import Generator, ModelError, RequestError, ToyModel
from specdec.backends import supported_passes
from specdec.masks.exact import kernel as exact
from specdec.record import StepRecord
from specdec.runtime.probes import examination
from tests.support import families

NOISY = "llama", "qwen3"  # in passes of other shapes; which of them, depends on the processor
PROMPTS = [[5, 9, 2, 7, 1, 8, 3] * 26, [4, 4, 11, 60], list(range(1, 50))]
STRATEGIES = ["lookahead:N=4,W=5,G=5", "prompt_lookup:num_matches=3"]
FAMILIES = "llama", "qwen2-window", "gemma2", "gpt2", "gpt_oss", "mixtral"
CASES = [
    *((name, torch.float32) for name in FAMILIES),
    *((name, torch.bfloat16) for name in FAMILIES[::2]),
    *(pytest.param(name, torch.bfloat16, marks=pytest.mark.nightly) for name in FAMILIES[1::2]),
]


def made(name: str, dtype: torch.dtype) -> Any:
    return families.make(*{**families.TREES, **families.CHAINS}[name]).to(dtype)


def watched(generator: Generator, prompt: list[int], **settings: Any) -> tuple[tuple[int, ...], list[torch.Tensor]]:
    """A text, and the scores of each of its tokens."""
    scores: list[torch.Tensor] = []

    def note(record: StepRecord) -> None:
        scores.extend(shown for outcome in record.outcomes for shown in outcome.scores if shown is not None)

    result = generator.generate(prompt, max_new_tokens=12, keeps_scores=True, on_step=note, **settings)
    assert result.numerics == generator.numerics
    assert len(scores) == len(result.token_ids)
    return result.token_ids, scores


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_text_and_logits_have_the_same_bits_for_every_strategy_or_the_reason_is_given(
    name: str, dtype: torch.dtype
) -> None:
    model = made(name, dtype)
    plain = Generator(model, proposer="autoregressive")
    if not plain.numerics.is_bit_exact:
        assert plain.numerics.mode == "fast"
        assert "have other bits than in plain steps" in plain.numerics.inexact
        return
    assert str(plain.numerics) == "exact, bit-exact"
    expected = [watched(plain, prompt) for prompt in PROMPTS]
    alone = [plain.generate(prompt, max_new_tokens=12, temperature=1.0, seed=3).token_ids for prompt in PROMPTS]
    for strategy in STRATEGIES:
        generator = Generator(model, proposer=strategy, numerics="exact", max_batch_size=3)
        for prompt, (expected_text, expected_scores) in zip(PROMPTS, expected, strict=True):
            text, scores = watched(generator, prompt)
            assert text == expected_text
            assert all(map(torch.equal, scores, expected_scores))
        batch = generator.generate(PROMPTS, max_new_tokens=12, temperature=1.0, seed=3)
        assert [result.token_ids for result in batch] == alone


def test_the_remedy_for_experts_is_one() -> None:
    model = made("mixtral", torch.float32)
    inexact = Generator(model).numerics.inexact
    assert inexact.endswith("; model.set_experts_implementation('batched_mm') may help")
    model.set_experts_implementation("batched_mm")
    assert Generator(model).numerics.is_bit_exact


def test_prompts_in_chunks_and_prompts_that_are_reused_have_the_same_bits() -> None:
    model = made("llama", torch.float32)
    expected = watched(Generator(model, proposer="autoregressive"), PROMPTS[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supported_passes, "PREFILL_CHUNK", 8)
        text, scores = watched(Generator(model, proposer="lookahead:N=4,W=5,G=5"), PROMPTS[0])
    assert text == expected[0]
    assert all(map(torch.equal, scores, expected[1]))


class _Rounded(torch.nn.Linear):
    """A product whose bits depend on how many rows there are, in a way that no padding mends."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) * (1.0 + 1e-6 * rows.shape[-2])


def test_rows_that_depend_on_their_number_are_found_out() -> None:
    model = made("llama", torch.float32)
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = _Rounded
    generator = Generator(model)
    assert not generator.numerics.is_bit_exact
    assert generator.numerics.mode == "fast"
    assert str(generator.numerics).startswith("fast, not bit-exact: exact numerics are unavailable: logits in a tree")
    with pytest.raises(ModelError, match=r"numerics='exact' is unavailable here: .*; use numerics='auto' or 'fast'"):
        Generator(model, numerics="exact")


@pytest.mark.usefixtures("no_findings")
def test_closed_regions_whose_bits_depend_on_the_place_of_a_row_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = exact._closed

    def displaced(rows: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        attended, lse = closed(rows, *others)
        return attended * (1 + 1e-6 * torch.arange(rows.shape[1])[:, None]), lse

    monkeypatch.setattr(exact, "_closed", displaced)
    assert "other bits" in Generator(made("llama", torch.float32)).numerics.inexact


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("llama", torch.float64, "supports bfloat16, float16 and float32, not torch.float64"),
        ("mpt", torch.float32, "this model takes chains only"),
    ],
)
def test_what_exact_attention_does_not_cover_falls_back_by_name(name: str, dtype: torch.dtype, reason: str) -> None:
    generator = Generator(made(name, dtype))
    assert generator.numerics.mode == "fast"
    assert reason in generator.numerics.inexact


def test_fast_numerics_flag_near_ties_and_exact_ones_have_none() -> None:
    made_fast = (Generator(made(name, torch.bfloat16), proposer="prompt_lookup", numerics="fast") for name in NOISY)
    fast = next(each for each in made_fast if each.numerics.noise > 0)
    model, exact = fast.model, Generator(fast.model, proposer="prompt_lookup", numerics="exact")
    assert exact.numerics.noise == 0
    for settings in ({}, {"temperature": 1.0, "seed": 4}):
        results = [fast.generate(prompt, max_new_tokens=40, **settings) for prompt in PROMPTS]
        flagged = {index for result in results for index in result.ties}
        assert flagged <= set(range(40))
        assert 0 < sum(len(result.ties) for result in results) < 120
        assert exact.generate(PROMPTS[0], max_new_tokens=40, **settings).ties == ()
    text = fast.generate(PROMPTS[0], max_new_tokens=40)
    logits = families.plain_logits(model, [*PROMPTS[0], *text.token_ids]).float()[len(PROMPTS[0]) - 1 : -1]
    best = logits.topk(2).values
    margins = (best[:, 0] - best[:, 1]).tolist()
    assert max([margins[index] for index in text.ties], default=0) <= 4 * fast.numerics.noise
    assert all(index in text.ties for index, margin in enumerate(margins) if margin == 0)


@pytest.mark.usefixtures("no_findings")
def test_what_was_found_about_a_model_is_remembered_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, probed = made("llama", torch.float32), []
    probe = examination.probe_products
    monkeypatch.setattr(examination, "probe_products", lambda *given: probed.append(1) or probe(*given))
    generator = Generator(model)
    Generator(model, proposer="jacobi")
    assert len(probed) == 1
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert "when it was probed" in generator.generate([1, 2], max_new_tokens=2).numerics.inexact
        Generator(model)
    finally:
        torch.set_num_threads(before)
    assert len(probed) == 2
    assert generator.numerics.is_bit_exact


def test_numerics_are_checked() -> None:
    with pytest.raises(RequestError, match="numerics='best': it must be one of auto, exact, fast"):
        Generator(ToyModel.random(), numerics="best")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="decides the numerics: give either it or numerics='exact'"):
        Generator(ToyModel.random(), numerics="exact", mask="dense")


def test_a_mask_decides_where_one_is_given() -> None:
    assert Generator(ToyModel.random(), mask="exact").numerics.is_bit_exact
    assert Generator(ToyModel.random(), mask="dense").numerics.mode == "fast"
