"""What a strategy drafts while a generator decodes."""

from collections.abc import Iterator
from typing import Any

from specdec import DraftTree, Generator


def drafts_of(
    generator: Generator, prompts: list[list[int]], num_tokens: int, **settings: Any
) -> Iterator[tuple[int, list[int], DraftTree]]:
    """The number of the request, the text before each step, and the step's draft."""
    with generator.open_batch() as batch:
        handles = batch.add(prompts, max_new_tokens=num_tokens, **settings)
        texts = [list(prompt) for prompt in prompts]
        while (record := batch.advance()) is not None:
            for outcome in record.outcomes:
                if outcome.tree is not None:
                    index = handles.index(outcome.request)
                    yield index, list(texts[index]), outcome.tree
                    texts[index] += outcome.tokens


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens from the root to each drafted node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], token))
    return set(found[1:])
