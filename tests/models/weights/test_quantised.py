"""Quantised models decode what they themselves say: layers made here, and those of transformers' quantisers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel, QuantoConfig, TorchAoConfig

from specdec import Generator, ModelError
from specdec.models.weights.layers import is_quantised
from specdec.models.weights.onednn import OneDNNKernel
from specdec.runtime.probes.products import probe_products
from tests.support import families
from tests.support.plain import decode_model

PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]
DRAFTING = "prompt_lookup", "lookahead:N=3,W=3,G=3", "jacobi"
ARGUMENTS = {**families.SMALL, "hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": False}


class Int8Layer(torch.nn.Module):
    """A linear layer of int8 numbers, which it multiplies as floating ones."""

    def __init__(self, plain: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        scale = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.weight = torch.nn.Parameter((plain.weight.detach() / scale).round().to(torch.int8).T, requires_grad=False)

    def dense(self) -> torch.Tensor:
        return self.weight.T.to(self.scale.dtype) * self.scale

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self.dense())


class Int8Embedding(torch.nn.Module):
    """An embedding of int8 numbers, a column for each token."""

    def __init__(self, plain: torch.nn.Embedding) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(plain.weight.detach().mul(32.0).to(torch.int8).T, requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight.T[ids].float() / 32.0


class Sensitive(Int8Layer):
    """A layer whose code can't be run in inference mode."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if torch.is_inference_mode_enabled():
            raise RuntimeError("not in inference mode")
        return super().forward(rows)


class Mixing(Int8Layer):
    """A layer that rounds columns of small numbers, as long as no row has a large one there."""

    large = 4.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        is_large = (rows.abs() >= self.large).flatten(0, -2).any(0)
        return super().forward(torch.where(is_large, rows, rows.mul(64.0).round().div(64.0)))


class Turning(Int8Layer):
    """A layer that the last bit of its input turns, with rare tokens, as where a number is rounded either way."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        is_odd = rows.contiguous().view(torch.int32).sum(-1, keepdim=True) % 2 == 1
        return super().forward(torch.where(is_odd & (rows[..., :1] > 2.0), -rows, rows))


class Unnamed(torch.nn.Module):
    """A layer whose numbers have other names than an ordinary layer's."""

    def __init__(self, plain: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.scales = torch.nn.Parameter(plain.weight.detach().abs().amax(1, keepdim=True) / 127, requires_grad=False)
        self.register_buffer("qweight", (plain.weight.detach() / self.scales).round().to(torch.int8))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self.qweight * self.scales)


class Late(Int8Layer):
    """A layer that is made of its stored numbers by the model's first run, and can't be run before."""

    made: torch.Tensor | None = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.made is not None
        return linear(rows, self.made)


def quantised(layer: Any = Int8Layer, dtype: torch.dtype = torch.float32, but: str = "") -> PreTrainedModel:
    """A tiny model with layers of a kind, but for those of a name."""
    model = families.make("LlamaConfig", ARGUMENTS).to(dtype)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and not (but and but in name):
            model.set_submodule(name, layer(module))
    return model


