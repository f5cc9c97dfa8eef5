"""Replays count the steps that drafting step by step takes."""

import torch

from benchmarks.training.replays import TargetAnswer, TreeShape, chain_drafts, replay_chains, replay_trees
from specdec.heads.training.eagle3_training import Eagle3Training
from tests.support.eagle3_reference import ReferenceHead
from tests.support.random_heads import random_head, reference_of


def answer_of(head, seed: int, likely: bool = True) -> TargetAnswer:  # type: ignore[no-untyped-def]
    """A text of which a reference drafts a good part: some of its tokens are the head's own drafts."""
    draw = torch.Generator().manual_seed(seed)
    num_prompt, length = 5, 30
    states = torch.randn(length, head.fc.in_features, generator=draw)
    tokens = torch.randint(head.config.vocab_size, (num_prompt + 1,), generator=draw).tolist()
    while len(tokens) < length:
        reference = reference_of(head)
        last = reference.extend(states[: len(tokens) - 1], torch.tensor(tokens[1:]))
        drafted = reference.grow(last, 3, 2, 9)
        node = int(torch.randint(9, (1,), generator=draw))
        path = []
        while node >= 0:
            path.append(drafted[0][node])
            node = drafted[1][node]
        tokens += [*path[::-1], int(torch.randint(head.config.vocab_size, (1,), generator=draw))]
    return TargetAnswer("any", torch.tensor(tokens[:length]), num_prompt, states)


def steps_alone(reference: ReferenceHead, answer: TargetAnswer, width: int, depth: int, total: int) -> int:
    known, fed, steps = answer.num_prompt + 1, 0, 1
    text = answer.tokens.tolist()
    while known < len(text):
        last = reference.extend(answer.read[fed : known - 1], answer.tokens[fed + 1 : known])
        fed = known - 1
        tokens, parents, _ = reference.grow(last, width, depth, total)
        node = -1
        while known < len(text):
            found = [n for n in range(total) if parents[n] == node and tokens[n] == text[known]]
            if not found:
                break
            node, known = found[0], known + 1
        known, steps = known + 1, steps + 1
    return steps


@torch.no_grad()
def test_trees_and_chains_take_as_many_steps_as_the_reference() -> None:
    head, _ = random_head(4)
    answers = [answer_of(head, seed) for seed in range(4)]
    found = replay_trees(head, answers, TreeShape(3, 2, 9))
    assert found == [steps_alone(reference_of(head), answer, 3, 2, 9) for answer in answers]
    training = Eagle3Training(None, head)
    chains = [chain_drafts(training, answer, 4) for answer in answers]
    for depth in (1, 3):
        steps = [replay_chains(right, answer, depth) for right, answer in zip(chains, answers, strict=True)]
        assert steps == [steps_alone(reference_of(head), answer, 1, depth - 1, depth) for answer in answers]
    assert sum(found) < sum(len(answer.tokens) - answer.num_prompt for answer in answers)
