"""A head from nothing but a model: the whole way, interrupted, resumed, and with unsuitable input."""

import copy
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Generator, ModelError, RequestError
from specdec.heads.local_heads import head_of, model_digest
from specdec.heads.training import HeadSettings, Plan, Progress, TrainedHead, Watch, train_head
from specdec.heads.training.checkpoint import Checkpoint
from specdec.heads.training.disk import prepare_folder
from specdec.heads.training.own_text import OwnText
from specdec.heads.training.rollout import Rollout
from specdec.heads.training.run import Resumed, RunOutcome
from specdec.heads.training.text import TrainingText
from tests.support.byte_tokenizer import trained
from tests.support.plain import decode_model

SETTINGS = HeadSettings(minutes=1.0, text_share=0.3, draft_vocab_size=128, answer_tokens=24, num_rows=16, row_length=64)
PROMPTS = [[7, 8, 9], [30, 31, 32, 33]]
VOCAB = 340
TICK = 0.3  # seconds; one reading lies between the beginning of a run and its text


def model(seed: int = 0, **others: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.08,
        "eos_token_id": 0,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes | others)).eval().requires_grad_(False)


class Ticking:
    """A clock on which each reading takes some time, so that runs end after the same amount of work anywhere."""

    def __init__(self, step: float) -> None:
        self.step, self.now = step, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Seen:
    """The plans and progress of a run, and an action when one is reported."""

    def __init__(self, action: Callable[[Progress], object] = lambda _: None) -> None:
        self.plans, self.reports, self.action = list[Plan](), list[Progress](), action
        self.watch = Watch(self.plans.append, self._note, Ticking(TICK))

    def _note(self, progress: Progress) -> None:
        self.reports.append(progress)
        self.action(progress)


def train(seen: Seen, out: Path | None, **others: Any) -> TrainedHead:
    given: dict[str, Any] = {"model": model(), "tokenizer": trained(), "settings": SETTINGS} | others
    return train_head(out=out, watch=seen.watch, **given)


@pytest.fixture(scope="module", name="made")
def _made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedHead, Seen]:
    """A head that was trained into a cache folder of its own."""
    seen = Seen()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("a cache")))
        assert head_of(model()) is None
        return train(seen, None), seen


