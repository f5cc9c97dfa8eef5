"""Published folders are read, with the reference's log-probabilities, or refused by name; no key of theirs is misread.

Block drafters' layouts, 18 of them, are in ``test_block_folders.py``, and the first Medusa's in ``test_medusa.py``.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specdec import ModelError
from specdec.heads.base import Pairs
from specdec.heads.block_folder import read_block_head
from specdec.heads.eagle import read_eagle_head
from specdec.heads.eagle3_folder import read_head, read_p_eagle_head
from specdec.heads.files import TargetWeights
from specdec.heads.medusa_folder import read_medusa_heads
from specdec.heads.p_eagle import PEagleRunner
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.settings import notes_on_settings
from specdec.heads.strategies.block import DFlashProposer, DSparkProposer
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.heads.strategies.medusa import MedusaProposer
from specdec.heads.strategies.p_eagle import PEagleProposer
from specdec.heads.torch_runner import TorchRunner
from tests.support import block_folders
from tests.support.eagle3_reference import EagleReference, ReferenceHead
from tests.support.medusa_reference import random_blocks
from tests.support.p_eagle_reference import p_eagle_log_probs
from tests.support.published_heads import KEPT, LAYER, LAYERS, MASK, READ, THETA, VOCAB, WIDTH, Folder, Tensors

LENGTH, READ_BEFORE, DRAFTED, DEPTH = 11, 8, 23, 3
READERS: Mapping[str, Callable[..., Any]] = {
    "eagle3": read_head, "p_eagle": read_p_eagle_head, "eagle": read_eagle_head, "medusa": read_medusa_heads,
    "dflash": read_block_head, "dspark": read_block_head,
}  # fmt: skip
PROPOSERS: Mapping[str, Any] = {
    "eagle3": Eagle3Proposer, "p_eagle": PEagleProposer, "eagle": EagleProposer, "medusa": MedusaProposer,
    "dflash": DFlashProposer, "dspark": DSparkProposer,
}  # fmt: skip


def target() -> TargetWeights:
    draw = torch.Generator().manual_seed(0)
    embeddings, output = (torch.randn(VOCAB, WIDTH, generator=draw) for _ in range(2))
    return TargetWeights(embeddings, lambda: output, LAYERS)


def text(num_states: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(LENGTH, num_states * WIDTH, generator=draw), torch.randint(VOCAB, (LENGTH,), generator=draw)


@torch.no_grad()
def log_probs(head: Any, strategy: str) -> torch.Tensor:
    """Those after a text, and after a drafted token behind it or at the next positions."""
    states, tokens = text(head.config.states_size // getattr(head.config, "target_hidden_size", WIDTH))
    runner: Any = PEagleRunner(head, 10**6, DEPTH) if strategy == "p_eagle" else TorchRunner(head, None)
    append(head, kept := PairCache(head), states[:READ_BEFORE], tokens[:READ_BEFORE])
    cache, count = kept.reserve(LENGTH + DEPTH), LENGTH - READ_BEFORE
    positions, start = np.arange(READ_BEFORE, LENGTH)[None], np.array([READ_BEFORE])
    new = tokens[None, READ_BEFORE:].numpy(), positions, start, states[None, READ_BEFORE:]
    first = runner.run(Pairs(*new, fuses=True, last=np.array([count - 1])), cache)
    if strategy == "p_eagle":
        places = np.argsort(first.tokens[0], axis=-1)
        return torch.from_numpy(np.take_along_axis(first.log_probs[0], places, -1))
    place = np.array([LENGTH])
    after = Pairs(np.array([[DRAFTED]]), place[None], place, first.features, last=np.array([0]))
    return torch.from_numpy(np.concatenate((first.log_probs[0], runner.run(after, cache).log_probs[0])))


def rotation(scaled: Mapping[str, Any]) -> Any:
    """transformers' own, of a scaled kind."""
    parameters = {"rope_theta": THETA, **scaled}
    config = LlamaConfig(
        head_dim=6, max_position_embeddings=LAYER["max_position_embeddings"], rope_parameters=parameters
    )
    embedding = LlamaRotaryEmbedding(config)

    def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = (each[0] for each in embedding(x, positions[None]))
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    return rotate


