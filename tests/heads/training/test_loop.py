"""A head learns: from the least-squares start on, the loss falls and more drafts are right."""

from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import ModelError
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.head_training import draft_vocabulary
from specdec.heads.training.loop import Trainer
from specdec.heads.training.packing import pack
from specdec.heads.training.rollout import Rollout
from specdec.heads.training.script import Script
from specdec.heads.training.settings import RolloutSettings, TrainingSettings
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText


def test_training_improves_on_the_start_and_the_start_on_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    rollout = RolloutSettings(num_rows=64, opening_tokens=(2, 6), answer_tokens=24, answer_temperature=0.5)
    writer = Rollout(model, Script.continuation(3, [5]), rollout, generator)
    writer.write(lambda _: writer.records.num_answer_tokens() < 16_000)
    text = writer.records.text()
    rows = pack(text, 64, np.random.default_rng(0))
    training = Eagle3Training.untrained(model, draft_vocabulary(text, 48, 40))
    settings = TrainingSettings(rows_per_batch=2, rows_per_target_pass=16, rate=10.0)
    trainer = Trainer(training, TargetStates(model, training.layer_ids), rows[:16], settings)
    assert trainer.start(rows[16:80], generator) > 0.1
    before = trainer.evaluate()
    assert before.accuracy[0] > 2 / 40
    update, found = trainer._update, list[float]()

    def updated(*given: Any) -> torch.Tensor:
        found.append((loss := update(*given)).item())
        return loss

    monkeypatch.setattr(trainer, "_update", updated)
    run = trainer.train(rows[16:])
    after = trainer.evaluate()
    assert run.num_answer_tokens > 10_000
    ends = [0, *(update for update, _ in run.evaluations)]
    assert run.losses == [(end, pytest.approx(np.mean(found[start:end]))) for start, end in pairwise(ends)]
    # The same batches before and after: losses of different ones differ by more than training changes them.
    chosen = range(0, int(0.4 * len(found)), max(1, len(found) // 20))
    batches = islice(trainer._with_states(rows[16:], 0, is_repeated=False), chosen[-1] + 1)
    steps = settings.early_steps  # of the loss of these updates
    later = [trainer._loss(batch, steps).item() for update, batch in enumerate(batches) if update in chosen]
    assert sum(later) < 0.97 * sum(found[update] for update in chosen)
    gains = [later - earlier for earlier, later in zip(before.accuracy, after.accuracy, strict=True)]
    assert min(gains) > 0.01
    assert np.mean(gains) > 0.05
    assert after.tokens_per_step > before.tokens_per_step
    assert after.tokens_per_step == max(each.tokens_per_step for _, each in run.evaluations)


def test_fewer_rows_than_a_batch_are_refused() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=11, num_hidden_layers=7, **sizes)).eval().requires_grad_(False)
    training = Eagle3Training.untrained(model, torch.arange(11))
    rows = pack(TrainingText.of([np.arange(9, dtype=np.int32)], [2]), 16, np.random.default_rng(0))
    trainer = Trainer(training, TargetStates(model, training.layer_ids), rows, TrainingSettings(rows_per_batch=2))
    for learn in (partial(trainer.start, generator=torch.Generator()), trainer.train):
        with pytest.raises(ModelError, match=r"too little text to train on: 1 packed row, and an update takes 2"):
            learn(rows)
