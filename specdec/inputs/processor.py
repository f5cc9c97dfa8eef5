"""A processor's output as prompts: what ``generate(**processor(…))`` and chat messages with images give."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from specdec.errors import RequestError, in_one_line
from specdec.inputs.own_continuation import GREEDY
from specdec.inputs.prepared import PreparedPrompt, prepared_prompts
from specdec.models.encoder_decoders import has_one_vocabulary
from specdec.models.notes import lock_of
from specdec.models.rejected_inputs import rejects


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorOutput:
    """The arguments of ``model.generate`` as a processor makes them, of one prompt or several; none is None."""

    arguments: Mapping[str, Any]
    _prepared: list[list[PreparedPrompt] | RequestError] = field(default_factory=list)  # at most one

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return a processor's output, whose arrays and lists become tensors.

        Raises:
            RequestError: for what can't be a tensor, and for ids of another shape than (prompts, tokens).
        """
        arguments = {name: _as_tensor(name, value) for name, value in given.items() if value is not None}
        ids = arguments.get("input_ids")
        if ids is not None and ids.ndim != 2:
            raise RequestError(f"input_ids has shape {tuple(ids.shape)}: with images or audio it is (prompts, tokens)")
        return cls(arguments)

    @property
    def num_rows(self) -> int:
        """The number of prompts."""
        given = self.arguments.get("input_ids")
        return len(next(iter(self.arguments.values())) if given is None else given)

    def prompts(self) -> list["ProcessedPrompt"]:
        """Return the prompts."""
        return [ProcessedPrompt(self, number) for number in range(self.num_rows)]

    def row(self, model: Any, number: int) -> PreparedPrompt:
        """Return a prompt as ``generate`` prepares it; images are encoded once for all rows.

        Raises:
            RequestError: if the model doesn't take the inputs.
        """
        if not self._prepared:
            try:
                self._prepared.append(_captured(model, self.arguments))
            except RequestError as error:  # the other rows needn't be encoded to learn it
                self._prepared.append(error)
        [found] = self._prepared
        if isinstance(found, RequestError):
            raise found
        return found[number]


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedPrompt:
    """One prompt of a processor's output; the model is needed to prepare it."""

    output: ProcessorOutput
    number: int

    @property
    def ids(self) -> list[int]:
        """The prompt's tokens, without padding."""
        rows = (self.output.arguments.get(name) for name in ("input_ids", "attention_mask"))
        ids, mask = (None if row is None else row[self.number] for row in rows)
        assert ids is not None, "a processor's output has ids"
        unpadded: list[int] = (ids if mask is None else ids[mask != 0]).tolist()
        return unpadded

    @property
    def num_bytes(self) -> int:
        """Bytes of all that the processor made, for all prompts of its output."""
        return sum(value.nbytes for value in self.output.arguments.values() if isinstance(value, torch.Tensor))

    @property
    def num_given(self) -> int:
        """The number of ids, padding included; 1 for a model whose own text begins with a token of its own."""
        ids = self.output.arguments.get("input_ids")
        return 1 if ids is None else len(ids[self.number])

    def prepared(self, model: Any) -> PreparedPrompt:
        """Return the prompt as ``generate`` prepares it; raises as ``ProcessorOutput.row``."""
        prompt = self.output.row(model, self.number)
        return replace(prompt, source=self.ids) if has_one_vocabulary(model) else prompt


def _captured(model: Any, arguments: Mapping[str, Any]) -> list[PreparedPrompt]:
    """Return the rows of a call of ``generate``, which isn't carried out: it encodes images, and counts positions."""
    found: list[PreparedPrompt] = []
    own_door = "model.generate(…, custom_generate=specdec.custom_generate())"

    def capture(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **given: Any,
    ) -> torch.Tensor:
        if found:
            raise RequestError(f"{type(model).__name__} decodes this input in several parts: use {own_door}")
        found.extend(prepared_prompts(model, input_ids, given))
        return torch.cat([input_ids, input_ids[:, -1:]], -1)  # Whisper reads the text's last token

    given = {name: _placed(value, model) for name, value in arguments.items()}
    if "input_ids" in given and not model.config.is_encoder_decoder:  # or padding ids in a text would count as padding
        given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    with rejects(model, ", ".join(given)), lock_of(model), torch.no_grad():
        model.generate(**given, max_new_tokens=1, **GREEDY, custom_generate=capture)
    return found


def _as_tensor(name: str, value: Any) -> Any:
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        return value
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = f"{name} can't be a tensor ({in_one_line(error)})"
        raise RequestError(f"{reason}: ask the processor for return_tensors='pt', and for padding=True") from error


def _placed(value: Any, model: Any) -> Any:
    """Return an input on the model's device, numbers with a point in its dtype."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)


def split(given: Any) -> tuple[Any, Any]:
    """Return the tokenizer and the processor of what was given as a tokenizer; None for what there isn't.

    A tokenizer without a chat template is copied, and the copy has the processor's.
    """
    inner = getattr(given, "tokenizer", None)
    if inner is None or not hasattr(given, "apply_chat_template"):
        return given, None
    template = getattr(given, "chat_template", None)
    if template and not getattr(inner, "chat_template", None):
        inner = copy.copy(inner)
        inner.chat_template = template
    return inner, given
