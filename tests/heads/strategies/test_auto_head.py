"""The default strategy with a head that was trained for the model on this machine, and with an unsuitable one."""

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Generator, ModelError, demo
from specdec.heads import local_heads
from specdec.heads.head_facts import HeadFacts, Speeds, facts_of, note_speeds, setup_of, write_facts
from specdec.heads.local_heads import folder_for, head_of, model_digest
from specdec.heads.strategies.engine import HeadEngine
from specdec.strategies.auto.merged import MergedEngine
from specdec.strategies.auto.proposer import AutoProposer
from specdec.strategies.host import Host
from specdec.strategies.signals import Hidden
from tests.support.plain import decode_model

SEED, NUM_TOKENS = 11, 24
FASTER = Speeds(without=1.5, with_head=1.6, alone=1.2, is_faster=True)


@pytest.fixture
def folder(built_in: tuple[Any, Any]) -> Iterator[Path]:
    """The built-in model's head where the training command would have put it."""
    place = folder_for(model_digest(built_in[0]))
    shutil.copytree(demo.head_folder(), place)
    write_facts(place, HeadFacts(model="demo", num_answer_tokens=1000, tokens_per_step=2.0))
    note_speeds(place, "", setup_of(built_in[0], "hf"), FASTER)
    yield place
    shutil.rmtree(place.parent)


@pytest.fixture(scope="module")
def prompts(built_in: tuple[Any, Any]) -> list[list[int]]:
    return [list(built_in[1](prompt.text)["input_ids"]) for prompt in demo.prompts()[:2]]


def parts_of(engine: object) -> list[str]:
    assert isinstance(engine, MergedEngine)
    return [part.name for part in engine.parts]


def never(*_: object) -> Any:
    raise AssertionError("the model's weights were read")


def test_texts_are_plain_decodings_and_say_that_the_head_drafted(
    built_in: tuple[Any, Any], prompts: list[list[int]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = built_in
    widths, draft = list[int](), HeadEngine.prepare_drafts

    def seen(engine: HeadEngine, drafters: Any, budgets: Any, pays: Any) -> None:
        draft(engine, drafters, budgets, pays)
        widths.extend(len(drafter.drafted.tokens) for drafter in drafters if drafter.drafted is not None)

    monkeypatch.setattr(HeadEngine, "prepare_drafts", seen)
    with Generator(model, tokenizer, numerics="exact") as generator:
        for seed in (None, SEED):
            sampling = {"temperature": 0.0 if seed is None else 1.0, "seed": SEED}
            results = generator.generate(prompts, max_new_tokens=NUM_TOKENS, **sampling)
            for prompt, result in zip(prompts, results, strict=True):
                assert list(result.token_ids) == decode_model(model, prompt, NUM_TOKENS, seed)
                (note,) = [note for note in result.notes if "head" in note]
                assert note.startswith("drafted with the head trained for this model on 20")
                assert note.endswith(f": {folder}")
        assert max(widths) > 1
        off = generator.generate(prompts[0], max_new_tokens=4, proposer="auto:head=false")
        assert not [note for note in off.notes if "head" in note]
        with generator.open_batch() as batch:  # on strategies of its own it drafts in a batch too
            handles = batch.add(prompts, max_new_tokens=NUM_TOKENS, proposer=["auto", "suffix"])
            while batch.advance() is not None:
                pass
        assert [len([note for note in handle.notes if "head" in note]) for handle in handles] == [1, 0]


def test_without_a_head_of_the_models_size_no_weights_are_read(
    built_in: tuple[Any, Any], prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_heads, "model_digest", never)
    monkeypatch.setattr(local_heads, "fingerprint_of", never)
    assert head_of(built_in[0]) is None
    monkeypatch.setattr(local_heads, "cache_folder", lambda: tmp_path)
    other = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=8, num_attention_heads=2))
    for name in ("0" * 32, "my-head"):
        shutil.copytree(demo.head_folder(), tmp_path / "heads" / name)
    assert head_of(other) is None
    shutil.rmtree(tmp_path / "heads" / ("0" * 32))
    assert head_of(built_in[0]) is None
    with Generator(*built_in) as generator:
        assert parts_of(generator._binding.strategies.own.engine) == [
            "suffix",
            "token_recycling",
            "grammar",
            "reference",
        ]
        assert not [note for note in generator.generate(prompts[0], max_new_tokens=2).notes if "head" in note]


