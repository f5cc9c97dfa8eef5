"""A head with its target's output matrix has its target's probabilities: scaled, capped and with a bias as there."""

import copy
import json
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specdec import Generator, ModelError
from specdec.heads.block_folder import read_block_head
from specdec.heads.files import TargetWeights
from specdec.heads.logits_map import logits_map_of
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.medusa import MedusaProposer
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.least_squares_start import Samples
from specdec.models.token_weights import output_bias_of
from tests.support import block_folders
from tests.support.families import SMALL, make
from tests.support.mtp_checkpoints import load, write_checkpoint

TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "Granite": ("GraniteConfig", {**SMALL, "logits_scaling": 8.0}),
    "Cohere": ("CohereConfig", {**SMALL, "logit_scale": 0.25}),
    "Gemma 2": ("Gemma2Config", {**SMALL, "head_dim": 8, "final_logit_softcapping": 2.0}),
    "Phi": ("PhiConfig", {**SMALL, "num_key_value_heads": 4}),
    "Falcon-H1": ("FalconH1Config", {**SMALL, "lm_head_multiplier": 0.3, "mamba_d_ssm": 64, "mamba_n_heads": 4}),
    "Llama": ("LlamaConfig", SMALL),
}
TEXT = [5, 17, 40, 8, 33, 21, 60]


def target(name: str) -> Any:
    model = make(*TARGETS[name])
    if (bias := model.get_output_embeddings().bias) is not None:
        bias.data = torch.randn(bias.shape, generator=torch.Generator().manual_seed(1))
    return model


def weights_of(model: Any) -> TargetWeights:
    output = model.get_output_embeddings().weight.detach()
    embeddings = model.get_input_embeddings().weight.detach()
    return TargetWeights(embeddings, lambda: output, 2, lambda: logits_map_of(model), lambda: output_bias_of(model))


def own_answer(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' final states of a text, and the log-probabilities after each."""
    with torch.no_grad():
        output = model(torch.tensor([TEXT]), output_hidden_states=True)
    return output.hidden_states[-1][0], output.logits[0].log_softmax(-1)


def eagle_folder(folder: Path, width: int, vocab: int) -> Path:
    """A head whose output is the target's final state."""
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (2, width), "self_attn.k_proj": (2, width), "self_attn.v_proj": (2, width),
        "self_attn.o_proj": (width, 2), "post_attention_layernorm": (width,),
        "mlp.gate_proj": (1, width), "mlp.up_proj": (1, width), "mlp.down_proj": (width, 1),
    }  # fmt: skip
    tensors = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in layer.items()}
    tensors["fc.weight"] = torch.cat((torch.zeros(width, width), torch.eye(width)), 1)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": 1, "vocab_size": vocab}))
    return folder


def head_in(generator: Generator) -> Any:
    engine: Any = generator._binding.strategies.own.engine
    return engine._runner


