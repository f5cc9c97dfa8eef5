"""Prompts with images and audio: any chunks, trees and batches have the logits of the model's own ``generate``.

Tokens would hide mistakes: an image read in two parts changes the logits of a random model by a tenth of their spread,
and seldom its greedy text.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, PreTrainedModel

from specdec.backends import HFBackend
from specdec.inputs.prepared import PreparedPrompt
from specdec.inputs.processor import ProcessorOutput
from specdec.masks import DenseCompiler, ExactCompiler, SlotTableCompiler
from specdec.target import CacheRow, Target
from specdec.tree import ROOT, DraftTree
from tests.support import multimodal
from tests.support.multimodal import FAMILIES, Inputs

CLOSE, CLOSE_STATES = 3e-5, 1e-4  # of logits with a standard deviation of 1.5: rounding; mistakes make 1e-2 and more
CHUNK = 7
COMPILERS = {"dense": DenseCompiler(), "exact": ExactCompiler(), "slot_table": SlotTableCompiler()}
PROMPTS = ((1, 1, 20), (2, 2, 13), (3, 0, 16))  # seed, number of images, tokens of text


class Forced(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Makes a text the greedy one."""

    def __init__(self, num_prompt: int, text: Sequence[int]) -> None:
        self.num_prompt, self.text = num_prompt, text

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.text[input_ids.shape[1] - self.num_prompt]] = 0.0
        return forced