def test_the_digest_is_computed_once_for_the_same_weights(
    built_in: tuple[Any, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = demo.load()
    assert head_of(model) == folder
    with monkeypatch.context() as patched:
        patched.setattr(local_heads, "model_digest", never)
        assert head_of(demo.load()[0]) == folder
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    assert head_of(model) is None


def test_auto_drafts_with_a_head_once_it_was_measured_to_be_faster(built_in: tuple[Any, Any], folder: Path) -> None:
    """A new head, and one that isn't faster, draft where they are named."""

    def drafts_with_it() -> bool:
        with Generator(*built_in) as generator:
            return "eagle3" in parts_of(generator._binding.strategies.own.engine)

    here = setup_of(built_in[0], "hf")
    assert here.startswith("hf in float32 on ")
    assert drafts_with_it()
    note_speeds(folder, "", here, FASTER.model_copy(update={"is_faster": False}))
    assert not drafts_with_it()
    note_speeds(folder, "", here, FASTER)
    known = facts_of(folder)
    assert (known.model, known.speeds) == ("demo", {here: FASTER})
    assert drafts_with_it()
    for speeds in ({}, {here.replace("float32", "bfloat16"): FASTER, here.replace("hf", "static"): FASTER}):
        write_facts(folder, known.model_copy(update={"speeds": speeds}))
        assert not drafts_with_it()
        with Generator(*built_in) as generator:
            (note,) = [each for each in generator.generate("def ", max_new_tokens=2).notes if "head" in each]
        assert f"the head in {folder} isn't known for {here}: `specdec heads measure`" in note
    (folder / "facts.json").unlink()
    assert not drafts_with_it()
    with Generator(*built_in, proposer="eagle3") as generator:
        assert generator.generate("def ", max_new_tokens=4).token_ids
    note_speeds(folder, "named later", here, FASTER)
    assert (facts_of(folder).model, facts_of(folder).tokens_per_step) == ("named later", 0.0)
    assert drafts_with_it()


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def break_tensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no tensors")


def name_another_kind(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "medusa"}))


def remove_tensors(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("damage", [break_config, break_tensors, remove_tensors, name_another_kind])
def test_a_damaged_head_is_left_out_and_the_note_says_why(
    built_in: tuple[Any, Any], prompts: list[list[int]], folder: Path, damage: Any
) -> None:
    damage(folder)
    with Generator(*built_in) as generator:
        result = generator.generate(prompts[0], max_new_tokens=NUM_TOKENS)
        assert parts_of(generator._binding.strategies.own.engine) == [
            "suffix",
            "token_recycling",
            "grammar",
            "reference",
        ]
    assert list(result.token_ids) == decode_model(built_in[0], prompts[0], NUM_TOKENS, None)
    (note,) = [note for note in result.notes if "head" in note]
    assert note.startswith("drafted without a trained head: ")
    assert str(folder) in note
    assert (f"{folder} holds a head that medusa:head=FOLDER reads" in note) == (damage is name_another_kind)


def test_where_hidden_states_or_layers_are_unavailable_it_goes_on_without_the_head(
    built_in: tuple[Any, Any], folder: Path
) -> None:
    asked = list[Collection[int]]()

    def refuse(layers: Collection[int]) -> None:
        asked.append(layers)
        raise ModelError("no hidden states here")

    with Generator(*built_in) as generator:
        host: Host = generator._binding.strategies._host
        assert parts_of(AutoProposer().bind(host))[-1] == "eagle3"
        for unable, reason in (
            (replace(host, expect_hidden=refuse), "no hidden states here"),
            (replace(host, num_layers=None), "layers are unknown"),
            (replace(host, extension=never), "weights were read"),
        ):
            engine = AutoProposer().bind(unable)
            assert "eagle3" not in parts_of(engine)
            assert not [what for _, what in engine.wants() if isinstance(what, Hidden)]
            (note,) = engine.notes
            assert note.startswith("drafted without a trained head: ")
            assert reason in note
    (layers,) = asked
    assert set(layers) == {1, 2, 3}


@pytest.mark.parametrize("options", [{"proposer": "auto:clock=false"}, {"verifier": "rejection"}])
def test_where_the_time_of_passes_isnt_measured_it_goes_on_without_the_head(
    built_in: tuple[Any, Any], prompts: list[list[int]], folder: Path, options: dict[str, str]
) -> None:
    with Generator(*built_in, **options) as generator:
        result = generator.generate(prompts[0], max_new_tokens=4)
    (note,) = [note for note in result.notes if "head" in note]
    assert note.startswith("drafted without a trained head: auto uses the head trained for this model on ")
