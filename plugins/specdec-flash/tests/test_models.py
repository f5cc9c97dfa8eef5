"""Models under split attention: the logits of dense masks, the text of plain decoding, and mistakes that show."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from specdec_flash import SplitCompiler

from specdec import Generator, ModelError, ToyModel
from specdec.backends import HFBackend
from specdec.masks import DenseCompiler
from specdec.runtime.probes.walk import WrongLayout, walk
from specdec.target import Target
from specdec.testing import check_mask
from tests.support import families, planted
from tests.support.devices import DEVICES
from tests.support.examined import examined
from tests.support.generators import open_row, random_tree
from tests.support.plain import decode_model

TOLERANCE = 1e-5
PROMPTS = [[3, 5, 7, 3, 5, 7, 3], [9], [4, *range(2, 60), 4]]
# Grouped heads, windows of both kinds, soft caps, sinks, and values of another width than keys.
FAMILIES = {name: families.TREES[name] for name in ("llama", "mistral-window", "gemma2", "gemma3", "llama4", "gpt_oss")}
FAMILIES["deepseek_v3"] = "DeepseekV3Config", {**families.MHA, **families.LATENT, "v_head_dim": 12}


@pytest.mark.parametrize("least_prefix", [1, 128])
def test_it_keeps_the_contract(least_prefix: int) -> None:
    check_mask(SplitCompiler(least_prefix=least_prefix), families.make(*families.TREES["gemma3"]))


@pytest.mark.parametrize("name", FAMILIES)
def test_its_logits_are_those_of_dense_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.backends.supported_passes.PREFILL_CHUNK", 8)  # so that prompts come in several
    model, rng, dense = families.make(*FAMILIES[name]), np.random.default_rng(5), DenseCompiler()
    split = SplitCompiler(least_prefix=int(rng.integers(1, 12)))
    loaded = [examined(HFBackend.load(model, dense)), examined(HFBackend.load(model, split))]
    batch = [rng.integers(1, families.VOCAB, size=length).tolist() for length in (23, 40, 31, 5)]
    trees = [random_tree(rng, families.VOCAB, int(rng.integers(1, 13))) for _ in batch]
    logits = []
    for backend, own in zip(loaded, (dense, split), strict=True):
        assert backend.shapes.takes_trees, backend.examination.reason
        target = Target(backend, own)
        for prompt in batch:
            open_row(target, prompt)
        answers = target.forward(target.compile(dict(zip(target.rows, trees, strict=True)))).rows.values()
        logits.append([row.logits(node) for row, tree in zip(answers, trees, strict=True) for node in range(len(tree))])
    for dense_node, split_node in zip(*logits, strict=True):
        assert torch.allclose(dense_node, split_node, atol=TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "qwen3_moe"])
def test_the_text_is_the_models_own(family: str, device: str) -> None:
    model = families.make(*families.TREES[family]).to(device)
    for proposer, seed in (("autoregressive", None), ("lookahead:N=3,W=3,G=3", 7), ("prompt_lookup:num_matches=3", 7)):
        generator = Generator(model, proposer=proposer, max_batch_size=2, mask="split:least_prefix=16")
        results = generator.generate(PROMPTS, max_new_tokens=20, temperature=float(seed is not None), seed=seed)
        plain = [decode_model(model, prompt, 20, seed, eos=()) for prompt in PROMPTS]
        assert [list(result.token_ids) for result in results] == plain


def test_numerics_are_fast_and_the_text_that_of_plain_decoding() -> None:
    split = Generator(ToyModel.random(), proposer="lookahead", mask="split:least_prefix=1")
    assert split.numerics.mode == "fast"
    plain = Generator(ToyModel.random(), proposer="autoregressive")
    settings: dict[str, Any]
    for settings in ({}, {"temperature": 1.0, "seed": 2}):
        written = [made.generate([[1, 2], [3]], max_new_tokens=20, **settings) for made in (split, plain)]
        assert [result.token_ids for result in written[0]] == [result.token_ids for result in written[1]]


@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4"])
def test_one_mistake_in_its_masks_is_found(family: str) -> None:
    compiler = SplitCompiler(least_prefix=32)
    backend = planted.Untested(families.make(*families.TREES[family]), compiler)
    walk(Target(backend, compiler))
    for mistake in planted.mistakes_of(compiler):
        with pytest.raises(WrongLayout, match="Spoiled compiled a wrong layout: node"):
            walk(Target(backend, planted.spoiled(compiler, mistake)))


def test_a_backend_with_static_shapes_refuses_it() -> None:
    with pytest.raises(ModelError, match=r"takes dense masks and masks of fixed shape"):
        Generator(families.make(*families.TREES["llama"]), backend="static", mask="split")


def test_a_flash_attn_that_cannot_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.make(*families.TREES["llama"])
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # importing it raises an error
    assert Generator(model, mask="split").shapes.takes_trees  # it isn't installed
    monkeypatch.setattr("specdec_flash.kernel.is_flash_attn_2_available", lambda: True)
    with pytest.raises(
        ModelError, match=r"flash-attn is installed but broken: .*; pip install flash-attn --no-build-isolation"
    ):
        Generator(model, mask="split")
