"""The trees that a strategy drafts, for worked examples and tests."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from specdec.backends import ToyModel
from specdec.constraints import Constraint
from specdec.record import StepRecord
from specdec.strategies import Proposer
from specdec.tree import DraftTree


def first_drafts(
    proposer: Proposer,
    prompt: list[int],
    num_steps: int = 1,
    vocab_size: int = 10,
    constraint: Constraint | None = None,
    tokenizer: Any = None,
    reference: Sequence[int] | None = None,
) -> list[DraftTree]:
    """Return the trees that a strategy drafts in the first steps after a prompt.

    The target is ``ToyModel.counting(vocab_size)``, decoded greedily: it predicts token i % vocab_size at position i.
    ``tokenizer`` is what the strategy finds as ``host.tokenizer``, such as ``toy_tokenizer(vocab_size)``.
    """
    from specdec.generator import Generator

    trees: list[DraftTree] = []

    def collect(record: StepRecord) -> None:
        trees.extend(outcome.tree for outcome in record.outcomes if outcome.tree is not None)

    with Generator(ToyModel.counting(vocab_size), tokenizer, proposer=proposer) as generator:
        chunks = generator.stream(
            prompt, max_new_tokens=64, on_step=collect, constraint=constraint, reference=reference
        )
        for _ in islice(chunks, num_steps):
            pass
    return trees
