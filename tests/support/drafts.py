"""The drafts of a strategy while a generator decodes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specdec import DraftTree, Generator, Result


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


def plain_decodings(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    seed: int,
    num_tokens: int,
    plain: Callable[[Sequence[int], int | None], list[int]],
) -> Iterator[list[Result]]:
    """The results of a batch, greedily and at temperature 1, once each text is plain decoding's.

    Args:
        plain: returns plain decoding's text of a prompt, with a seed or greedily.
    """
    for temperature, of_plain in ((0.0, None), (1.0, seed)):
        results = generator.generate(
            [list(prompt) for prompt in prompts], max_new_tokens=num_tokens, temperature=temperature, seed=seed
        )
        for prompt, result in zip(prompts, results, strict=True):
            assert list(result.token_ids) == plain(prompt, of_plain)
        yield results