@torch.no_grad()
@pytest.mark.parametrize("name", TARGETS)
def test_eagle_has_the_targets_probabilities(tmp_path: Path, name: str) -> None:
    model = target(name)
    final, expected = own_answer(model)
    folder = eagle_folder(tmp_path, final.shape[-1], SMALL["vocab_size"])
    with Generator(model, proposer=EagleProposer(head=folder, dtype="float32")) as generator:
        head = head_in(generator).head
    torch.testing.assert_close(head.logits(final).float().log_softmax(-1), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", TARGETS)
def test_medusa_has_the_targets_probabilities_of_a_reduced_vocabulary(tmp_path: Path, name: str) -> None:
    model, ids = target(name), torch.arange(3, 60, 2)
    final, expected = own_answer(model)
    blocks = {f"{head}.0.linear.weight": torch.zeros(final.shape[-1], final.shape[-1]) for head in range(2)}
    torch.save(blocks | {"token_map": ids}, tmp_path / "medusa_lm_head.pt")
    with Generator(model, proposer=MedusaProposer(head=tmp_path, dtype="float32", top_k=5)) as generator:
        found = head_in(generator).run(final)
    best = expected[:, ids].log_softmax(-1).topk(5)
    for head in range(2):
        torch.testing.assert_close(torch.from_numpy(found.log_probs[:, head]), best.values, rtol=1e-4, atol=1e-4)
        assert found.tokens[:, head].tolist() == ids[best.indices].tolist()


@torch.no_grad()
@pytest.mark.parametrize("name", TARGETS)
def test_a_block_drafter_has_the_targets_matrix_and_bias_and_a_scale_of_its_own(tmp_path: Path, name: str) -> None:
    """As z-lab's code has it: it was trained without the target's scale."""
    model, layout = target(name), block_folders.LAYOUTS["z-lab"]
    final, _ = own_answer(model)
    expected = model.get_output_embeddings()(final)
    ids = {"dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 0, 1]}}
    block_folders.write(tmp_path, layout, **ids)
    head = read_block_head(tmp_path, weights_of(model), torch.float32)
    torch.testing.assert_close(head.logits(final), expected, rtol=1e-4, atol=1e-4)
    ids["dflash_config"]["output_multiplier"] = 0.5
    block_folders.write(tmp_path, layout, **ids)
    own = read_block_head(tmp_path, weights_of(model), torch.float32)
    torch.testing.assert_close(own.logits(final), expected * 0.5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_the_map_of_a_folder_is_the_models(tmp_path: Path, name: str) -> None:
    """For a target that another engine runs."""
    model = target(name)
    model.save_pretrained(tmp_path)
    final, expected = own_answer(model)
    found = logits_map_of(SimpleNamespace(config=model.config, folder=tmp_path))
    logits = found(final @ model.get_output_embeddings().weight.T)
    torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=1e-4, atol=1e-4)


def test_logits_of_another_kind_are_refused() -> None:
    model: Any = make("LlamaConfig", SMALL)
    kind = type(model)

    class Other(kind):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **named: Any) -> Any:
            output = super().forward(*args, **named)
            output.logits = output.logits.square()
            return output

    model.__class__ = Other
    with pytest.raises(ModelError, match=r"how Other makes logits of its final states is unknown .*output matrix of"):
        logits_map_of(model)


@torch.no_grad()
@pytest.mark.parametrize("num_kept", [40, SMALL["vocab_size"]])
def test_training_starts_alike_whether_the_target_scales_its_logits_or_its_matrix(num_kept: int) -> None:
    plain = make("GraniteConfig", {**SMALL, "num_hidden_layers": 7, "tie_word_embeddings": False})
    scaled: Any = copy.deepcopy(plain)
    scaled.config.logits_scaling = 8.0
    scaled.lm_head.weight *= 8.0
    draw = torch.Generator().manual_seed(0)
    tokens, found = torch.randint(SMALL["vocab_size"], (8, 64), generator=draw), []
    for model in (plain, scaled):
        training = Eagle3Training.untrained(model, torch.arange(num_kept))
        states = model(tokens, output_hidden_states=True).hidden_states
        read = torch.cat([states[layer] for layer in training.layer_ids], -1).flatten(0, 1)
        samples = Samples(read, tokens.roll(-1, 1).flatten(), states[-1].roll(-1, 1).flatten(0, 1))
        training.start(samples, torch.Generator().manual_seed(3))
        found.append(training.head.logits(training.head.fuse(read * training.scales)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert found[0].std() > 0.1


@torch.no_grad()
def test_a_multi_token_prediction_module_has_the_targets_probabilities(tmp_path: Path) -> None:
    write_checkpoint("deepseek_v3", tmp_path)
    model = load(tmp_path)
    kind = type(model)

    class Halved(kind):  # type: ignore[misc, valid-type]
        @wraps(kind.forward)
        def forward(self, *args: Any, **named: Any) -> Any:
            output = super().forward(*args, **named)
            output.logits = output.logits * 0.5
            return output

    model.__class__ = Halved
    final, expected = own_answer(model)
    with Generator(model, proposer="mtp") as generator:
        head = head_in(generator).head
    torch.testing.assert_close(head.logits(final).log_softmax(-1), expected, rtol=1e-4, atol=1e-4)
