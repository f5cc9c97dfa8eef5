"""Models in other libraries' wrappers: the text is that of the model inside with its active adapter, or a refusal."""

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import Generator, ModelError
from specdec.models.unwrapping import unwrapped
from specdec.strategies.draft_model.proposer import DraftModelProposer
from tests.support import families
from tests.support.plain import decode_model

PROMPT = [5, 9, 2, 7, 1, 8, 3, 5, 9, 2]
NUM_NEW = 12
Wrap = Callable[[PreTrainedModel], Any]


def llama() -> PreTrainedModel:
    return families.make(*families.TREES["llama"])


def text_of(generator: Generator) -> list[int]:
    return list(generator.generate(PROMPT, max_new_tokens=NUM_NEW, eos_token_id=()).token_ids)


def compiled(model: PreTrainedModel) -> Any:
    return torch.compile(model, backend="eager")


def averaged(model: PreTrainedModel) -> Any:
    return torch.optim.swa_utils.AveragedModel(model).eval()


@pytest.mark.parametrize(
    "wrap",
    [compiled, torch.nn.DataParallel, averaged, lambda model: compiled(torch.nn.DataParallel(model))],
    ids=["compiled", "DataParallel", "AveragedModel", "compiled DataParallel"],
)
def test_wrappers_that_only_call_their_model_are_unwrapped(wrap: Wrap) -> None:
    expected = decode_model(llama(), PROMPT, NUM_NEW, None, eos=())
    with Generator(wrap(llama()), proposer="prompt_lookup") as generator:
        assert isinstance(generator.model, PreTrainedModel)
        assert text_of(generator) == expected


def test_distributed_data_parallel_is_unwrapped() -> None:
    wrapper = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    torch.nn.Module.__init__(wrapper)  # its own constructor needs a group of processes
    wrapper.module = inner = llama()
    assert unwrapped(wrapper) is inner


def test_a_draft_model_may_be_wrapped_as_well() -> None:
    proposer = DraftModelProposer(model=compiled(llama()), num_tokens=3)
    with Generator(llama(), proposer=proposer) as generator:
        result = generator.generate(PROMPT, max_new_tokens=NUM_NEW, eos_token_id=())
    assert list(result.token_ids) == decode_model(llama(), PROMPT, NUM_NEW, None, eos=())
    assert result.stats.tokens_per_step > 2  # it is the target itself


class Holder(torch.nn.Module):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.pretrained_model = model


class Pipeline:
    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.tokenizer = model, object()


class FullyShardedDataParallel(Holder):
    """Of the name of torch's, which needs a group of processes."""


@pytest.mark.parametrize(
    ("wrap", "remedy"),
    [
        (Holder, r"it holds a LlamaForCausalLM: pass that, by Generator\(it\.pretrained_model\)"),
        (Pipeline, r"it holds a LlamaForCausalLM: pass that, by Generator\(it\.model, it\.tokenizer\)"),
        (FullyShardedDataParallel, "its weights are sharded and flattened: save its full state dict"),
        (lambda _: torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), "pass the model that it was traced from"),
        (lambda _: object(), "pass a transformers causal language model"),
    ],
    ids=["module", "pipeline", "sharded", "traced", "object"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch says so of traces
def test_other_holders_are_refused_with_what_to_give(wrap: Wrap, remedy: str) -> None:
    with pytest.raises(
        ModelError, match=rf"no backend supports an object of type \w+: (a traced model has no cache: )?{remedy}"
    ):
        Generator(wrap(llama()))


def test_offloaded_weights_are_refused_and_the_remedy_helps() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    expected = decode_model(llama(), PROMPT, NUM_NEW, None, eos=())
    model = accelerate.cpu_offload(llama(), execution_device="cpu")
    with pytest.raises(ModelError, match=r"are offloaded: .*accelerate\.hooks\.remove_hook_from_submodules\(model\)"):
        Generator(model)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert text_of(Generator(model)) == expected


def test_a_model_with_accelerates_hooks_in_memory_is_driven() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    model = accelerate.dispatch_model(llama(), {"": "cpu"}, force_hooks=True)
    assert text_of(Generator(model)) == decode_model(llama(), PROMPT, NUM_NEW, None, eos=())


class _Tuner(torch.nn.Module):
    """As PEFT's: adapters are in the model's layers."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Any:
        return self.model(**given)


class LoraConfig:
    def __init__(self, **options: Any) -> None:
        vars(self).update(options)


class Adapted(torch.nn.Module):
    """As a ``PeftModel`` is laid out, for where PEFT isn't installed."""

    def __init__(self, model: PreTrainedModel, shift: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.base_model, self.peft_config, self.shift = _Tuner(model), {"default": LoraConfig(**options)}, shift

    def forward(self, **given: Any) -> Any:
        output = self.base_model(**given)
        output.logits = output.logits + self.shift
        return output


Adapted.__module__ = "peft.peft_model"
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"is_prompt_learning": True}, "its virtual tokens are outside of the transformers model"),
    ({"alora_invocation_tokens": [3, 4]}, "it is active only after its invocation tokens"),
    ({"shift": 1.0}, "its logits differ from those of the transformers model inside"),
]


