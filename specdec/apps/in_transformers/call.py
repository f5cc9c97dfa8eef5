"""A prepared call of ``generate``, decoded by a generator."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperNoSpeechDetection

from specdec.apps.in_transformers.arguments import check_criteria, check_functions, sampling_settings, stopping_settings
from specdec.apps.in_transformers.output import as_output, check_scores, gives, padded
from specdec.apps.in_transformers.refusals import check_inputs, check_mode, check_processors
from specdec.apps.in_transformers.rows import PaddedRow, rows_of
from specdec.constraints.base import Constraint
from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.inputs.encoded import EncodedPrompt
from specdec.inputs.prepared import PreparedPrompt, prepared_prompts
from specdec.record import StepRecord
from specdec.requests.model_defaults import OWN_RULES

_SEEDS = 2**62


class GenerateCall:
    """One call of ``generate``: its rows, their settings, and the tokens decoded so far.

    Args:
        input_ids: (batch, tokens), padded on the left.
        constraint: of each row's new text.
        reference: as for ``Generator.generate``.
        streamer: receives a single row's tokens one by one, as from ``generate``, and always the end.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        processors: Sequence[Any],
        criteria: Sequence[Any],
        config: GenerationConfig,
        streamer: Any | None,
        constraint: Constraint | None = None,
        reference: Any = None,
    ) -> None:
        self._input_ids, self._criteria = input_ids, criteria
        self._config, self._streamer, self._constraint = config, streamer, constraint
        self._reference = reference
        self._detectors = [each for each in processors if isinstance(each, WhisperNoSpeechDetection)]
        self._processors = [each for each in processors if each not in self._detectors]
        self._rows: list[PaddedRow] = []
        self._prompts: list[PreparedPrompt] = []
        self._tokens: list[list[int]] = [[] for _ in input_ids]
        self._logits: list[list[torch.Tensor]] = [[] for _ in input_ids]

    def check(self, model: Any, inputs: Mapping[str, Any], assistant_model: Any | None) -> None:
        """Raise an error for unsupported arguments, before the model is tested and packed.

        Args:
            inputs: the model's inputs besides ids.

        Raises:
            RequestError: with the names of unsupported arguments.
        """
        check_mode(self._config, assistant_model)
        check_inputs(inputs, model)
        self._rows = rows_of(self._input_ids, inputs)
        self._prompts = prepared_prompts(model, self._input_ids, inputs)
        check_processors(self._processors)
        check_criteria(self._criteria, len(self._rows))
        check_functions([*self._processors, *self._criteria], len(self._rows))
        check_scores(self._config, self._processors)
        if self._constraint is not None and gives(self._config, "output_scores"):
            raise RequestError(
                "output_scores would lack the constraint's masks: leave it out, or ask for output_logits"
            )
        if self._streamer is not None and len(self._rows) > 1:
            raise RequestError("a streamer receives one text, but a batch was given: give one prompt at a time")

    def decode(self, generator: Generator) -> Any:
        """Decode the rows, after ``check``; return what ``generate`` returns."""
        try:
            self._stream(generator)
        finally:
            if self._streamer is not None:
                self._streamer.end()
        for detector in self._detectors:  # changes no scores, and asks for those of the whole batch
            detector(self._input_ids, torch.stack([logits[0] for logits in self._logits]))
        pad = self._config._pad_token_tensor
        sequences = padded(self._input_ids, self._tokens, None if pad is None else int(pad))
        if not self._config.return_dict_in_generate:
            return sequences
        is_encoded = any(isinstance(each.inputs, EncodedPrompt) for each in self._prompts)
        return as_output(sequences, self._input_ids.shape[1], self._logits, self._config, self._processors, is_encoded)

    def _stream(self, generator: Generator) -> None:
        each, reference = self._settings(generator.vocab_size), self._reference
        chunks = generator.stream(self._prompts, each=each, reference=reference, on_step=self._note_logits)
        with closing(chunks):  # type: ignore[type-var]  # an iterator that is a generator
            for chunk in chunks:
                if chunk.result is not None and chunk.result.error is not None:
                    raise chunk.result.error
                self._tokens[chunk.index] += chunk.token_ids
                if self._streamer is not None:
                    for token in chunk.token_ids:
                        self._streamer.put(torch.tensor([token]))

    def _settings(self, vocab_size: int) -> list[dict[str, Any]]:
        """Return each row's settings; seeds are drawn by torch, so ``torch.manual_seed`` reproduces a text."""
        samples = bool(self._config.do_sample)
        seeds = torch.randint(_SEEDS, (len(self._rows),)).tolist() if samples else [0] * len(self._rows)
        keeps_logits = gives(self._config, "output_scores") or gives(self._config, "output_logits")
        keeps_logits = keeps_logits or bool(self._detectors)
        return [
            dict.fromkeys(OWN_RULES)  # those of the call are among its processors
            | sampling_settings(self._processors, row, len(self._rows), samples)
            | stopping_settings(self._criteria, row, self._config.max_length, vocab_size)
            | {"seed": seed, "keeps_logits": keeps_logits, "constraint": self._constraint}
            for row, seed in zip(self._rows, seeds, strict=True)
        ]

    def _note_logits(self, record: StepRecord) -> None:
        for outcome in record.outcomes:
            self._logits[outcome.request.index] += [one.clone() for one in outcome.logits]