def own_logits(model: PreTrainedModel, inputs: Inputs, text: Sequence[int]) -> torch.Tensor:
    """The logits of ``generate`` after a prompt, and after each token of a text behind it: (1 + tokens, vocab)."""
    forced = Forced(inputs["input_ids"].shape[1], [*text, 0])
    found = model.generate(
        **inputs, max_new_tokens=len(text) + 1, do_sample=False, pad_token_id=0, eos_token_id=None,
        logits_processor=[forced], return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return torch.cat(found.logits)


@cache
def made(name: str) -> tuple[PreTrainedModel, tuple[Inputs, ...], tuple[PreparedPrompt, ...]]:
    """A family's model, and prompts as its processor gives them and as specdec reads them."""
    model = multimodal.make(name)
    inputs = tuple(multimodal.prompt(name, *each) for each in PROMPTS)
    prepared = tuple(ProcessorOutput(each).prompts()[0].prepared(model) for each in inputs)
    return model, inputs, prepared


def bound_of(name: str) -> float:
    return CLOSE if FAMILIES[name].takes_trees else CLOSE_STATES


def target_of(model: PreTrainedModel, compiler: Any, chunk: int = CHUNK) -> Target:
    backend = HFBackend.load(model, compiler)
    backend.shapes = replace(backend.shapes, chunk=chunk)
    return Target(backend, compiler)


def opened(target: Target, prompt: PreparedPrompt) -> CacheRow:
    row = target.open(len(prompt.ids) + 40)
    target.set_inputs(row, prompt.inputs)
    return row


def read(target: Target, row: CacheRow, tokens: Sequence[int]) -> torch.Tensor:
    """Read a prompt up to its last token; return the logits there."""
    return target.read_all(row, tokens).logits(ROOT)


def random_tree(rng: random.Random, takes_trees: bool) -> DraftTree:
    tree = DraftTree(rng.randrange(3, 80))
    for _ in range(rng.randrange(1, 8)):
        parent = rng.randrange(len(tree)) if takes_trees else len(tree) - 1
        tree.add(parent, rng.randrange(3, 80))
    return tree


def errors(
    model: PreTrainedModel, inputs: Inputs, text: Sequence[int], tree: DraftTree, found: Mapping[int, torch.Tensor]
) -> list[float]:
    """By leaf, how far the logits of a path are from ``generate``'s after the same tokens."""
    far = []
    for leaf in sorted(set(range(len(tree))) - set(tree.parents)):
        path = [*tree.lineage(leaf)]
        path = path if path[0] == ROOT else path[::-1]
        own = own_logits(model, inputs, [*text, *(tree.tokens[node] for node in path)])[-len(path) :]
        far.append(max(float((found[node] - each).abs().max()) for node, each in zip(path, own, strict=True)))
    return far


# Those for which mistakes are known: see mutations.py.
ALWAYS = {("llava", "dense"), ("gemma4", "slot_table"), ("gemma3", "exact")}


def with_compilers() -> Iterator[Any]:
    """Yield each family with each compiler, for the night but one of them, which takes turns."""
    for i, name in enumerate(FAMILIES):
        for j, compiler in enumerate(COMPILERS):
            is_for_the_night = i % len(COMPILERS) != j and (name, compiler) not in ALWAYS
            yield pytest.param(name, compiler, marks=[pytest.mark.nightly] if is_for_the_night else [])


# Rows are kept apart by the same code for all families: two of three are for the night.
BY_TURNS = [
    name if i % 3 == 0 or name == "qwen2_vl" else pytest.param(name, marks=pytest.mark.nightly)
    for i, name in enumerate(FAMILIES)
]


@pytest.mark.parametrize(("name", "compiler"), [*with_compilers()])
def test_a_prompt_in_chunks_and_trees_behind_it_have_generates_logits(name: str, compiler: str) -> None:
    model, all_inputs, prompts = made(name)
    target, rng = target_of(model, COMPILERS[compiler]), random.Random(5)
    for inputs, prompt in zip(all_inputs, prompts, strict=True):
        row = opened(target, prompt)
        logits = read(target, row, prompt.ids)
        assert float((logits - own_logits(model, inputs, [])[0]).abs().max()) < bound_of(name)
        for _ in range(2):
            tree = random_tree(rng, target.shapes.takes_trees)
            planned = target.compile({row: tree})
            rows = target.forward(planned).rows
            found = {node: rows[row].logits(node) for node in range(len(tree))}
            assert max(errors(model, inputs, [], tree, found)) < bound_of(name)
            target.commit(planned, {})
        target.release(row)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_image_anywhere_between_chunks_has_generates_logits(name: str) -> None:
    model, target = multimodal.make(name), target_of(multimodal.make(name), DenseCompiler())
    for before in range(1, CHUNK + 1):
        inputs = multimodal.compose(name, [*range(20, 20 + before)], before, [30, 31, 32, 33])
        [prompt] = ProcessorOutput(inputs).prompts()
        prepared = prompt.prepared(model)
        row = opened(target, prepared)
        logits = read(target, row, prepared.ids)
        target.release(row)
        assert float((logits - own_logits(model, inputs, [])[0]).abs().max()) < bound_of(name)


@pytest.mark.parametrize("name", BY_TURNS)
def test_rows_with_other_images_or_none_stay_apart_in_any_order(name: str) -> None:
    model, all_inputs, prompts = made(name)
    rng, target = random.Random(3), target_of(model, DenseCompiler())
    held: dict[CacheRow, tuple[Inputs, list[int]]] = {}
    for _ in range(9):
        if len(held) == 3 or (held and rng.random() < 0.3):
            row = rng.choice([*held][:2])  # often one that isn't the last
            del held[row]
            target.release(row)
        number = rng.randrange(len(prompts))
        row, prompt = opened(target, prompts[number]), prompts[number]
        ids = [*prompt.ids]
        while chunk := target.chunk_after(row, ids):
            target.read(row, chunk)
        held[row] = all_inputs[number], []
        trees = {row: random_tree(rng, target.shapes.takes_trees) for row in held}
        trees[row].tokens[ROOT] = ids[-1]  # the new row reads the rest of its prompt beside the others' trees
        planned = target.compile(trees, {row: ids[row.length : -1]})
        answers = target.forward(planned).rows
        paths = {}
        for each, tree in trees.items():
            inputs, text = held[each]
            known = {node: answers[each].logits(node) for node in range(len(tree))}
            if each is row:  # its root is the prompt's last token
                far = [float((known[ROOT] - own_logits(model, inputs, [])[-1]).abs().max())]
            else:
                far = errors(model, inputs, text, tree, known)
            assert max(far) < bound_of(name)
            paths[each] = (ROOT, *range(1, 2)) if len(tree) > 1 else (ROOT,)
            text += [tree.tokens[node] for node in paths[each]][each is row :]
        target.commit(planned, paths)
