"""One head of a learning curve: trained to the end of its schedule, then measured on held-out text and on prompts."""

import copy
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.training.replays import TargetAnswer, TreeShape, chain_drafts, replay_chains, replay_trees
from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.eagle3_training import DEPTH, Eagle3Training
from specdec.heads.training.head_training import draft_vocabulary, token_counts
from specdec.heads.training.loop import Trainer
from specdec.heads.training.packing import PackedRows, pack
from specdec.heads.training.settings import TrainingSettings
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText

SMALL_TREE, LARGE_TREE = TreeShape(8, 5, 8), TreeShape(8, 5, 16)
ROW_LENGTH = 512
START_ROWS = 128


@dataclass(frozen=True)
class Point:
    """A head to train.

    Attributes:
        name: of the point in the results.
        num_answer_tokens: of the text it learns from.
        draft_vocab_size: size of its draft vocabulary.
        settings: of its training.
        passes: times that the text is gone through.
    """

    name: str
    num_answer_tokens: int
    draft_vocab_size: int
    settings: TrainingSettings
    passes: int = 1


@dataclass(frozen=True)
class Corpus:
    """A target with its own text.

    Attributes:
        model: the target.
        text: to train on, in random order.
        held_out: to evaluate on.
        answers: the target's answers to prompts that are never trained on.
        overrides: sizes of the heads that differ from those derived from the target.
    """

    model: Any
    text: TrainingText
    held_out: TrainingText
    answers: list[TargetAnswer]
    overrides: dict[str, Any]


def train_point(corpus: Corpus, point: Point, seed: int) -> tuple[Eagle3Training, dict[str, Any]]:
    """Train a head; return it, with what was measured."""
    began, model = time.perf_counter(), corpus.model
    text = corpus.text.first(point.num_answer_tokens)
    vocab_size = len(model.get_input_embeddings().weight)
    vocabulary = draft_vocabulary(text, vocab_size, point.draft_vocab_size)
    training = Eagle3Training.untrained(model, vocabulary, **corpus.overrides)
    target = TargetStates(model, training.layer_ids)
    shuffle = np.random.default_rng(seed)
    rows = joined([pack(text, ROW_LENGTH, shuffle) for _ in range(point.passes)])
    held_out = pack(corpus.held_out, ROW_LENGTH, shuffle)
    trainer = Trainer(training, target, held_out, point.settings)
    prepared = time.perf_counter() - began
    explained = trainer.start(rows[:START_ROWS], torch.Generator(model.device).manual_seed(seed))
    before = trainer.evaluate()
    started = time.perf_counter() - began - prepared
    run = trainer.train(rows)
    training.fold()
    counts = token_counts(corpus.held_out, vocab_size)
    measured = {
        "name": point.name,
        "weights": sum(each.numel() for each in training.head.parameters()),
        "num_answer_tokens": run.num_answer_tokens,
        "num_tokens": run.num_tokens,
        "documents": len(text),
        "passes": point.passes,
        "draft_vocab_size": len(vocabulary),
        "coverage_of_held_out_text": float(counts[vocabulary].sum() / max(1, counts.sum())),
        "settings": point.settings.model_dump(),
        "seconds": {"preparing": prepared, "start": started, "training": run.seconds},
        "explained_by_start": explained,
        "before_training": described(before),
        "losses": run.losses,
        "evaluations": [(update, described(found)) for update, found in run.evaluations],
        "best_update": run.best,
    }
    return training, measured


def answer_of(
    category: str, prompt: Sequence[int], text: Sequence[int], training: Eagle3Training, target: TargetStates
) -> TargetAnswer:
    """A target's answer to a prompt, with the states that a head reads."""
    tokens = torch.tensor([*prompt, *text], device=training.device)
    return TargetAnswer(category, tokens, len(prompt), target.of(tokens[None]).layers[0])


def joined(parts: list[PackedRows]) -> PackedRows:
    """Join packed rows, one pass after another."""
    names = "tokens", "documents", "positions", "is_answer"
    return PackedRows(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def described(found: Acceptance) -> dict[str, Any]:
    return asdict(found) | {"tokens_per_step": found.tokens_per_step}


def on_prompts(training: Eagle3Training, answers: list[TargetAnswer]) -> dict[str, Any]:
    """Replay the target's answers with a head's chains and trees; figures over all answers and by category."""
    began = time.perf_counter()
    right = [chain_drafts(training, answer, DEPTH) for answer in answers]
    head = copy.deepcopy(training.head).float()
    steps = {f"chain of {depth}": [replay_chains(*each, depth) for each in zip(right, answers, strict=True)]
             for depth in range(1, DEPTH + 1)}  # fmt: skip
    for shape in (SMALL_TREE, LARGE_TREE):
        steps[f"tree of {shape.num_nodes}"] = replay_trees(head, answers, shape)
    tokens = [answer.num_answer for answer in answers]
    categories: dict[str, dict[str, float]] = defaultdict(dict)
    for name in dict.fromkeys(answer.category for answer in answers):
        chosen = [index for index, answer in enumerate(answers) if answer.category == name]
        for kind, found in steps.items():
            categories[name][kind] = sum(tokens[index] for index in chosen) / sum(found[index] for index in chosen)
    return {
        "prompts": len(answers),
        "answer_tokens": sum(tokens),
        "acceptance_given_all_before": acceptance_by_depth(right, answers),
        "tokens_per_step": {kind: sum(tokens) / sum(found) for kind, found in steps.items()},
        "by_category": dict(categories),
        "seconds": time.perf_counter() - began,
    }


def acceptance_by_depth(right: list[torch.Tensor], answers: list[TargetAnswer]) -> list[float]:
    """The share of chains, begun at every position, whose token of a depth is right where all before it are."""
    shares = []
    for depth in range(DEPTH):
        begun, accepted = 0.0, 0.0
        for each, answer in zip(right, answers, strict=True):
            chains = each[answer.num_prompt - 1 : len(each) - 2 - depth]
            begun += float(chains[:, depth - 1].sum()) if depth else len(chains)
            accepted += float(chains[:, depth].sum())
        shares.append(accepted / max(1.0, begun))
    return shares