def plain(target: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    return tuple(decode_model(target, prompt, count, None, eos=(0,)))


def test_a_plan_comes_before_text_and_training(made: tuple[TrainedHead, Seen]) -> None:
    head, seen = made
    (plan,) = seen.plans
    assert plan.text_minutes == pytest.approx(SETTINGS.minutes * SETTINGS.text_share)
    assert plan.training_minutes == pytest.approx(SETTINGS.minutes * (1 - SETTINGS.text_share) - TICK / 60)
    assert [stage for stage, _ in itertools.groupby(each.stage for each in seen.reports)] == [
        "text",
        "least-squares start",
        "training",
    ]
    assert all(earlier.seconds_left > later.seconds_left for earlier, later in itertools.pairwise(seen.reports))
    assert 0 <= seen.reports[-1].seconds_left < 0.1 * 60 * SETTINGS.minutes
    lengths = [each.tokens_per_step for each in seen.reports if each.stage == "training"]
    assert lengths == sorted(lengths)
    assert lengths[-1] == head.acceptance.tokens_per_step > lengths[0] > 1.1
    assert "free text, as there is no chat template" in plan.lines()[0]
    assert "fewer than 1.5 tokens per step (chain of 5 draft tokens, held-out text)" in plan.lines()[-1]
    assert "give about --minutes" in plan.lines()[-1]
    # A reading of the clock after 16 steps, the first one after the prefix; half of them write answers.
    assert plan.tokens_per_second == pytest.approx(16 / TICK * SETTINGS.num_rows / 2)
    first = next(each for each in seen.reports if each.stage == "training")
    assert re.fullmatch(r"training: starting, \d+:\d\d left, best so far \d\.\d\d tokens .*", first.line())


def test_the_folder_has_the_published_layout_and_a_card(made: tuple[TrainedHead, Seen]) -> None:
    folder = made[0].folder
    tensors = load_file(folder / "model.safetensors")
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert tensors["lm_head.weight"].shape == (128, 32)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"digest `{model_digest(model())}`" in card
    assert f"--proposer 'eagle3:head={folder}'" in card
    assert f"{made[0].num_answer_tokens:,} answer tokens" in card
    assert {each.name for each in folder.iterdir()} == {
        "README.md", "config.json", "facts.json", "model.safetensors", "text.json", "text.npz",
    }  # fmt: skip


@pytest.mark.parametrize("proposer", ["eagle3:head={}", "auto+eagle3:head={}"])
def test_texts_are_plain_decodings_in_fewer_steps(made: tuple[TrainedHead, Seen], proposer: str) -> None:
    target = model()
    generator = Generator(target, trained(), proposer=proposer.format(made[0].folder))
    results = generator.generate(PROMPTS, max_new_tokens=48)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.token_ids == plain(target, prompt, 48)
    assert sum(result.stats.steps for result in results) < 0.9 * sum(len(result.token_ids) for result in results)


def test_eagle3_takes_the_head_of_this_very_model_alone(
    made: tuple[TrainedHead, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made[0].folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parents[2]))
    assert folder == folder.parents[1] / "heads" / made[0].digest
    assert head_of(model()) == head_of(model().to(torch.bfloat16)) == folder
    tuned = model()
    tuned.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    for other in (tuned, model(seed=1), model(num_attention_heads=2)):
        assert head_of(other) is None
        with pytest.raises(ModelError, match=r"no head was trained for this .* head=FOLDER, or run `specdec train"):
            Generator(other, trained(), proposer="eagle3")
    result = Generator(model(), trained(), proposer="eagle3").generate([7, 8], max_new_tokens=24)
    assert result.token_ids == plain(model(), [7, 8], 24)
    assert result.stats.steps < 24


def test_a_head_of_another_kind_is_left_alone(made: tuple[TrainedHead, Seen], tmp_path: Path) -> None:
    shutil.copytree(made[0].folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MedusaModel"]}))
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(RequestError, match="head of another kind than EAGLE-3: give another folder"):
        train(Seen(), tmp_path, resume=True)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_model_s_folder_is_left_alone(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    TrainingText.of([np.arange(3, dtype=np.int32)], [1]).save(tmp_path / "text.npz")
    (tmp_path / "text.json").write_text(json.dumps({"model": model_digest(model())}))
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(RequestError, match="has a model, or a head of another kind than EAGLE-3: give another folder"):
        train(Seen(), tmp_path, resume=True)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_damaged_head_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "specdec" / "heads" / model_digest(model())
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=str(folder)):
        Generator(model(), trained(), proposer="eagle3")


def interrupt(stage: str, after: int) -> Callable[[Progress], object]:
    count = itertools.count()

    def action(progress: Progress) -> None:
        if progress.stage == stage and next(count) == after:
            raise KeyboardInterrupt

    return action


def test_an_interrupted_run_keeps_the_best_head_and_goes_on_with_its_text(tmp_path: Path) -> None:
    seen = Seen(interrupt("text", 25))
    with pytest.raises(KeyboardInterrupt):
        train(seen, tmp_path)
    written, facts = TrainingText.load(tmp_path / "text.npz"), tmp_path / "text.json"
    assert written.num_answer_tokens > 1000
    spent = seen.watch.clock() - 2 * TICK  # a reading before the run, and this one
    num_kept = len(written.tokens) - len(written)  # without the prefix, which is one token
    kept_share = num_kept / (16 * len(seen.reports) * SETTINGS.num_rows)  # a report after 16 steps
    assert kept_share <= json.loads(facts.read_text())["seconds"] / spent < 1, "equal texts, kept once, count as time"
    with pytest.raises(RequestError, match="has no text of an earlier run to resume: leave out --resume"):
        train(Seen(), tmp_path / "empty", resume=True)
    with pytest.raises(RequestError, match="--resume"):
        train(Seen(), tmp_path)
    with pytest.raises(RequestError, match="another model"):
        train(Seen(), tmp_path, model=model(seed=1), resume=True)
    interrupted = train(Seen(interrupt("training", 18)), tmp_path, resume=True)
    assert interrupted.is_interrupted
    longer = TrainingText.load(tmp_path / "text.npz")
    assert len(longer) > len(written)
    assert all(begins(longer.document(index), written.document(index)) for index in range(len(written)))
    before = load_file(tmp_path / "model.safetensors")
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"seconds": 1e4}))  # it was paused while it wrote
    (tmp_path / "training.safetensors").unlink()
    seen = Seen(interrupt("training", 0))
    train(seen, tmp_path, resume=True)  # the start alone, which is worse
    assert seen.plans[0].training_minutes == pytest.approx(SETTINGS.minutes * (1 - SETTINGS.text_share) - TICK / 60)
    assert all(torch.equal(tensor, before[name]) for name, tensor in load_file(tmp_path / "model.safetensors").items())