@torch.no_grad()
def expected(folder: Folder, tensors: Tensors) -> torch.Tensor:
    weights, own = target(), dict(folder.reference)
    tensors = {"embed_tokens.weight": weights.embeddings, **tensors}
    states, tokens = text(len(folder.states) if folder.strategy != "eagle" else 1)
    if folder.strategy == "p_eagle":
        named = {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
        named["mask_hidden"] = named["mask_hidden"].view(1, 1, -1)
        layer = folder.settings.get("transformer_layer_config", folder.settings)
        settings = {"mask_token_id": MASK, **folder.settings, "transformer_layer_config": {**layer}}
        embeddings = tensors["embed_tokens.weight"]
        return p_eagle_log_probs(named, settings, embeddings, states, tokens.tolist(), DEPTH)
    tensors.setdefault("lm_head.weight", weights.output())
    if scaled := own.pop("scaled", None):
        own["rotate"] = rotation(scaled)
    kind = EagleReference if folder.strategy == "eagle" else ReferenceHead
    reference = kind(tensors, 4, 2, LAYER["rms_norm_eps"], own.pop("theta", THETA), **own)
    return torch.stack(reference.chain(reference.extend(states, tokens), torch.tensor([DRAFTED])))


@pytest.mark.parametrize("name", READ)
def test_log_probabilities_are_the_references(tmp_path: Path, name: str) -> None:
    folder = READ[name]
    tensors = folder.write(tmp_path)
    PROPOSERS[folder.strategy](head=tmp_path).check_files()
    head = READERS[folder.strategy](tmp_path, target(), torch.float32)
    assert notes_on_settings(tmp_path) == ()
    if folder.strategy != "eagle":
        assert head.config.target_layers(LAYERS) == folder.states
        assert head.target_ids.tolist() == KEPT.tolist()
    torch.testing.assert_close(log_probs(head, folder.strategy), expected(folder, tensors), rtol=1e-4, atol=2e-5)


def _changed(name: str, **changes: Any) -> Folder:
    folder = READ[name]
    settings = {**folder.settings, **changes}
    return Folder(**{**vars_of(folder), "settings": {key: value for key, value in settings.items() if value != "none"}})


def vars_of(folder: Folder) -> dict[str, Any]:
    return {field: getattr(folder, field) for field in folder.__dataclass_fields__}


PLAIN, PARALLEL, FIRST = "SpecForge, Qwen3", "amazon/Qwen3-Coder-30B-A3B-P-EAGLE", "yuhuili/EAGLE-Vicuna-7B-v1.3"
V1 = "speculators, EAGLE v1"
REFUSED: dict[str, tuple[Folder, str]] = {
    "a part of a head rotated": (_changed(PLAIN, partial_rotary_factor=0.5), "partial_rotary_factor = 0.5"),
    "a rotation by the text's length": (
        _changed(PLAIN, rope_scaling={"rope_type": "longrope", "factor": 2.0}), "of type 'longrope'"
    ),
    "EAGLE-3 of two layers": (_changed(PLAIN, num_hidden_layers=2), "has 2 layers, and EAGLE-3 heads of one layer are"),
    "EAGLE of two layers": (_changed(FIRST, num_hidden_layers=2), "has 2 layers, and EAGLE heads have one"),
    "norms that the tensors lack": (_changed(PLAIN, norm_before_fc=True), "norm_before_fc = true"),
    "biases that the tensors lack": (_changed(PLAIN, attention_bias=True), "attention_bias = true"),
    "biases in the MLP": (_changed(PLAIN, mlp_bias=True), "mlp_bias = true"),
    "layers of which fc reads fewer": (
        _changed(PLAIN, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}), r"3 states of layers \[2, 3"
    ),
    "other layers in two spellings": (
        _changed(PLAIN, target_layer_ids=[1, 5, 8], layer_ids=[1, 5, 8]), r"layer_ids = \[1, 5, 8\]"
    ),
    "P-EAGLE without a mask token": (_changed(PARALLEL, pard_token="none"), "mask_token_id"),
    "speculators' EAGLE with more norms": (_changed(V1, layernorms=True), "layernorms = true"),
    "Gemma's scale of attention": (_changed(PLAIN, query_pre_attn_scalar=256), "query_pre_attn_scalar = 256"),
    "a window of some layers": (
        _changed(PARALLEL, layer_types=["sliding_attention", *["full_attention"] * 3], sliding_window=6), "layer_types"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_layouts_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder, said = REFUSED[name]
    folder.write(tmp_path)
    with pytest.raises(ModelError, match=said) as refused:
        READERS[folder.strategy](tmp_path, target(), torch.float32)
    assert "give the folder of a" in str(refused.value) or "default rotation" in str(refused.value)


def _block(name: str) -> Callable[[Path], object]:
    return lambda folder: block_folders.write(folder, block_folders.LAYOUTS[name])


def _medusa(folder: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    torch.save(random_blocks(2, 1, WIDTH, draw), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "medusa_num_heads": 2}))


def _other(**settings: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        torch.save({"fc.weight": torch.ones(2, 2)}, folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps(settings))

    return write


# Folders by the strategy that reads them, or by what is said of a kind that none reads.
KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    **{name: (folder.write, folder.strategy) for name, folder in READ.items()},
    **{name: (_block(name), "dspark" if layout.markov else "dflash")
       for name, layout in block_folders.LAYOUTS.items()},
    "medusa-vicuna": (_medusa, "medusa"),
    "Hydra": (_other(hydra_num_heads=4, hydra_num_layers=1, hydra_head_arch="prefix-mlp"), "a Hydra head"),
    "speculators, MTP": (_other(speculators_model_type="mtp"), "an MTP head"),
    "SpecForge, Domino": (_other(architectures=["DominoDraftModel"]), "a Domino head"),
    "DFlash2": (_other(architectures=["DFlash2DraftModel"], dflash_config={"block_size": 8}), "a DFlash2 head"),
    "speculators, DFlash2": (_other(speculators_model_type="dflash2"), "a dflash2 head"),
    "DeepSpec, Gemma 4": (_other(architectures=["Gemma4DSparkModel"], markov_rank=8), "a Gemma 4 DSpark head"),
    "speculators, MLP": (_other(speculators_model_type="mlp_speculator"), "a mlp_speculator head"),
}  # fmt: skip


def read_as(proposer: Any, folder: Path) -> None:
    """Read a folder as a generator does."""
    proposer.check_files()
    (proposer._format.read if hasattr(proposer, "_format") else read_medusa_heads)(folder, target(), torch.float32)


@pytest.mark.parametrize("name", KINDS)
def test_a_head_of_another_kind_is_named_with_the_strategy_that_reads_it(tmp_path: Path, name: str) -> None:
    write, kind = KINDS[name]
    write(tmp_path)
    for strategy, proposer in PROPOSERS.items():
        if strategy == kind:
            continue
        with pytest.raises(ModelError) as refused:
            read_as(proposer(head=tmp_path), tmp_path)
        said = str(refused.value)
        if kind in PROPOSERS:
            assert f"{kind}:head=" in said
        else:
            assert f"{kind}, which specdec doesn't read" in said
        named = {other for other in PROPOSERS if f" {other}:head=" in said}
        assert named <= {kind}, said


def test_a_mask_token_alone_makes_no_p_eagle_head(tmp_path: Path) -> None:
    _changed(PLAIN, mask_token_id=5).write(tmp_path)
    assert type(read_head(tmp_path, target(), torch.float32)).__name__ == "Eagle3Head"


# Keys without an effect: what is confirmed by the tensors, is of training, tokens, engines or of another library.
HARMLESS = {
    "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings", "initializer_range", "use_cache",
    "speculators_version", "embed_requires_grad", "algorithm", "modal_type", "model_type", "architectures",
    "num_target_layers", "num_depths", "num_draft_layers", "parallel_drafting", "fc_norm", "norm_before_fc",
    "truncated_vocab_size", "attention_bias", "bias", "eagle_fc_bias", "fusion_bias", "tie_word_embeddings",
    "use_sliding_window", "transformer_layer_architecture",
}  # fmt: skip


def leaves(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        elif value is not None:
            yield (*path, key), value


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return [other_value(each) for each in value]
    return value + 1 if isinstance(value, int) else value * 2 + 0.1


@pytest.mark.parametrize("name", READ)
def test_each_key_changes_the_output_or_is_refused_or_is_known_to_be_harmless(tmp_path: Path, name: str) -> None:
    folder = READ[name]
    folder.write(tmp_path)
    read = READERS[folder.strategy]
    head = read(tmp_path, target(), torch.float32)
    before, layers = log_probs(head, folder.strategy), head.config.target_layers(LAYERS)
    without_effect = set()
    for path, value in leaves(folder.settings):
        settings = json.loads(json.dumps(folder.settings))
        place = settings
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = other_value(value)
        (tmp_path / "config.json").write_text(json.dumps(settings))
        try:
            found = read(tmp_path, target(), torch.float32)
        except ModelError:
            continue
        after = log_probs(found, folder.strategy)
        is_same = after.shape == before.shape and torch.allclose(after, before, atol=1e-6)
        if is_same and found.config.target_layers(LAYERS) == layers:
            without_effect.add(path[-1])
    assert without_effect <= HARMLESS
