"""Another model from nothing but a model: fewer Jacobi steps, interrupted, resumed, and with unsuitable input."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, MistralForCausalLM

from specdec import Generator, ModelError, RequestError
from specdec.heads.local_heads import model_digest
from specdec.models.loading import load_pretrained
from specdec.training import ConsistencySettings, HeadSettings, TunedModel, train_consistency, train_head
from specdec.training.consistency_evaluation import evaluate
from specdec.training.split import SplitText
from specdec.training.text import Text
from specdec.training.tuned_model import ConsistencyRun, JacobiEvaluation, NoBetterModelError
from tests.support.byte_tokenizer import trained
from tests.training.test_head_training import PROMPTS, Killed, Seen, interrupt, kill, model, plain

SETTINGS = ConsistencySettings(
    minutes=0.4, text_share=0.3, answer_tokens=24, num_rows=16, row_length=64, block_size=4, learning_rate=3e-3,
    held_out_every=5, evaluated_texts=6, evaluated_tokens=16, rows_per_batch=4, max_loss_increase=1.0,
)  # fmt: skip


def train(seen: Seen, out: Path, **others: Any) -> TunedModel:
    given: dict[str, Any] = {"model": model(), "tokenizer": trained(), "settings": SETTINGS} | others
    return train_consistency(out=out, watch=seen.watch, **given)


def written(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def measured(target: Any, folder: Path) -> JacobiEvaluation:
    """A model's evaluation on the text that a folder's run held out."""
    split = SplitText.of(Text.load(folder / "text.npz"), SETTINGS, 1, "")
    return evaluate(target, split.held_out, split.held_out_rows, [0], SETTINGS)


@pytest.fixture(scope="module", name="original")
def _original() -> Any:
    return model()


@pytest.fixture(scope="module", name="made")
def _made(original: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[TunedModel, Seen]:
    seen = Seen()
    return train(seen, tmp_path_factory.mktemp("tuned"), model=original), seen


def test_the_new_model_takes_fewer_jacobi_steps_and_the_original_is_untouched(
    made: tuple[TunedModel, Seen], original: Any
) -> None:
    tuned, seen = made
    before, after = (measured(each, tuned.folder) for each in (original, written(tuned.folder)))
    assert (tuned.before, tuned.after) == (before, after)
    assert after.tokens_per_step > before.tokens_per_step + 0.1
    assert after.loss <= before.loss + SETTINGS.max_loss_increase
    assert model_digest(original) == model_digest(model())
    assert not any(parameter.requires_grad for parameter in original.parameters())
    lines = seen.plans[0].lines()
    assert "free text, as there is no chat template" in lines[0]
    assert f"another model, in {tuned.folder}" in lines[2]
    lengths = [each.tokens_per_step for each in seen.reports if each.stage == "training"]
    assert lengths[-1] <= tuned.after.tokens_per_step
    assert abs(seen.reports[-1].seconds_left) < 0.1 * 60 * SETTINGS.minutes


def test_the_folder_is_a_model_whose_jacobi_texts_are_its_own_plain_decodings(made: tuple[TunedModel, Seen]) -> None:
    tuned, _ = made
    folder = tuned.folder
    loaded, tokenizer = load_pretrained(str(folder))
    assert loaded.dtype == torch.float32
    assert tokenizer.encode("the cat") == trained().encode("the cat")
    steps, num_tokens = dict[str, int](), 0
    for name, target in (("tuned", loaded), ("original", model())):
        generator = Generator(target, tokenizer, proposer="jacobi:n=4")
        results = generator.generate(PROMPTS, max_new_tokens=32, seed=0)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.token_ids == plain(target, prompt, 32)
        num_tokens = sum(len(result.token_ids) for result in results)
        steps[name] = sum(result.stats.steps for result in results) / num_tokens
    assert steps["tuned"] < 0.9 * steps["original"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"digest `{model_digest(model())}`" in card
    assert f"--model {folder} --proposer jacobi:n=4" in card
    assert f"| {tuned.before.tokens_per_step:.2f} | {tuned.after.tokens_per_step:.2f} |" in card
    assert not (folder / "training.safetensors").exists()


def test_a_run_that_is_killed_ends_as_an_uninterrupted_one(made: tuple[TunedModel, Seen], tmp_path: Path) -> None:
    for after, is_resumed in ((14, False), (6, True)):
        with pytest.raises(Killed):
            train(Seen(kill("training", after)), tmp_path, resume=is_resumed)
    assert (tmp_path / "training.safetensors").exists()
    with pytest.raises(RequestError, match=r"go on with it by --block-size 4, or remove"):
        train(Seen(), tmp_path, resume=True, settings=SETTINGS.model_copy(update={"block_size": 5}))
    with pytest.raises(RequestError, match=r"by specdec train consistency, not by specdec train head: give another"):
        train_head(model(), trained(), tmp_path, HeadSettings(minutes=SETTINGS.minutes), resume=True)
    seen = Seen()
    tuned = train(seen, tmp_path, resume=True)
    assert (tuned.after, tuned.run.evaluations) == (made[0].after, made[0].run.evaluations)
    expected = load_file(made[0].folder / "model.safetensors")
    assert all(
        torch.equal(tensor, expected[name]) for name, tensor in load_file(tmp_path / "model.safetensors").items()
    )
    (plan,) = seen.plans
    assert plan.num_written == plan.num_answer_tokens == tuned.num_answer_tokens
    assert 0 < plan.training_minutes < SETTINGS.minutes * (1 - SETTINGS.text_share)


def test_ctrl_c_keeps_the_best_model_and_a_new_run_replaces_it_only_by_a_better_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Seen(interrupt("text", 20)), tmp_path)
    assert Text.load(tmp_path / "text.npz").num_answer_tokens > 500
    with pytest.raises(RequestError, match="--resume"):
        train(Seen(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(Seen(interrupt("training", 1)), tmp_path, resume=True)
    assert not (tmp_path / "config.json").exists()
    best = train(Seen(interrupt("training", 18)), tmp_path, resume=True)
    assert best.is_interrupted
    (tmp_path / "training.safetensors").unlink()
    before = load_file(tmp_path / "model.safetensors")
    again = train(Seen(interrupt("training", 0)), tmp_path, resume=True)
    assert again.after.tokens_per_step == pytest.approx(best.after.tokens_per_step, rel=0.2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in load_file(tmp_path / "model.safetensors").items())


def test_a_half_model_stays_one(tmp_path: Path) -> None:
    shorter = SETTINGS.model_copy(update={"minutes": 0.2})
    tuned = train(Seen(), tmp_path, model=model().to(torch.bfloat16), settings=shorter)
    loaded = written(tuned.folder)
    assert loaded.dtype == torch.bfloat16
    found = measured(loaded, tuned.folder)
    # After training it is in float32, and other tokens may be right at once.
    assert found.loss == pytest.approx(tuned.after.loss, rel=0.05)
    assert found.tokens_per_step == pytest.approx(tuned.after.tokens_per_step, rel=0.05)
    assert found.num_tokens == tuned.after.num_tokens


def test_a_model_is_kept_only_if_its_loss_is_the_original_s_and_the_error_says_how_close_it_came(
    tmp_path: Path,
) -> None:
    hasty, seen = SETTINGS.model_copy(update={"minutes": 0.2, "learning_rate": 10.0}), Seen()
    expected = r"no model was better than 1\.\d\d tokens per step at a loss of at most \d\.\d{3}; .*the "
    with pytest.raises(NoBetterModelError, match=expected) as found:
        train(seen, tmp_path, settings=hasty)
    assert {each.name for each in tmp_path.iterdir()} == {"text.json", "text.npz", "training.json"}
    run = found.value.run
    others = [each for _, each in run.evaluations[1:]]
    if faster := [each.loss for each in others if each.tokens_per_step > run.evaluations[0][1].tokens_per_step]:
        had = rf"the one with the least loss had \d\.\d\d at a loss of {min(faster):.3f}, and "
    else:
        most = max(each.tokens_per_step for each in others)
        had = rf"most tokens per step had {most:.2f} at a loss of \d+\.\d{{3}}, and "
    assert re.search(had + re.escape(str(tmp_path / "training.json")), str(found.value))
    assert TypeAdapter(ConsistencyRun).validate_json((tmp_path / "training.json").read_bytes()) == run
    assert len(run.evaluations) > 6
    assert len(run.losses) > 1
    evaluated = [f"{each.tokens_per_step:.2f} at a loss of {each.loss:.3f}" for _, each in run.evaluations]
    assert list(dict.fromkeys(each.last for each in seen.reports if each.stage == "training")) == evaluated
    assert f"best so far {run.evaluations[0][1].tokens_per_step:.2f} tokens" in seen.reports[-1].line()
    assert seen.reports[-1].line().endswith(f", last evaluation {evaluated[-1]}")
    slower = hasty.model_copy(update={"learning_rate": SETTINGS.learning_rate})
    assert train(Seen(), tmp_path, settings=slower, resume=True).run.best


@pytest.mark.parametrize(
    ("others", "closest"),
    [([(1.3, 2.0), (1.1, 0.9), (0.9, 0.5)], (1.1, 0.9)), ([(0.9, 0.5), (1.0, 0.8), (0.8, 0.4)], (1.0, 0.8))],
)
def test_the_closest_evaluation_is_faster_at_the_least_loss(
    others: list[tuple[float, float]], closest: tuple[float, float]
) -> None:
    found = [(update, JacobiEvaluation(*each, 100)) for update, each in enumerate([(1.0, 0.5), *others])]
    assert ConsistencyRun(evaluations=found).closest == JacobiEvaluation(*closest, 100)


def test_memory_that_runs_out_is_no_damaged_model(
    made: tuple[TunedModel, Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made[0].folder, tmp_path, dirs_exist_ok=True)
    found = iter([made[0].before])

    def full(*_: Any) -> JacobiEvaluation:
        for each in found:  # the original's
            return each
        raise MemoryError

    monkeypatch.setattr("specdec.training.consistency_training.evaluate", full)
    with pytest.raises(ModelError, match="memory ran out"):
        train(Seen(), tmp_path, resume=True)
    monkeypatch.undo()
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(KeyboardInterrupt):  # before there is a better model, as the damaged one isn't
        train(Seen(interrupt("training", 0)), tmp_path, resume=True)


def windowed() -> MistralForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = MistralConfig(vocab_size=340, num_hidden_layers=2, sliding_window=32, eos_token_id=0, **sizes)
    return MistralForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"tokenizer": None}, RequestError, "needs the model's tokenizer"),
        ({"model": windowed()}, RequestError, "a window of 32 tokens, and texts of up to 80"),
        ({"settings": SETTINGS.model_copy(update={"minutes": 0.01})}, ModelError, "too little to train on"),
    ],
)
def test_unsuitable_input_is_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(Seen(), tmp_path, **given)


def test_another_model_s_folder_is_left_alone(tmp_path: Path) -> None:
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    for is_resumed in (False, True):
        with pytest.raises(RequestError, match="has a model or head that isn't of an earlier run"):
            train(Seen(), tmp_path, resume=is_resumed)
    assert {each.name for each in tmp_path.iterdir()} == {"config.json"}
