"""Generators and the weights that they hold: what they decode, share, give back and refuse."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdec import Generator, ModelError, RequestError
from specdec.machine.facts import computes_in_bfloat16
from specdec.models.weights import pack_model
from specdec.models.weights.base import Kernel
from specdec.models.weights.onednn import OneDNNKernel
from specdec.models.weights.packing import packed_weights
from specdec.models.weights.tensor import PackedWeight
from specdec.plugins import registry
from specdec.runtime.lease import WeightsLease
from tests.support import families
from tests.support.plain import decode_model

pytestmark = pytest.mark.skipif(
    bool(OneDNNKernel().why_not(torch.float32, torch.device("cpu"))), reason="oneDNN doesn't serve here"
)
PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]
LOOKAHEAD = "lookahead:N=3,W=3,G=3"


@pytest.fixture
def model() -> PreTrainedModel:
    return families.make(*families.TREES["llama"])


@pytest.fixture
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache folder for a test whose kernels are wrong, so that others don't find the multiples of their rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def parameters_of(model: PreTrainedModel) -> dict[str, tuple[torch.nn.Parameter, torch.Tensor]]:
    return {name: (each, each.detach().clone()) for name, each in model.named_parameters()}


def assert_as_before(model: PreTrainedModel, before: dict[str, tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    for name, (parameter, values) in before.items():
        assert after[name] is parameter
        assert type(parameter) is torch.nn.Parameter
        assert torch.equal(parameter, values)
    assert not [name for name in vars(model) if "packing" in name]


def decoded(generator: Generator, num_tokens: int = 24) -> list[int]:
    return list(generator.generate(PROMPT, max_new_tokens=num_tokens, eos_token_id=()).token_ids)


# Their layers multiply as those of other families do, however their attention differs.
LIKE_OTHERS = {
    "mistral", "mistral-window", "qwen2-window", "qwen3", "gemma2", "gptj", "starcoder2", "olmo2", "cohere2",
}  # fmt: skip


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in LIKE_OTHERS else []) for name in families.TREES],
)
def test_packed_models_write_what_stock_ones_write(family: str) -> None:
    model = families.make(*families.TREES[family])
    expected = decode_model(model, PROMPT, 12, None, eos=())
    with Generator(model, proposer=LOOKAHEAD, weights="onednn") as generator:
        assert generator.weights.num_packed == generator.weights.num_layers
        assert decoded(generator, 12) == expected
        assert decode_model(model, PROMPT, 12, None, eos=()) == expected


def strategies_by_turns() -> Iterator[Any]:
    """Yield each strategy with each dtype, one of the two for the night."""
    for i, proposer in enumerate(["jacobi", "prompt_lookup", LOOKAHEAD]):
        for j, dtype in enumerate([torch.float32, torch.bfloat16]):
            yield pytest.param(proposer, dtype, marks=[pytest.mark.nightly] if (i + j) % 2 else [])


@pytest.mark.parametrize(("proposer", "dtype"), [*strategies_by_turns()])
def test_exact_numerics_hold_on_packed_weights(model: PreTrainedModel, proposer: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not computes_in_bfloat16(torch.device("cpu")):
        pytest.skip("onednn multiplies bfloat16 on other processors")
    model.to(dtype)
    plain = Generator(model, proposer="autoregressive", weights="onednn")
    drafting = Generator(model, proposer=proposer, weights="onednn")
    assert plain.numerics.is_bit_exact
    assert decoded(plain, 32) == decoded(drafting, 32)


def test_closing_gives_the_model_back(model: PreTrainedModel) -> None:
    before = parameters_of(model)
    generator = Generator(model, weights="packed")
    assert all(isinstance(layer.mlp.up_proj.weight, PackedWeight) for layer in model.model.layers)
    generator.close()
    assert_as_before(model, before)
    generator.close()
    assert_as_before(model, before)


def test_the_last_of_several_generators_gives_it_back(model: PreTrainedModel) -> None:
    before = parameters_of(model)
    first, second = Generator(model, weights="packed"), Generator(model, proposer="jacobi")
    assert second.weights == first.weights
    first.close()
    assert packed_weights(model)
    assert decoded(second) == decode_model(model, PROMPT, 24, None, eos=())
    second.close()
    assert_as_before(model, before)


def test_a_generator_that_is_gone_holds_nothing(model: PreTrainedModel) -> None:
    before = parameters_of(model)
    first, second = Generator(model, weights="packed"), Generator(model, weights="packed")
    assert decoded(first)
    del first
    gc.collect()
    second.close()
    assert_as_before(model, before)


def test_a_closed_generator_packs_again_when_it_is_used(model: PreTrainedModel) -> None:
    generator = Generator(model, weights="packed")
    generator.close()
    assert decoded(generator) == decode_model(model, PROMPT, 24, None, eos=())
    assert packed_weights(model)


@pytest.mark.parametrize(
    ("first", "second"), [("packed", "stock"), ("stock", "packed"), ("onednn", "fbgemm"), ("auto", "packed")]
)
def test_two_generators_that_contradict_each_other(model: PreTrainedModel, first: str, second: str) -> None:
    generator = Generator(model, weights=first)
    before = generator.weights
    with pytest.raises(RequestError, match=r"another generator of this model has them .*close\(\) that one"):
        Generator(model, weights=second)
    assert decoded(generator) == decode_model(model, PROMPT, 24, None, eos=())
    assert generator.weights == before
    generator.close()
    if second != "fbgemm":  # which can't represent the weights
        assert bool(Generator(model, weights=second).weights.kernel) == (second == "packed")


def test_a_generator_that_was_dropped_in_a_cycle_holds_nothing(model: PreTrainedModel) -> None:
    box: list[object] = [Generator(model, weights="packed")]
    box.append(box)
    del box
    assert not Generator(model, weights="stock").weights.kernel


def test_a_layout_that_another_generator_shares_meanwhile_stays(model: PreTrainedModel) -> None:
    first, second = (WeightsLease("packed", {"onednn": OneDNNKernel()}) for _ in range(2))
    layouts = first.layouts(model, {})
    weights = next(layouts)
    assert second.acquire(model) == weights
    assert not list(layouts)
    assert len(packed_weights(model)) == weights.num_packed
    first.release()
    assert packed_weights(model)
    second.release()
    assert not packed_weights(model)


def test_auto_goes_along_with_what_another_asked_for(model: PreTrainedModel) -> None:
    stock = Generator(model, weights="stock")
    assert Generator(model).weights == stock.weights
    assert str(stock.weights) == "stock: asked for"


def test_auto_leaves_what_fits_in_the_caches(model: PreTrainedModel) -> None:
    assert "caches" in Generator(model).weights.why
    assert not packed_weights(model)


@pytest.mark.parametrize(
    ("weights", "dtype", "said"),
    [
        ("packed", torch.float64, "onednn: it multiplies float32 and bfloat16, not float64"),
        ("packed", torch.float64, "fbgemm: it has no way for float64"),
        ("onednn", torch.float16, "for model.layers.0.self_attn.q_proj in float16: onednn: it multiplies float32"),
        ("fbgemm", torch.float32, "fbgemm: model.layers.0.self_attn.q_proj has numbers in float32 that it doesn't"),
    ],
)
def test_no_kernel_serves(model: PreTrainedModel, weights: str, dtype: torch.dtype, said: str) -> None:
    model.to(dtype)
    before = parameters_of(model)
    with pytest.raises(ModelError, match="use weights='auto' or 'stock'") as refused:
        Generator(model, weights=weights)
    assert f"weights={weights!r} is unavailable on" in str(refused.value)
    assert said in str(refused.value)
    assert_as_before(model, before)


def test_an_unknown_name(model: PreTrainedModel) -> None:
    with pytest.raises(RequestError, match="must be one of auto, packed, stock, fbgemm, int8, onednn"):
        Generator(model, weights="fast")


class Failing(OneDNNKernel):
    """A kernel that gives up on its fifth matrix."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.left = error, 5

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        if len(weight) > 1:
            self.left -= 1
        if not self.left:
            raise self.error
        return super().pack(weight)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (MemoryError(), ModelError), (RuntimeError("no"), ModelError)],
)
def test_what_stops_in_the_middle_leaves_the_model_whole(
    model: PreTrainedModel, error: BaseException, raised: type[BaseException]
) -> None:
    before = parameters_of(model)
    with pytest.raises(raised):
        WeightsLease("failing", {"failing": Failing(error)}).acquire(model)
    assert_as_before(model, before)


