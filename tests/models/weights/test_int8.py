"""Products of 8-bit integers, against the same rounding in float64, and what a generator says of them."""

import pytest
import torch
from transformers import PreTrainedModel

from specdec import Generator, RequestError, demo
from specdec.apps.auditing import audit
from specdec.models.weights.int8 import Int8Kernel
from specdec.runtime.binding import Binding
from tests.support import families

KERNEL = Int8Kernel()
PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]
DTYPES = torch.float32, torch.bfloat16
pytestmark = pytest.mark.skipif(
    bool(KERNEL.why_not(torch.float32, torch.device("cpu"))), reason="this machine has no such products"
)


def normal(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(numbers: torch.Tensor) -> torch.Tensor:
    """Each row in steps of a 127th of its greatest number."""
    scale = numbers.double().abs().amax(-1, keepdim=True) / 127
    return (numbers.double() / scale).round() * scale


@torch.inference_mode()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(torch.tensor([PROMPT])).logits


@pytest.fixture
def model() -> PreTrainedModel:
    return families.make("LlamaConfig", {**families.SMALL, "hidden_size": 64, "intermediate_size": 128})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 5, 33])
def test_products_are_those_of_rounded_rows_and_weights(dtype: torch.dtype, num_rows: int) -> None:
    weight, rows, bias = normal(72, 200).to(dtype), normal(num_rows, 200, seed=4).to(dtype), normal(72).to(dtype)
    product = KERNEL.multiply(rows, KERNEL.pack(weight), bias)
    expected = rounded(rows) @ rounded(weight).T + bias.double()
    assert product.dtype == dtype
    # A number that lies between two steps may go to either.
    step = rows.double().abs().amax() / 127 * weight.double().abs().amax()
    allowed = expected.abs() * torch.finfo(dtype).eps + 2 * step + 1e-5
    assert ((product.double() - expected).abs() <= allowed).all()
    assert (product.double() - expected).abs().median() <= expected.abs().median() * torch.finfo(dtype).eps + 1e-5


@pytest.mark.parametrize("largest", [1.0, 300.0])
def test_the_error_is_no_larger_than_is_said_and_not_far_below(largest: float) -> None:
    weight, rows = normal(72, 200), normal(9, 200, seed=4)
    weight[5, 7], rows[3, 2] = largest, -largest
    error = (KERNEL.multiply(rows, KERNEL.pack(weight), None).double() - rows.double() @ weight.double().T).abs()
    bound = KERNEL.largest_error(rows, weight)
    assert (error <= bound).all()
    assert (bound / error.clamp_min(1e-9)).median() < 200


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_whatever_goes_with_it(dtype: torch.dtype) -> None:
    packed = KERNEL.pack(normal(96, 160).to(dtype))
    rows = normal(40, 160, seed=5).mul(torch.logspace(-3, 3, 40)[:, None]).to(dtype)
    whole = KERNEL.multiply(rows, packed, None)
    for first, last in [(0, 1), (7, 8), (39, 40), (3, 9), (11, 40)]:
        assert torch.equal(KERNEL.multiply(rows[first:last], packed, None), whole[first:last])


def test_zeros_large_and_small_numbers() -> None:
    weight = normal(8, 16)
    weight[2] = 0.0
    sizes = torch.tensor([0.0, 1.0, 1e30, 1e-30])[:, None]
    rows = normal(4, 16) * sizes
    product = KERNEL.multiply(rows, KERNEL.pack(weight), None)
    assert not product[0].any()
    assert not product[:, 2].any()
    assert torch.allclose(product[1:] / sizes[1:], rows[1:] / sizes[1:] @ weight.T, atol=0.3)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_what_is_no_number_spoils_its_own_row_and_cannot_be_held(number: float) -> None:
    weight, rows = normal(8, 16), normal(3, 16)
    packed, rows[1, 4] = KERNEL.pack(weight), number
    product = KERNEL.multiply(rows, packed, None)
    assert not product[1].isfinite().any()
    assert product[[0, 2]].isfinite().all()
    weight[0, 0] = number
    assert not KERNEL.holds(weight)


def test_nobody_gets_it_without_asking_and_who_does_is_told(model: PreTrainedModel) -> None:
    with Generator(model, weights="packed") as lossless:
        assert lossless.weights.kernel in {"fbgemm", "onednn"}
        assert lossless.generate(PROMPT, max_new_tokens=4).lossless
    with pytest.warns(UserWarning, match="with weights='int8' the text is not what the model alone would write: wei"):
        generator = Generator(model, weights="int8")
    assert "lossy, as weights and activations are rounded to 8 bits" in str(generator.weights)
    assert not generator.generate(PROMPT, max_new_tokens=4).lossless


@pytest.mark.filterwarnings("ignore:with weights='int8'")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_strategy_says_what_the_rounded_model_says(model: PreTrainedModel, dtype: torch.dtype) -> None:
    model.to(dtype)
    before = {name: (id(each), each.clone()) for name, each in model.named_parameters()}
    texts = set()
    for proposer in ("autoregressive", "prompt_lookup", "lookahead:N=3,W=3,G=3"):
        with Generator(model, proposer=proposer, weights="int8") as generator:
            assert generator.numerics.is_bit_exact
            texts.add(generator.generate(PROMPT, max_new_tokens=24, eos_token_id=()).token_ids)
            rounded_logits = logits(model)
        assert not torch.equal(rounded_logits, logits(model))
    assert len(texts) == 1
    for name, each in model.named_parameters():
        assert (id(each), True) == (before[name][0], torch.equal(each, before[name][1]))


def test_a_single_row_may_come_without_a_dimension_of_its_own() -> None:
    packed, row = KERNEL.pack(normal(24, 40)), normal(40)
    assert torch.equal(KERNEL.multiply(row, packed, None), KERNEL.multiply(row[None], packed, None)[0])


def test_the_stated_error_holds_where_both_are_rounded_the_same_way() -> None:
    numbers = torch.full((1, 4096), 0.501 / 127)
    numbers[0, 0] = 1.0
    product = KERNEL.multiply(numbers, KERNEL.pack(numbers), None).double()
    error = (product - numbers.double() @ numbers.double().T).abs()
    assert 0.15 < float(error) <= float(KERNEL.largest_error(numbers, numbers))


@pytest.mark.filterwarnings("ignore:with weights='int8'")
def test_an_audit_holds_strategies_against_the_rounded_model(model: PreTrainedModel) -> None:
    with Generator(model, proposer="prompt_lookup", weights="int8") as generator:
        assert not audit(generator, [PROMPT], max_new_tokens=12).defects


@pytest.mark.filterwarnings("ignore:with weights='int8'")
def test_no_other_generator_rounds_the_weights_once_decoding_has_begun(model: PreTrainedModel) -> None:
    generator = Generator(model, weights="stock")
    refused: list[str] = []

    def meanwhile(binding: Binding) -> bool:
        try:
            Generator(model, weights="int8")
        except RequestError as error:
            refused.append(str(error))
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Binding, "is_current", meanwhile)
        assert generator.generate(PROMPT, max_new_tokens=4).lossless
    assert len(refused) == 1
    assert "another generator" in refused[0]


@pytest.mark.filterwarnings("ignore:with weights='int8'")
def test_a_trained_model_whose_rounding_reaches_far_is_exact_all_the_same() -> None:
    model, _ = demo.load()
    with Generator(model, proposer="prompt_lookup", weights="int8") as generator:
        assert str(generator.numerics) == "exact, bit-exact"
        assert generator.shapes.takes_trees
