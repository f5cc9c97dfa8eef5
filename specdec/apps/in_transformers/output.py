"""Results in the form of ``generate``'s."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from specdec.errors import RequestError
from specdec.sampling.processors import is_path_pure, processor_name


def check_scores(config: GenerationConfig, processors: Sequence[Any]) -> None:
    """Refuse scores with stateful processors, which would be called twice per token.

    Raises:
        RequestError: with the processors' names.
    """
    if gives(config, "output_scores") and (
        names := [processor_name(one) for one in processors if not is_path_pure(one)]
    ):
        raise RequestError(
            f"output_scores calls {', '.join(names)} a second time for each token: give it is_path_pure = True if its "
            "scores depend on its arguments alone, or use output_logits"
        )


def gives(config: GenerationConfig, name: str) -> bool:
    """Return True if an output besides the sequences is requested."""
    return bool(config.return_dict_in_generate and getattr(config, name))


def padded(input_ids: torch.Tensor, texts: Sequence[Sequence[int]], pad: int | None) -> torch.Tensor:
    """Append each row's new tokens to ``input_ids``, (batch, tokens), padded on the right."""
    longest = max(map(len, texts))
    assert pad is not None or min(map(len, texts)) == longest, (
        "rows end early only by an end-of-text token, which pads them"
    )
    new = [[*text, *[pad] * (longest - len(text))] for text in texts]
    return torch.cat([input_ids, torch.tensor(new, dtype=input_ids.dtype, device=input_ids.device)], -1)


def as_output(
    sequences: torch.Tensor,
    num_given: int,
    logits: Sequence[Sequence[torch.Tensor]],
    config: GenerationConfig,
    processors: Sequence[Any],
    is_encoded: bool = False,
) -> GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput:
    """Return the output for ``return_dict_in_generate``.

    It has the sequences and, if requested, for each new token the scores and logits, (batch, vocab), which are zeros
    in rows that have ended. It has no cache.

    Args:
        num_given: number of tokens of the prompts in ``sequences``, padding included.
        logits: by row, the logits of each new token, (vocab,); empty if neither scores nor logits are returned.
        is_encoded: of an encoder-decoder model.
    """
    num_new = sequences.shape[1] - num_given if config.output_scores or config.output_logits else 0
    steps = [_step([row[index] if index < len(row) else None for row in logits]) for index in range(num_new)]
    steps = [step.to(sequences.device) for step in steps]
    scores = [_processed(processors, sequences[:, : num_given + index], step) for index, step in enumerate(steps)]
    kind = GenerateEncoderDecoderOutput if is_encoded else GenerateDecoderOnlyOutput
    return kind(
        sequences=sequences,
        scores=tuple(scores) if config.output_scores else None,
        logits=tuple(steps) if config.output_logits else None,
    )


def _step(rows: Sequence[torch.Tensor | None]) -> torch.Tensor:
    known = next(row for row in rows if row is not None)
    return torch.stack([torch.zeros_like(known) if row is None else row for row in rows])


def _processed(processors: Sequence[Any], input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    scores = logits.clone()  # processors may write in place
    for processor in processors:
        scores = processor(input_ids, scores)
    return scores
