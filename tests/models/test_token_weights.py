"""Embeddings and output rows, from a model's modules and from a folder's files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from specdec import Generator, ModelError, ToyModel
from specdec.models.token_weights import embeddings_of, output_rows_of
from specdec.models.weights.packing import packed_weights
from specdec.testing import toy_host
from tests.support import families

IDS = [7, 0, 95, 7]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": families.TREES["llama"],
    "tied": ("LlamaConfig", {**families.SMALL, "tie_word_embeddings": True}),
    "gpt2": families.TREES["gpt2"],
    # A head that transformers has renamed, and no other matrix of its shape.
    "gpt_neox": ("GPTNeoXConfig", {**families.MHA, "vocab_size": 100}),
    "opt": families.TREES["opt"],
    "gemma3": families.TREES["gemma3"],
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_has_what_the_model_has(case: str, tmp_path: Path) -> None:
    model = families.make(*CASES[case]).bfloat16()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    stored = SimpleNamespace(config=AutoConfig.from_pretrained(tmp_path), folder=tmp_path)
    expected = model.get_input_embeddings().weight
    for each in (model, stored):
        assert torch.equal(embeddings_of(each), expected)
        assert torch.equal(output_rows_of(each, IDS), model.get_output_embeddings().weight[IDS])


def test_packed_matrices_are_unpacked() -> None:
    model = families.make("LlamaConfig", {**families.SMALL, "hidden_size": 64, "tie_word_embeddings": True})
    expected = model.lm_head.weight.detach().clone()
    with Generator(model, weights="packed", proposer="autoregressive") as generator:
        generator.generate([1, 2], max_new_tokens=2)
        assert packed_weights(model)
        host = generator._binding._host(model, generator.tokenizer, generator._binding.target, "hf")
        assert torch.equal(host.embeddings(), expected)
        assert torch.equal(host.output_rows(IDS), expected[IDS])


def test_a_model_without_them_is_named() -> None:
    with pytest.raises(ModelError, match="ToyModel has no embeddings"):
        embeddings_of(ToyModel.random())
    with pytest.raises(ModelError, match="no embeddings"):
        toy_host(5, reads_q=False).embeddings()
