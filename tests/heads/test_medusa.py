"""Medusa's heads: the reference's predictions from each layout, and other folders are refused with a remedy."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from specdec import ModelError
from specdec.heads.base import Noise
from specdec.heads.files import TargetWeights
from specdec.heads.medusa import MedusaRunner
from specdec.heads.medusa_folder import read_medusa_heads
from tests.support.malicious import Malicious
from tests.support.medusa_reference import Tensors, in_vllms_names, random_blocks, reference_log_probs

VOCAB, HIDDEN, HEADS, KEPT = 30, 12, 3, torch.tensor([4, 21, 2, 9, 28, 13])


def target(hidden: int = HIDDEN, vocab: int = VOCAB) -> TargetWeights:
    draw = torch.Generator().manual_seed(0)
    embeddings, output = (torch.randn(vocab, hidden, generator=draw) for _ in range(2))
    return TargetWeights(embeddings, lambda: output, num_layers=4)


def of_each_head(rows: int = VOCAB) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(rows, HIDDEN, generator=draw) for _ in range(HEADS)]


def blocks(num_blocks: int = 1) -> Tensors:
    return random_blocks(HEADS, num_blocks, HIDDEN, torch.Generator().manual_seed(2))


OWN, REDUCED = of_each_head(), of_each_head(len(KEPT))
EVERY = torch.arange(VOCAB)


class Layout(NamedTuple):
    """A folder's file, its tensors, and what they mean: each head's output matrix, and the target's ids of its rows."""

    file: str
    tensors: Tensors
    outputs: list[torch.Tensor]
    ids: torch.Tensor = EVERY
    num_blocks: int = 1


SHARED = [target().output()] * HEADS
OFFICIAL, SAFE = "medusa_lm_head.pt", "model.safetensors"
LAYOUTS = {
    "official": Layout(OFFICIAL, blocks() | {f"{h}.1.weight": OWN[h] for h in range(HEADS)}, OWN),
    "two blocks": Layout(OFFICIAL, blocks(2) | {f"{h}.2.weight": OWN[h] for h in range(HEADS)}, OWN, num_blocks=2),
    "blocks alone": Layout(OFFICIAL, blocks(), SHARED),
    "prefixed": Layout(SAFE, {f"medusa_head.{name}": each for name, each in blocks().items()}, SHARED),
    "vLLM": Layout(
        SAFE, in_vllms_names(blocks()) | {f"medusa_heads.lm_heads.{h}.weight": OWN[h] for h in range(HEADS)}, OWN
    ),
    "vLLM, shared and reduced": Layout(
        SAFE,
        in_vllms_names(blocks(2)) | {"lm_heads.0.weight": REDUCED[0], "token_map": KEPT},
        [REDUCED[0]] * HEADS,
        KEPT,
        num_blocks=2,
    ),
    "vLLM, whole rows with a map": Layout(
        "pytorch_model.bin",
        in_vllms_names(blocks()) | {"lm_head.weight": OWN[1], "token_map": KEPT},
        [OWN[1][KEPT]] * HEADS,
        KEPT,
    ),
    "blocks alone with a map": Layout(
        OFFICIAL, blocks() | {"token_map": KEPT}, [target().output()[KEPT]] * HEADS, KEPT
    ),
    "blocks alone with a map of the whole vocabulary": Layout(
        OFFICIAL, blocks() | {"token_map": EVERY.flip(0)}, [target().output().flip(0)] * HEADS, EVERY.flip(0)
    ),
}


def write(folder: Path, file: str, tensors: Tensors) -> None:
    if file.endswith(".safetensors"):
        save_file({name: each.clone() for name, each in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_are_the_references_in_each_layout(tmp_path: Path, layout: str) -> None:
    file, tensors, outputs, ids, num_blocks = LAYOUTS[layout]
    write(tmp_path, file, tensors)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))  # as published ones with five say
    runner = MedusaRunner(read_medusa_heads(tmp_path, target(), torch.float32), num_tokens=5)
    states = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(3))
    tokens, log_probs = runner.run(states)
    for row, state in enumerate(states):
        values, places = reference_log_probs(blocks(num_blocks), outputs, state).topk(5)
        assert tokens[row].tolist() == ids[places].tolist()
        torch.testing.assert_close(torch.from_numpy(log_probs[row]), values, rtol=1e-4, atol=1e-4)


def test_noise_is_added_to_each_heads_logits(tmp_path: Path) -> None:
    file, tensors, outputs, ids, _ = LAYOUTS["vLLM, shared and reduced"]
    write(tmp_path, file, tensors)
    runner = MedusaRunner(read_medusa_heads(tmp_path, target(), torch.float32), num_tokens=2)
    draw = torch.Generator().manual_seed(4)
    states, noise = torch.randn(2, HIDDEN, generator=draw), torch.randn(2, HEADS, len(KEPT), generator=draw) * 9
    scale = torch.tensor([1.0, 0.5])[:, None, None]
    tokens, _ = runner.run(states, Noise(scale, noise))
    for row in range(2):
        scores = reference_log_probs(blocks(2), outputs, states[row]) * scale[row] + noise[row]
        assert tokens[row].tolist() == ids[scores.topk(2).indices].tolist()


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: each for name, each in tensors.items() if name not in names}


WRONG: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "a head that is missing": (without("1.0.linear.weight", "1.0.linear.bias"), "lack 1.0.linear.weight;"),
    "a weight that is missing": (without("1.0.linear.weight"), "lack 1.0.linear.weight;"),
    "an output that is missing": (without("1.1.weight"), "lack 1.1.weight;"),
    "an output too many": (lambda tensors: tensors | {"3.1.weight": OWN[0]}, "unknown tensors: 3.1.weight;"),
    "an unknown tensor": (lambda tensors: tensors | {"norm.weight": OWN[0]}, "unknown tensors: norm.weight;"),
    "nothing of Medusa's": (lambda _: {"fc.weight": OWN[0]}, "lack 0.0.linear.weight; unknown tensors: fc.weight;"),
    "another hidden size": (
        lambda _: random_blocks(2, 1, 8, torch.Generator()),
        r"hidden size 8 \(the target has 12\)",
    ),
    "another vocabulary": (lambda tensors: tensors | {"1.1.weight": OWN[1][:9]}, r"\(9, 12\) \(needed: \(30, 12\)\)"),
    "a bias of two dimensions": (
        lambda tensors: tensors | {"0.0.linear.bias": torch.zeros(HIDDEN, HIDDEN)},
        "other shapes",
    ),
    "ids beyond the vocabulary": (lambda tensors: tensors | {"token_map": KEPT + 5}, "token_map"),
    "an id twice": (lambda tensors: tensors | {"token_map": KEPT.clamp(max=9)}, "token_map"),
    "ids that are numbers": (lambda tensors: tensors | {"token_map": KEPT.float()}, "token_map"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_other_folders_are_refused(tmp_path: Path, mistake: str) -> None:
    change, message = WRONG[mistake]
    torch.save(change(LAYOUTS["official"].tensors), tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match=message) as refused:
        read_medusa_heads(tmp_path, target(), torch.float32)
    assert "give the folder of Medusa heads that were trained for this model" in str(refused.value)


def test_a_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither model.safetensors nor medusa_lm_head.pt"):
        read_medusa_heads(tmp_path, target(), torch.float32)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    (tmp_path / "medusa_lm_head.pt").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    with pytest.raises(ModelError, match=r"something other than tensors|damaged"):
        read_medusa_heads(tmp_path, target(), torch.float32)
    assert not (tmp_path / "executed").exists()