def loaded(config: Any, folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The tiny model as transformers loads it with a quantiser."""
    families.make("LlamaConfig", ARGUMENTS).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=dtype).eval()


def decoded(generator: Generator, **settings: Any) -> list[int]:
    return list(generator.generate(PROMPT, max_new_tokens=24, eos_token_id=(), **settings).token_ids)


def assert_lossless(model: PreTrainedModel, weights: str = "auto") -> None:
    """Every strategy writes what plain decoding writes, greedily and by a seed, and the model is left as it was."""
    before = {name: (id(each), type(each)) for name, each in model.named_parameters()}
    with Generator(model, proposer="autoregressive", weights=weights) as plain:
        assert str(plain.numerics) == "exact, bit-exact"
        greedy, sampled = decoded(plain), decoded(plain, temperature=1.0, seed=3)
        assert len(set(greedy)) > 5
        for proposer in DRAFTING:
            with Generator(model, proposer=proposer, weights=weights) as drafting:
                assert decoded(drafting) == greedy, proposer
                assert decoded(drafting, temperature=1.0, seed=3) == sampled, proposer
        model.set_attn_implementation("specdec_exact")
        own = model.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None)
        assert own[0, len(PROMPT) :].tolist() == greedy
    assert {name: (id(each), type(each)) for name, each in model.named_parameters()} == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [Int8Layer, Sensitive, Unnamed])
def test_layers_of_their_own_code_decode_losslessly(layer: Any, dtype: torch.dtype) -> None:
    assert_lossless(quantised(layer, dtype))


def test_the_self_test_takes_what_the_models_own_rounding_does_behind_a_long_context() -> None:
    model = quantised()
    model.model.layers[1].self_attn.v_proj = Turning(torch.nn.Linear(64, 32, bias=False))
    assert Generator(model).numerics.is_bit_exact


def test_layers_that_the_first_run_makes_can_be_trained_afterwards() -> None:
    model = quantised(Late)
    layers = [module for module in model.modules() if isinstance(module, Late)]

    def make(*_: object) -> None:
        for layer in layers:
            layer.made = layer.dense() if layer.made is None else layer.made

    model.register_forward_pre_hook(make)
    assert_lossless(model)
    assert not any(layer.made is None or layer.made.is_inference() for layer in layers)


def test_a_head_and_embeddings_may_keep_their_weights_in_any_shape() -> None:
    model = quantised()
    model.set_input_embeddings(Int8Embedding(model.get_input_embeddings()))
    assert model.lm_head.weight.shape == (64, families.VOCAB)
    assert Generator(model).vocab_size == families.VOCAB
    assert decoded(Generator(model)) == decode_model(model, PROMPT, 24, None, eos=())


@pytest.mark.skipif(bool(OneDNNKernel().why_not(torch.float32, torch.device("cpu"))), reason="oneDNN doesn't serve")
def test_what_is_not_quantised_is_packed_beside_the_rest() -> None:
    model = quantised(but="lm_head")
    assert str(Generator(model).weights) == (
        "stock: what isn't quantised is so small that it stays in the processor's caches"
    )
    with Generator(model, weights="onednn") as generator:
        assert str(generator.weights) == (
            "packed by onednn: 1 of 15 linear layers, 14 are quantised and stay unchanged"
        )
    assert_lossless(model, "onednn")


def test_nothing_is_packed_where_all_is_quantised() -> None:
    model = quantised()
    assert str(Generator(model).weights) == "stock: its 15 linear layers are quantised"
    with pytest.raises(ModelError, match="weights='packed' is unavailable: its 15 linear layers are quantised; use"):
        Generator(quantised(), weights="packed")


@pytest.mark.filterwarnings("ignore:decoding with fast")
def test_layers_whose_rows_go_by_their_neighbours_are_named() -> None:
    class Seldom(Mixing):
        large = 20.0

    found = probe_products(quantised(Seldom), 60.0).inexact
    assert found == "a row of a product with a quantised 64 by 64 matrix (Seldom) depends on the number of rows"
    model = quantised(Mixing)
    with pytest.raises(ModelError, match=r"numerics='exact' is unavailable .*quantised 64 by 64 matrix \(Mixing\)"):
        Generator(model, numerics="exact")
    with pytest.raises(ModelError, match=r"can't be decoded losslessly: .* allowed"):
        Generator(model)


def test_layers_that_cannot_be_tried_alone_cost_exact_numerics_and_no_more() -> None:
    class Together(Int8Layer):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            assert rows.count_nonzero() > rows.numel() // 2, "too few numbers"
            return super().forward(rows)

    generator = Generator(quantised(Together))
    assert "its layers can't be tested one by one: AssertionError: too few" in str(generator.numerics)


def test_what_counts_as_quantised() -> None:
    plain = torch.nn.Linear(4, 4)
    short = torch.nn.Linear(4, 4)
    short.weight = torch.nn.Parameter(short.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    wrapped = torch.nn.ModuleDict({"base": plain})
    wrapped.in_features = 4
    assert not any(map(is_quantised, (plain, wrapped, torch.nn.LayerNorm(4), torch.nn.Embedding(4, 4), plain.half())))
    assert all(map(is_quantised, (short, Int8Layer(torch.nn.Linear(4, 4)))))


def torchao(name: str, **options: Any) -> Callable[[], Any]:
    def config() -> Any:
        return TorchAoConfig(getattr(pytest.importorskip("torchao.quantization"), name)(), **options)

    return config


def quanto(weights: str) -> Callable[[], Any]:
    def config() -> Any:
        pytest.importorskip("optimum.quanto")
        return QuantoConfig(weights=weights)

    return config


def bitsandbytes(**options: Any) -> Callable[[], Any]:
    def config() -> Any:
        pytest.importorskip("bitsandbytes")
        return BitsAndBytesConfig(**options)

    return config


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "torchao int8 weights": torchao("Int8WeightOnlyConfig"),
    "torchao int8 weights and rows": torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao with the head": torchao("IntxWeightOnlyConfig", include_input_output_embeddings=True),
    "quanto int8": quanto("int8"),
    "quanto int4": quanto("int4"),
    "bitsandbytes int4": bitsandbytes(load_in_4bit=True, llm_int8_skip_modules=["none"]),
    "bitsandbytes int8": bitsandbytes(load_in_8bit=True, llm_int8_threshold=0.0),
}


@pytest.mark.filterwarnings("default")  # the quantisers'
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=[*CONFIGURATIONS])
def test_models_of_a_quantiser_decode_losslessly(config: Callable[[], Any], dtype: torch.dtype, tmp_path: Path) -> None:
    model = loaded(config(), tmp_path, dtype)
    num_quantised = sum(map(is_quantised, model.modules()))
    assert num_quantised in {14, 15}
    assert Generator(model).weights.num_quantised == num_quantised
    packs_the_head = num_quantised == 14 and not OneDNNKernel().why_not(dtype, torch.device("cpu"))
    assert_lossless(model, "onednn" if packs_the_head else "auto")
