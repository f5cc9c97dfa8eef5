"""Adapters by the name of their folder decode as the same adapters do that are added to a loaded model."""

import importlib.util
import json
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers

from specdec import Generator, ModelError
from specdec.models import adapter_files
from specdec.models.loading import load_pretrained
from tests.support import families
from tests.support.byte_tokenizer import trained
from tests.support.plain import decode_model

PROMPT, NUM_NEW, ADDED = [5, 6, 7, 5, 6, 7, 5], 12, 3
ADAPTER = "adapter_config.json"


@pytest.fixture(name="peft")
def _peft() -> ModuleType:
    if importlib.util.find_spec("peft") is None:
        pytest.skip("PEFT isn't installed")
    return importlib.import_module("peft")


@pytest.fixture(name="base", scope="module")
def _base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a model with as many tokens as the tokenizer has, whose matrices aren't tied."""
    make, config = families.TREES["llama"]
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    families.make(make, config | {"vocab_size": len(trained())}).eval().save_pretrained(folder)
    trained().save_pretrained(folder)
    return folder


LORA: dict[str, Any] = {"init_lora_weights": False, "target_modules": ["q_proj", "down_proj"], "r": 4}
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "LoRA": ("LoraConfig", LORA, 0),
    "DoRA": ("LoraConfig", LORA | {"use_dora": True}, 0),
    "VeRA": ("VeraConfig", {"init_weights": False, "target_modules": ["q_proj", "o_proj"]}, 0),
    "IA3": ("IA3Config", {"init_ia3_weights": False, "target_modules": ["k_proj"], "feedforward_modules": []}, 0),
    "LoRA of the embeddings": ("LoraConfig", LORA | {"target_modules": ["embed_tokens", "lm_head"]}, 0),
    "added tokens": ("LoraConfig", LORA, ADDED),
    "added tokens, trained whole": ("LoraConfig", LORA | {"modules_to_save": ["embed_tokens", "lm_head"]}, ADDED),
    "added tokens, trained alone": ("LoraConfig", LORA | {"trainable_token_indices": [5, 6, 7]}, ADDED),
    "added tokens, with LoRA": ("LoraConfig", LORA | {"target_modules": ["embed_tokens", "lm_head"]}, ADDED),
    "added tokens and VeRA": ("VeraConfig", {"init_weights": False, "target_modules": ["q_proj"]}, ADDED),
}


def saved(peft: Any, base: Path, folder: Path, kind: str, options: dict[str, Any], num_added: int) -> Any:
    """An adapted model, whose adapter and tokenizer are saved in a folder."""
    model, tokenizer = transformers.AutoModelForCausalLM.from_pretrained(base), deepcopy(trained())
    if num_added:
        tokenizer.add_tokens([f"<{index}>" for index in range(num_added)])
        model.resize_token_embeddings(len(tokenizer))
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **options)).eval()
    with torch.no_grad():  # training would have changed these as well
        for name, parameter in adapted.named_parameters():
            if "trainable_tokens" in name or "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter))
    adapted.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return adapted


def text_of(generator: Generator) -> list[int]:
    return list(generator.generate(PROMPT, max_new_tokens=NUM_NEW, eos_token_id=()).token_ids)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_folders_adapter_decodes_as_the_object_does(peft: Any, base: Path, tmp_path: Path, kind: str) -> None:
    adapted = saved(peft, base, tmp_path, *KINDS[kind])
    generator = Generator(str(tmp_path), proposer="prompt_lookup")
    expected = text_of(Generator(adapted, proposer="prompt_lookup"))
    assert text_of(generator) == expected
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert expected != decode_model(plain, PROMPT, NUM_NEW, None, eos=()), "the adapter makes a difference"
    assert len(generator.tokenizer) == len(trained()) + KINDS[kind][2]
    model, _ = load_pretrained(str(tmp_path))
    ids = torch.arange(len(trained()) - 4, len(generator.tokenizer))[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, adapted(input_ids=ids).logits)


@pytest.mark.filterwarnings("ignore")
def test_virtual_tokens_in_a_folder_are_refused_as_the_objects_are(peft: Any, base: Path, tmp_path: Path) -> None:
    saved(peft, base, tmp_path, "PromptTuningConfig", {"num_virtual_tokens": 3}, 0)
    with pytest.raises(ModelError, match=r"with PromptTuningConfig: its virtual tokens are outside of the .* model; "):
        load_pretrained(str(tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", ["another base", "no weights", "fewer layers", "no rows"])
def test_an_adapter_that_fits_no_base_is_refused_in_a_sentence(
    peft: Any, base: Path, tmp_path: Path, fault: str
) -> None:
    from safetensors.torch import load_file, save_file

    partly = "LoraConfig", LORA | {"target_modules": ["embed_tokens"]}, ADDED  # PEFT saves no output matrix
    saved(peft, base, tmp_path / "adapter", *(partly if fault == "no rows" else KINDS["LoRA"]))
    file, config = tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "adapter" / ADAPTER
    if fault == "no weights":
        file.unlink()
    elif fault == "fewer layers":
        save_file({name: each for name, each in load_file(file).items() if "layers.0" not in name}, file)
    elif fault == "another base":
        make, sizes = families.TREES["llama"]
        small = sizes | {"vocab_size": len(trained()), "num_hidden_layers": 1}
        families.make(make, small).save_pretrained(tmp_path / "small")
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(tmp_path / "small")})
        )
    with pytest.raises(
        ModelError, match=r"can't load the adapter .*: was it trained for LlamaForCausalLM of"
    ) as caught:
        load_pretrained(str(tmp_path / "adapter"))
    assert "\n" not in str(caught.value)


@pytest.fixture(name="with_peft")
def _with_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_files, "find_spec", lambda _: True)


@pytest.mark.usefixtures("with_peft")
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "its adapter_config.json is damaged"),
        ("{}", "its adapter_config.json is damaged .*base_model_name_or_path"),
        ('{"base_model_name_or_path": null}', "names no base model: write its folder or hub name there"),
        ('{"base_model_name_or_path": "/no/where/at-all"}', "'/no/where/at-all': there is no such folder"),
    ],
)
def test_an_adapter_without_its_base_model_is_refused_in_words(content: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / ADAPTER).write_text(content)
    with pytest.raises(ModelError, match=f"can't load .*{fault}"):
        load_pretrained(str(tmp_path), trained())


def test_an_adapter_in_a_models_folder_is_not_left_out_in_silence(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_files, "find_spec", lambda _: None)
    transformers.AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path)
    load_pretrained(str(tmp_path), trained())
    (tmp_path / ADAPTER).write_text(json.dumps({"base_model_name_or_path": str(base)}))
    with pytest.raises(ModelError, match="an adapter, which needs peft: pip install peft"):
        load_pretrained(str(tmp_path), trained())