def test_an_adapters_layers_are_the_models() -> None:
    inner = llama()
    assert unwrapped(Adapted(inner).eval()) is inner


@pytest.mark.parametrize(("options", "fault"), FAULTS, ids=str)
def test_what_is_outside_of_the_layers_is_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ModelError, match=rf"Adapted with LoraConfig: {fault}; decode with its own generate\(\)"):
        Generator(Adapted(llama(), **options).eval())


@pytest.fixture(name="peft")
def _peft() -> ModuleType:
    if importlib.util.find_spec("peft") is None:
        pytest.skip("PEFT isn't installed")
    return importlib.import_module("peft")


def peft_text(wrapped: Any) -> list[int]:
    """PEFT's own forward, token by token without a cache."""
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(NUM_NEW):
            ids.append(int(wrapped(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LoraConfig", {"init_lora_weights": False, "target_modules": ["q_proj", "down_proj"]}),
        ("LoraConfig", {"init_lora_weights": False, "use_dora": True, "target_modules": ["v_proj"]}),
        ("IA3Config", {"init_ia3_weights": False, "target_modules": ["k_proj"], "feedforward_modules": []}),
        ("OFTConfig", {"init_weights": False, "target_modules": ["q_proj"]}),
    ],
    ids=["LoRA", "DoRA", "IA3", "OFT"],
)
def test_the_text_of_a_peft_model_is_its_own(peft: Any, kind: str, options: dict[str, Any]) -> None:
    model = peft.get_peft_model(llama(), getattr(peft, kind)(task_type="CAUSAL_LM", **options)).eval()
    expected = peft_text(model)
    assert expected != decode_model(llama(), PROMPT, NUM_NEW, None, eos=())
    assert text_of(Generator(model)) == text_of(Generator(compiled(model))) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PromptTuningConfig", {"num_virtual_tokens": 3}),
        ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
        ("PromptEncoderConfig", {"num_virtual_tokens": 3}),
        ("LoraConfig", {"target_modules": ["q_proj"], "alora_invocation_tokens": [3, 4]}),
        ("PolyConfig", {"target_modules": ["q_proj"], "n_tasks": 2}),
    ],
    ids=["prompt tuning", "prefix tuning", "p-tuning", "aLoRA", "Poly"],
)
def test_a_peft_model_that_is_more_than_its_layers_is_refused(peft: Any, kind: str, options: dict[str, Any]) -> None:
    model = peft.get_peft_model(llama(), getattr(peft, kind)(task_type="CAUSAL_LM", **options)).eval()
    with pytest.raises(ModelError, match=rf"PeftModelForCausalLM with {kind}: .*; decode with its own generate"):
        Generator(model)