def begins(document: np.ndarray[Any, Any], beginning: np.ndarray[Any, Any]) -> bool:
    return document[: len(beginning)].tolist() == beginning.tolist()


class Killed(BaseException):
    """Ends a run as a signal does: nothing is tidied up on its account."""


def kill(stage: str, after: int) -> Callable[[Progress], object]:
    count = itertools.count()

    def action(progress: Progress) -> None:
        if progress.stage == stage and next(count) == after:
            raise Killed

    return action


@pytest.fixture(scope="module")
def _killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    with pytest.raises(Killed):
        train(Seen(kill("training", 18)), folder)
    return folder


@pytest.fixture
def killed(_killed_once: Path, tmp_path: Path) -> Path:
    """A copy of the folder of a run that was killed in training."""
    shutil.copytree(_killed_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_run_that_is_killed_in_training_ends_as_an_uninterrupted_one(
    made: tuple[TrainedHead, Seen], killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = list[Checkpoint](), Checkpoint.load

    def noted(*given: Any) -> Checkpoint:
        checkpoint = load(*given)
        assert checkpoint is not None
        loaded.append(checkpoint)
        return checkpoint

    monkeypatch.setattr(Checkpoint, "load", noted)
    with pytest.raises(Killed):
        train(Seen(kill("training", 12)), killed, resume=True)
    assert (killed / "training.safetensors").exists()
    seen = Seen()
    head = train(seen, killed, resume=True)
    assert head.acceptance == made[0].acceptance
    expected = load_file(made[0].folder / "model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_file(killed / "model.safetensors").items())
    assert not (killed / "training.safetensors").exists()
    assert {each.stage for each in seen.reports} == {"training"}
    assert [each.resumed.tensors for each in loaded] == [{}, {}]  # no copy stays in memory
    (plan,) = seen.plans
    assert plan.num_written == plan.num_answer_tokens == head.num_answer_tokens
    assert 0 < plan.training_minutes < SETTINGS.minutes * (1 - SETTINGS.text_share)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_a_run_that_named_the_kind_of_its_head_goes_on_if_that_is_eagle3(killed: Path, kind: str) -> None:
    """Another kind's training begins anew on the text."""
    facts, checkpoint = killed / "text.json", killed / "training.safetensors"
    run = json.loads(facts.read_text())
    facts.write_text(json.dumps(run | {"settings": run["settings"] | {"kind": kind}}))
    before = checkpoint.read_bytes()
    checkpoint.write_bytes(before.replace(b'kind\\": \\"eagle3', f'kind\\": \\"{kind}'.encode()))
    assert (checkpoint.read_bytes() == before) == (kind == "eagle3")
    seen = Seen(interrupt("training", 0))
    head = train(seen, killed, resume=True)
    (plan,) = seen.plans
    assert plan.num_written == plan.num_answer_tokens == head.num_answer_tokens
    whole = SETTINGS.minutes * (1 - SETTINGS.text_share) - 2 * TICK / 60
    assert (plan.training_minutes < whole) == (kind == "eagle3")


def test_a_run_that_is_killed_while_writing_goes_on_with_its_text_and_time(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specdec.heads.training.own_text.OwnText.save", _without_the_last(OwnText.save))
        with pytest.raises(Killed):
            train(Seen(kill("text", 32)), tmp_path, prompts=PROMPTS)
    (tmp_path / ".specdec-part-model").mkdir()
    (tmp_path / ".text.npz.7-1a.part").write_bytes(b"half")
    written = TrainingText.load(tmp_path / "text.npz")
    seen = Seen(interrupt("training", 0))
    head = train(seen, tmp_path, prompts=PROMPTS, resume=True)
    assert head.num_answer_tokens > written.num_answer_tokens
    text = TrainingText.load(tmp_path / "text.npz")
    documents = [text.document(index) for index in range(len(text))]
    assert not any(begins(document, other) for document, other in itertools.permutations(documents, 2))
    assert all(begins(documents[index], written.document(index)) for index in range(len(written)))
    (plan,) = seen.plans
    assert 0 < plan.text_minutes < 0.9 * SETTINGS.minutes * SETTINGS.text_share
    assert plan.text_minutes + plan.training_minutes < SETTINGS.minutes
    assert {each.name for each in tmp_path.iterdir()} == {
        "README.md", "config.json", "facts.json", "model.safetensors", "text.json", "text.npz", "training.safetensors",
    }  # fmt: skip


def _without_the_last(save: Callable[..., TrainingText]) -> Callable[..., TrainingText]:
    """Saving as a killed run does it: not when an exception ends it."""

    def saved(own: OwnText, *given: Any) -> TrainingText:
        return own.text if isinstance(sys.exc_info()[1], Killed) else save(own, *given)

    return saved


def test_other_settings_begin_a_new_training_on_the_text(killed: Path) -> None:
    text, checkpoint = TrainingText.load(killed / "text.npz"), killed / "training.safetensors"
    before = {each: each.read_bytes() for each in killed.iterdir()}
    longer, seen = SETTINGS.model_copy(update={"minutes": 1.2}), Seen(interrupt("training", 0))
    for others, named in (
        ({"settings": longer}, "--minutes 1.0"),
        ({"model": model().to(torch.bfloat16)}, "--dtype float32"),
        ({"prompts": [[7, 8, 9]]}, r"the same prompts \(--prompts\) and chat template"),
    ):
        with pytest.raises(RequestError, match=f"go on with it by {named}, or remove {checkpoint}"):
            train(Seen(), killed, resume=True, **others)
    assert {each: each.read_bytes() for each in killed.iterdir()} == before
    checkpoint.unlink()
    train(seen, killed, settings=longer, resume=True)
    (plan,) = seen.plans
    assert plan.num_written == text.num_answer_tokens < TrainingText.load(killed / "text.npz").num_answer_tokens
    assert plan.text_minutes + plan.training_minutes == pytest.approx(1.2 - TICK / 60)


def test_text_of_an_earlier_run_counts_after_each_resume(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(Seen(kill("text", 38)), tmp_path)
    longer, plans = SETTINGS.model_copy(update={"minutes": 2.0}), list[Plan]()
    for after in (19, 19):
        seen = Seen(kill("text", after))
        with pytest.raises(Killed):
            train(seen, tmp_path, settings=longer, resume=True)
        plans += seen.plans
        spent = json.loads((tmp_path / "text.json").read_text())["seconds"] / 60
        if len(plans) == 1:
            planned = plans[0].text_minutes - spent
    earlier = TrainingText.load(tmp_path / "text.npz").num_answer_tokens
    assert plans[0].num_written < plans[1].num_written < earlier
    assert plans[1].text_minutes == pytest.approx(planned, abs=0.02)


def test_memory_that_runs_out_halves_the_texts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, sizes = Rollout.write, list[int]()

    def full(rollout: Rollout, goes_on: Callable[[Rollout], bool]) -> None:
        sizes.append(rollout.settings.num_rows)

        def limited(rollout: Rollout) -> bool:
            if rollout.settings.num_rows > 4 and len(rollout.records.steps) > 100:
                raise MemoryError
            return goes_on(rollout)

        write(rollout, limited)

    monkeypatch.setattr(Rollout, "write", full)
    seen = Seen(interrupt("training", 0))
    train(seen, tmp_path)
    assert sizes == [16, 8, 4]
    reports = [each for each in seen.reports if each.stage == "text"]
    assert all(earlier.num_answer_tokens <= later.num_answer_tokens for earlier, later in itertools.pairwise(reports))
    assert reports[-1].seconds_left > 60 * SETTINGS.minutes * (1 - SETTINGS.text_share) - 2
    monkeypatch.setattr("specdec.heads.training.own_text._FEWEST_ROWS", 16)
    with pytest.raises(
        ModelError, match=r"memory ran out: what the model has written is kept: free memory, or .*bfloat16"
    ):
        train(Seen(), tmp_path / "other")
    assert TrainingText.load(tmp_path / "other" / "text.npz").num_answer_tokens > 0


def test_files_that_are_replaced_count_as_room(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(RequestError, match="has room for"):
        prepare_folder(tmp_path, free + 2**39)
    prepare_folder(tmp_path, free + 2**39, replaced=("large", "missing"))


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    names = ".part-7", "notes.partial.npz", ".notes.part"
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "text.npz").touch()
    with pytest.raises(RequestError, match="has text of an earlier run"):
        train(Seen(), tmp_path)
    prepare_folder(tmp_path, 0)
    assert {each.name for each in tmp_path.iterdir()} == {*names, "text.npz"}


def test_files_are_on_the_disk_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, fsync = set[int](), os.fsync

    def noted(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    TrainingText.of([np.arange(3, dtype=np.int32)], [1]).save(tmp_path / "text.npz")
    Checkpoint(1, 1.0, None, Resumed(RunOutcome(), {"scales": torch.ones(2)})).save(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"text.npz", "training.safetensors"}
    assert {each.stat().st_ino for each in tmp_path.iterdir()} <= flushed


def with_template() -> Any:
    tokenizer = copy.deepcopy(trained())
    tokenizer.chat_template = "user: {{ messages[0].content }}\nanswer:"
    return tokenizer


@pytest.mark.parametrize("prompts", [None, [[7, 8, 9, 40], [7, 8, 10], [7, 50, 51, 52, 53]]])
def test_text_is_of_the_template_or_of_given_prompts(tmp_path: Path, prompts: list[list[int]] | None) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Seen(interrupt("text", 25)), tmp_path, tokenizer=with_template(), prompts=prompts)
    text = TrainingText.load(tmp_path / "text.npz")
    begins = prompts or [trained().encode("user: ")]
    for index in range(len(text)):
        document = text.document(index).tolist()
        assert any(document[: len(each)] == each for each in begins)
        assert text.answers[index] > 3


def _ends_at_once() -> LlamaForCausalLM:
    made = model()
    made.lm_head.weight[0] = 0.0
    made.model.norm.weight.zero_()  # all logits are equal, and the lowest id wins
    return made


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"tokenizer": None}, RequestError, "needs the model's tokenizer"),
        ({"prompts": [[5]]}, RequestError, "no prompt has"),
        ({"model": _ends_at_once(), "prompts": [[7, 8]]}, ModelError, r"ends nearly every text at once|too little"),
        ({"settings": SETTINGS.model_copy(update={"text_share": 1.0})}, RequestError, "or call write_own_text"),
        ({"settings": SETTINGS.model_copy(update={"minutes": 0.001})}, ModelError, "too little to train on"),
        ({"model": model(num_hidden_layers=1)}, ModelError, "has 1 layers"),
    ],
)
def test_unsuitable_input_is_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(Seen(), tmp_path, **given)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("name", ["save", "write_head"])
def test_a_full_disk_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if name == "save":
        monkeypatch.setattr(TrainingText, "save", full)
    else:
        monkeypatch.setattr("specdec.heads.training.eagle3_training.write_head", full)
    with pytest.raises(RequestError, match=rf"{tmp_path} can't be written to \(No space left on device\)"):
        train(Seen(), tmp_path, settings=SETTINGS.model_copy(update={"minutes": 0.5}))
    assert not (tmp_path / "config.json").exists()