def test_a_model_that_is_refused_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.make(*families.TREES["llama"])
    before = parameters_of(model)
    monkeypatch.setattr("specdec.runtime.attempts.Attempt.open", _refuse)
    with pytest.raises(ModelError, match="numerics='exact' is unavailable here: it is not to be had"):
        Generator(model, weights="packed", numerics="exact")
    assert_as_before(model, before)


def _refuse(*given: object) -> None:
    raise ModelError("it is not to be had")


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.usefixtures("no_findings")
def test_auto_falls_back_to_stock_products_where_only_those_are_exact(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_model, "_LEAST_BYTES", 0)
    monkeypatch.setattr(OneDNNKernel, "multiply", dependent)
    generator = Generator(model)
    assert generator.numerics.is_bit_exact
    assert "stock: " in str(generator.weights)
    assert "onednn: a row of a" in str(generator.weights)


CHANGES: dict[str, Callable[[PreTrainedModel], object]] = {
    "cast": lambda model: model.bfloat16(),
    "layer replaced": lambda model: setattr(model.model.layers[0].mlp, "up_proj", torch.nn.Linear(32, 64, bias=False)),
    "weight replaced": lambda model: setattr(
        model.model.layers[1].mlp.up_proj, "weight", torch.nn.Parameter(torch.randn(64, 32))
    ),
    "head written by a view": lambda model: model.lm_head.weight.data[:40].mul_(-1.0),
    "loaded by assignment": lambda model: model.load_state_dict(
        families.make(*families.TREES["llama"]).state_dict(), assign=True
    ),
}
WRITES: dict[str, Callable[[PreTrainedModel], object]] = {
    "weight written": lambda model: model.model.layers[1].mlp.up_proj.weight.data.mul_(-1.0),
    "head written": lambda model: model.lm_head.weight.data.mul_(-1.0),
    "loaded": lambda model: model.load_state_dict(families.make(*families.TREES["llama"]).state_dict()),
    "all at once": lambda model: torch._foreach_mul_(list(model.parameters()), -1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_a_model_that_changes_is_packed_again(
    model: PreTrainedModel, change: Callable[[PreTrainedModel], object]
) -> None:
    generator = Generator(model, proposer=LOOKAHEAD, weights="packed")
    decoded(generator)
    with torch.no_grad():
        change(model)
    found = decoded(generator)
    generator.close()
    assert not packed_weights(model)
    assert found == decode_model(model, PROMPT, 24, None, eos=())


@pytest.mark.parametrize("write", WRITES.values(), ids=[*WRITES])
def test_packed_weights_are_read_only_until_the_generator_is_closed(
    model: PreTrainedModel, write: Callable[[PreTrainedModel], object]
) -> None:
    generator = Generator(model, proposer=LOOKAHEAD, weights="packed")
    decoded(generator)
    with torch.no_grad(), pytest.raises((ModelError, RuntimeError), match=r"generator\.close\(\)"):
        write(model)
    generator.close()
    with torch.no_grad():
        write(model)
    assert decoded(generator) == decode_model(model, PROMPT, 24, None, eos=())


def test_transformers_own_loop_and_files_go_on(model: PreTrainedModel, tmp_path: Path) -> None:
    expected = decode_model(model, PROMPT, 24, None, eos=())
    with Generator(model, weights="packed") as generator:
        written = model.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None)
        assert written[0, len(PROMPT) :].tolist() == expected == decoded(generator)
        model.save_pretrained(tmp_path)
        assert decoded(generator) == expected
        assert packed_weights(model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_a_deep_copy_goes_its_own_way(model: PreTrainedModel) -> None:
    with Generator(model, weights="packed") as generator:
        copied = copy.deepcopy(model)
        expected = decoded(generator)
    with Generator(copied, weights="stock") as generator:
        assert not packed_weights(copied)
        assert decoded(generator) == expected


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft asks for it
def test_an_adapter_on_a_packed_model(model: PreTrainedModel) -> None:
    peft = pytest.importorskip("peft")
    with Generator(model, proposer=LOOKAHEAD, weights="packed") as generator:
        decoded(generator)
        torch.manual_seed(0)
        config = peft.LoraConfig(target_modules=["q_proj", "up_proj", "lm_head"], init_lora_weights=False, r=4)
        adapted = peft.get_peft_model(model, config).eval()
        expected = decode_model(model, PROMPT, 24, None, eos=())
        assert decoded(generator) == expected
        with pytest.raises(ModelError, match=r"generator\.close\(\)"):
            adapted.merge_and_unload()
    merged = adapted.merge_and_unload()
    with Generator(merged, proposer=LOOKAHEAD, weights="packed") as generator:
        assert decoded(generator) == decode_model(merged, PROMPT, 24, None, eos=()) == expected


def test_draft_models_are_packed_and_given_back(model: PreTrainedModel) -> None:
    from specdec import DraftModelProposer

    drafter = families.make(*families.TREES["llama"])
    before = parameters_of(drafter)
    expected = decode_model(model, PROMPT, 24, None, eos=())
    with Generator(model, proposer=DraftModelProposer(model=drafter), weights="packed") as generator:
        assert decoded(generator) == expected
    assert_as_before(drafter, before)
    with Generator(model, proposer=DraftModelProposer(layers=1), weights="packed") as generator:
        assert decoded(generator) == expected
        assert packed_weights(model)
    assert not packed_weights(model)


@pytest.mark.parametrize("weights", ["stock", "packed"])
def test_draft_models_of_calls_long_gone_are_let_go(model: PreTrainedModel, weights: str) -> None:
    from specdec import DraftModelProposer

    generator = Generator(model, proposer="autoregressive", numerics="fast", weights=weights)
    drafters = []
    for _ in range(5):
        drafter = families.make(*families.TREES["llama"])
        generator.generate(PROMPT, proposer=DraftModelProposer(model=drafter), max_new_tokens=2)
        drafters.append(weakref.ref(drafter))
        del drafter
    gc.collect()
    assert [drafter() is not None for drafter in drafters] == [False, False, False, True, True]
    generator.close()
    gc.collect()
    assert not [drafter for drafter in drafters if drafter() is not None]


def test_a_draft_model_is_given_back_by_the_last_strategy_that_drafts_with_it(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec import DraftModelProposer

    monkeypatch.setattr(pack_model, "_LEAST_BYTES", 0)
    drafter, other = (families.make(*families.TREES["llama"]) for _ in range(2))
    before, before_other = parameters_of(drafter), parameters_of(other)
    lone = Generator(drafter, weights="packed")
    generator = Generator(model, proposer=DraftModelProposer(model=drafter), numerics="fast", weights="packed")
    lone.close()
    assert packed_weights(drafter)
    for drafting, num_tokens in ((drafter, 2), (other, 2), (other, 3), (drafter, 3), (model, 2), (model, 3)):
        proposer = DraftModelProposer(model=drafting, num_tokens=num_tokens)
        generator.generate(PROMPT, proposer=proposer, max_new_tokens=2)
        assert packed_weights(drafting)
    assert_as_before(other, before_other)
    assert packed_weights(drafter)
    assert packed_weights(model)
    generator.close()
    assert_as_before(drafter, before)
    assert not packed_weights(model)


@pytest.fixture
def toy() -> Any:
    from specdec import ToyModel

    return ToyModel.random(vocab_size=5)


def test_models_without_layers_of_torch(toy: Any) -> None:
    assert str(Generator(toy).weights) == "stock: backend toy lays them out itself"
    assert Generator(toy).weights.engine == "toy"
    with pytest.raises(ModelError, match="backend toy lays them out itself"):
        Generator(toy, weights="packed")


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.usefixtures("no_findings")
def test_exact_numerics_on_stock_products_where_no_kernel_has_them(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_model, "_LEAST_BYTES", 0)
    monkeypatch.setattr(OneDNNKernel, "multiply", dependent)
    with Generator(model, numerics="exact", weights="auto") as generator:
        assert not generator.weights.kernel
    with pytest.raises(ModelError, match="numerics='exact' is unavailable here"):
        Generator(model, numerics="exact", weights="packed")
    with Generator(model, weights="packed") as generator:
        assert (generator.numerics.mode, generator.weights.kernel) == ("fast", "onednn")
    with Generator(model, weights="packed", numerics="fast") as held, Generator(model) as generator:
        assert generator.weights == held.weights
        assert generator.numerics.mode == "fast"


MULTIPLY = OneDNNKernel.multiply


def dependent(self: OneDNNKernel, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """A product in which a row's last bits depend on how many go with it."""
    product = MULTIPLY(self, rows, packed, bias)
    return product * (1.0 + 2.0**-20 * (rows.numel() // rows.shape[-1]))


class Raising(OneDNNKernel):
    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError("no such instruction\nhere")


class Wrong(OneDNNKernel):
    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        return super().multiply(rows, packed, bias) * 1.01


class Forgetful(OneDNNKernel):
    def unpack(self, packed: Any) -> torch.Tensor:
        return super().unpack(packed).bfloat16().float()


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (Raising(), "it raised RuntimeError: no such instruction"),
        (Wrong(), "its product with model.layers.0.self_attn.q_proj is wrong"),
        (Forgetful(), "it doesn't unpack model.layers.0.self_attn.q_proj to the same bits"),
    ],
)
def test_a_kernel_that_fails_is_not_used(model: PreTrainedModel, kernel: Kernel, said: str) -> None:
    before = parameters_of(model)
    with pytest.raises(ModelError, match=said):
        WeightsLease("packed", {"failing": kernel}).acquire(model)
    assert_as_before(model, before)
    weights = WeightsLease("packed", {"failing": kernel, "onednn": OneDNNKernel()}).acquire(model)
    assert weights.kernel == "onednn"
    assert f"not by failing: {said}" in str(weights)


class Short(OneDNNKernel):
    """Fails as torch does without memory: in the n-th packing, and in one unpacking."""

    def __init__(self, packings: int, unpackings: int = 0) -> None:
        self.left = {"pack": packings, "unpack": unpackings}

    def _count(self, what: str) -> None:
        self.left[what] -= 1
        if self.left[what] == 0:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 113246208 bytes.")

    def pack(self, matrix: torch.Tensor) -> Any:
        self._count("pack")
        return super().pack(matrix)

    def unpack(self, packed: Any) -> torch.Tensor:
        self._count("unpack")
        return super().unpack(packed)


@pytest.fixture
def _no_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is too small for "auto"."""
    monkeypatch.setattr(pack_model, "_LEAST_BYTES", 0)


@pytest.mark.parametrize("packings", [1, 2, 6])  # the first is a trial
@pytest.mark.usefixtures("_no_least")
def test_without_memory_to_pack_the_weights_are_stock_with_the_reason(model: PreTrainedModel, packings: int) -> None:
    before = parameters_of(model)
    lease = WeightsLease("auto", {"short": Short(packings)})
    weights = lease.acquire(model)
    assert (weights.kernel, weights.is_fallback) == ("", True)
    assert "memory" in str(weights)
    lease.release()
    assert_as_before(model, before)
    with pytest.raises(ModelError, match=r"weights='packed' is unavailable on .* memory"):
        WeightsLease("packed", {"short": Short(packings)}).acquire(model)
    assert_as_before(model, before)


@pytest.mark.usefixtures("_no_least")
def test_without_memory_to_pack_a_generator_decodes_and_notes_it(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decode_model(model, PROMPT, 24, None, eos=())
    monkeypatch.setattr(registry.Registry, "kernels", lambda _: {"short": Short(4)})
    result = Generator(model).generate(PROMPT, max_new_tokens=24, eos_token_id=())
    assert list(result.token_ids) == expected
    assert "weights stock: short: memory ran out while packing" in result.notes


@pytest.mark.usefixtures("_no_least")
def test_without_memory_to_unpack_a_weight_it_stays_packed_and_right(model: PreTrainedModel) -> None:
    expected = decode_model(model, PROMPT, 24, None, eos=())
    lease = WeightsLease("packed", {"short": Short(10**9, unpackings=4)})
    lease.acquire(model)
    with pytest.warns(UserWarning, match="memory ran out: 1 weight couldn't be unpacked"):
        lease.release()
    assert len(packed_weights(model)) == 1
    assert decode_model(model, PROMPT, 24, None, eos=()) == expected
    WeightsLease("packed", {"short": Short(10**9)}).acquire(model)  # it is unpacked now, and packed again
    assert len(packed_weights(model)) > 1


def test_parameters_that_something_refers_to_stay_and_come_back_dense(model: PreTrainedModel) -> None:
    watched, hooked = model.model.layers[0].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight
    reference, handle = weakref.ref(watched), hooked.register_hook(lambda gradient: gradient)
    generator = Generator(model, weights="packed")
    assert generator.weights.num_packed == generator.weights.num_layers - 2
    assert {type(watched), type(hooked)} == {torch.nn.Parameter}
    assert reference() is watched
    expected, late = decode_model(model, PROMPT, 24, None, eos=()), weakref.ref(model.lm_head.weight)
    generator.close()
    assert not packed_weights(model)
    assert isinstance(late(), PackedWeight)
    assert decode_model(model, PROMPT, 24, None, eos=()) == expected == decoded(generator)
    handle.remove()


def test_weights_that_a_profiler_knows_of_stay_as_they_are_and_come_back_dense() -> None:
    model = families.make(*families.TREES["starcoder2"])
    weight = model.get_input_embeddings().weight
    assert weight is model.get_output_embeddings().weight  # packed, and looked up, which the profiler sees
    before = parameters_of(model)
    expected = decode_model(model, PROMPT, 24, None, eos=())
    known = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
    with Generator(model, weights="packed") as generator, known:
        assert decoded(generator) == expected
    assert type(weight) is PackedWeight
    assert not packed_weights(model)
    assert decode_model(model, PROMPT, 24, None, eos=()) == expected
    del known
    gc.collect()
    with Generator(model, weights="packed") as generator:
        assert weight.is_packed
        assert decoded(generator) == expected
    assert_as_before(model, before)


def test_what_hangs_on_parameters_goes_along(model: PreTrainedModel) -> None:
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.tag = "kept"
    generator = Generator(model, weights="packed")
    assert weight.tag == "kept"
    weight.grad, weight.late = torch.ones_like(weight.unpacked()), "kept, too"
    generator.close()
    assert (weight.tag, weight.late) == ("kept", "kept, too")
    assert weight.grad is not None
    assert weight.requires_grad
    assert "matrix" not in vars(weight)


def test_weights_packed_and_given_back_in_inference_mode_can_be_trained(model: PreTrainedModel) -> None:
    for gives_back in (False, True):
        with torch.inference_mode():
            generator = Generator(model, weights="packed")
            decoded(generator)
            if gives_back:
                generator.close()
        model(torch.tensor([PROMPT])).logits.sum().backward()
        with nullcontext() if gives_back else pytest.raises(ModelError, match="read-only"):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        model.zero_grad()


def test_closing_while_a_stream_is_open_gives_back_at_its_end(model: PreTrainedModel) -> None:
    expected = decode_model(model, PROMPT, 24, None, eos=())
    generator = Generator(model, proposer=LOOKAHEAD, weights="packed")
    stream = generator.stream(PROMPT, max_new_tokens=24, eos_token_id=())
    tokens = list(next(stream).token_ids)
    generator.close()
    assert packed_weights(model)
    assert tokens + [token for chunk in stream for token in chunk.token_ids] == expected
    assert not packed_weights(model)


def test_the_first_result_says_what_was_done(model: PreTrainedModel) -> None:
    with Generator(model, weights="packed") as generator:
        first, second = (generator.generate(PROMPT, max_new_tokens=1) for _ in range(2))
        assert first.notes[0] == f"weights {generator.weights}"
    assert not [note for note in second.notes if "weights" in note]
