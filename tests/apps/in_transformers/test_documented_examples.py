"""The examples of transformers' own documentation with one argument more: the same, or refused, and never another text.

Those of the installed docstrings run as they stand, with a tiny model in the place of each checkpoint. The calls of the
guides on text generation are written out, by page.
"""

import copy
import doctest
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaForCausalLM,
    PreTrainedModel,
    StaticCache,
    TextStreamer,
)
from transformers.generation import GenerationConfig, logits_process, stopping_criteria

import specdec
from specdec.apps.in_transformers.generator_cache import release
from tests.support import families
from tests.support.byte_tokenizer import trained
from tests.support.plain import cache_name

CACHE = cache_name(LlamaForCausalLM)
SPECDEC = specdec.custom_generate("prompt_lookup:num_tokens=3", numerics="fast")
MODULES = logits_process, stopping_criteria
# An example that asks for what is refused by name, and what it asks for.
REFUSED = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "SequenceBiasLogitsProcessor": "beam search",  # of its four calls, the one with beams
}
GUIDES: dict[str, dict[str, Any]] = {
    "llm_tutorial: defaults": {},
    "llm_tutorial: longer": {"max_new_tokens": 50},
    "llm_tutorial: sampling": {"do_sample": True},
    "generation_strategies: greedy": {"max_new_tokens": 20},
    "generation_strategies: sampling": {"do_sample": True, "num_beams": 1, "max_new_tokens": 40},
    "generation_strategies: a configuration": {"generation_config": GenerationConfig(max_new_tokens=9, do_sample=True)},
    "generation_features: streaming": {"streamer": lambda _: TextStreamer(trained()), "max_new_tokens": 20},
    "generation_features: watermark": {
        "watermarking_config": transformers.WatermarkingConfig(bias=2.5, seeding_scheme="selfhash"),
        "do_sample": False,
        "max_length": 60,
    },
    "kv_cache: none": {"use_cache": False, "do_sample": False, "max_new_tokens": 20},
    "kv_cache: static": {"cache_implementation": "static", "do_sample": False, "max_new_tokens": 20},
    "kv_cache: an empty one": {CACHE: lambda _: DynamicCache(), "max_new_tokens": 20},
    "kv_cache: an empty static one": {
        CACHE: lambda model: StaticCache(config=model.config, max_cache_len=64),
        "max_new_tokens": 20,
    },
    "generation_utils: scores": {"max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True},
}
GUIDES_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "generation_strategies: beams": ({"num_beams": 2}, "no beam search"),
    "generation_strategies: sampled beams": ({"num_beams": 5, "do_sample": True}, "no beam search, and num_beams=5"),
    "generation_strategies: contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
    "generation_strategies: dola": ({"dola_layers": "high"}, "dola"),
    "assisted_decoding: prompt lookup": ({"prompt_lookup_num_tokens": 5}, "prompt_lookup"),
    "assisted_decoding: early exit": ({"assistant_early_exit": 1}, "custom_generate"),
}


class Door:
    """A model whose ``generate`` also goes through specdec, and holds the two outputs against each other."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.said = Counter[str]()
        self.messages: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *given: Any, **asked: Any) -> Any:
        asked = {"pad_token_id": 0, **asked}
        torch.manual_seed(0)
        own = self._model.generate(*given, **fresh(asked, self._model))
        torch.manual_seed(0)
        try:
            other = self._model.generate(*given, **fresh(asked, self._model), custom_generate=SPECDEC)
        except (specdec.RequestError, ValueError) as refusal:
            self.said["refused"] += 1
            self.messages.append(str(refusal))
            return own
        samples = asked.get("do_sample") or getattr(asked.get("generation_config"), "do_sample", False)
        same = same_shape(own, other) if samples else same_tokens(own, other)
        self.said["passed" if same else "DIFFERS"] += 1
        return own


def fresh(asked: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """The arguments of one call: a cache is filled by it, and a streamer keeps the end of its text."""
    makes = CACHE, "streamer"
    return {name: value(model) if name in makes and callable(value) else value for name, value in asked.items()}


def tokens(output: Any) -> torch.Tensor:
    found: torch.Tensor = output if isinstance(output, torch.Tensor) else output.sequences
    return found


def same_tokens(own: Any, other: Any) -> bool:
    return type(own) is type(other) and torch.equal(tokens(own), tokens(other))


def same_shape(own: Any, other: Any) -> bool:
    return type(own) is type(other) and len(tokens(own)) == len(tokens(other))


def documented() -> Iterator[tuple[str, str]]:
    """Each class of the modules with an example on a causal language model."""
    for module in MODULES:
        for name, cls in inspect.getmembers(module, inspect.isclass):
            text = inspect.getdoc(cls) or ""
            if cls.__module__ == module.__name__ and "AutoModelForCausalLM" in text and ".generate(" in text:
                yield name, text


@pytest.fixture(scope="module", name="door")
def _door() -> Iterator[Door]:
    model = families.make(
        "LlamaConfig", {**families.SMALL, "vocab_size": len(trained()), "max_position_embeddings": 2048}
    )
    yield Door(model)
    release(model)


def test_the_examples_are_found() -> None:
    assert len(dict(documented())) >= 20


@pytest.mark.filterwarnings("ignore")  # examples say what they like of arguments that sampling alone reads
@pytest.mark.parametrize(("name", "text"), list(documented()), ids=[name for name, _ in documented()])
def test_an_example_of_a_docstring(name: str, text: str, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    door.said.clear()
    door.messages.clear()
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: door)
    tokenizer = copy.deepcopy(trained())
    tokenizer.pad_token = tokenizer.eos_token
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(text):
        try:
            exec(example.source, names)
        except Exception as error:  # such as an assertion on the text of the checkpoint
            print(f"{name}: {example.source.strip()[:60]}: {error}")
    assert door.said["DIFFERS"] == 0
    assert door.said["passed"] + door.said["refused"] > 0
    assert (name in REFUSED) == (door.said["refused"] > 0), door.messages
    assert REFUSED.get(name, "") in "\n".join(door.messages)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GUIDES)
def test_a_call_of_a_guide(name: str, door: Door) -> None:
    door.said.clear()
    inputs = trained()("the cat sat on the mat, the hat", return_tensors="pt", return_token_type_ids=False)
    door.generate(**inputs, **GUIDES[name])
    assert door.said == {"passed": 1}, door.messages


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GUIDES_REFUSED)
def test_a_call_of_a_guide_that_is_refused(name: str, door: Door) -> None:
    asked, message = GUIDES_REFUSED[name]
    inputs = trained()("the cat sat on the mat, the hat", return_tensors="pt", return_token_type_ids=False)
    with pytest.raises((specdec.RequestError, ValueError), match=message):
        door._model.generate(**inputs, max_new_tokens=4, **asked, custom_generate=SPECDEC)
