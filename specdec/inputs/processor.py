"""A processor's output as prompts: what ``generate(**processor(…))`` and chat messages with images give."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specdec.errors import RequestError
from specdec.inputs.encoded import mask_of_ids
from specdec.inputs.own_continuation import GREEDY
from specdec.inputs.prepared import PreparedPrompt, prepared_prompts
from specdec.models.encoder_decoders import has_one_vocabulary
from specdec.models.notes import lock_of
from specdec.models.rejected_inputs import rejects


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorOutput:
    """The arguments of ``model.generate`` as a processor makes them, of one prompt or several."""

    arguments: Mapping[str, Any]
    _rows: list[PreparedPrompt] = field(default_factory=list)

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
        if not self._rows:
            self._rows.extend(_captured(model, self.arguments))
        return self._rows[number]


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedPrompt:
    """One prompt of a processor's output; the model is needed to prepare it."""

    output: ProcessorOutput
    number: int

    @property
    def ids(self) -> list[int]:
        """The prompt's tokens, without padding."""
        rows = (self.output.arguments.get(name) for name in ("input_ids", "attention_mask"))
        ids, mask = (None if row is None else torch.as_tensor(row)[self.number] for row in rows)
        assert ids is not None, "a processor's output has ids"
        unpadded: list[int] = (ids if mask is None else ids[mask != 0]).tolist()
        return unpadded

    @property
    def num_bytes(self) -> int:
        """Bytes of all that the processor made, for all prompts of its output."""
        return sum(torch.as_tensor(value).nbytes for value in self.output.arguments.values() if value is not None)

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
        paddings = _paddings(mask_of_ids(given), input_ids)
        found.extend(prepared_prompts(model, input_ids, paddings, given))
        return torch.cat([input_ids, input_ids[:, -1:]], -1)  # Whisper reads the text's last token

    given = {name: _placed(value, model) for name, value in arguments.items() if value is not None}
    if "input_ids" in given and not model.config.is_encoder_decoder:  # or padding ids in a text would count as padding
        given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    with rejects(model, ", ".join(given)), lock_of(model), torch.no_grad():
        model.generate(**given, max_new_tokens=1, **GREEDY, custom_generate=capture)
    return found


def _paddings(mask: torch.Tensor | None, input_ids: torch.Tensor) -> list[int]:
    """Return the number of padding tokens of each row.

    Raises:
        RequestError: for padding elsewhere than on the left.
    """
    if mask is None or mask.shape != input_ids.shape:  # that of an encoder
        return [0] * len(input_ids)
    paddings: list[int] = (mask == 0).sum(-1).tolist()
    for number, (row, num_padding) in enumerate(zip(mask, paddings, strict=True)):
        if row[:num_padding].any():
            raise RequestError(f"prompt {number} is padded elsewhere than on its left: use padding_side='left'")
    return paddings


def _placed(value: Any, model: Any) -> Any:
    """Return an input on the model's device, numbers with a point in its dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
    return torch.as_tensor(value, device=model.device) if isinstance(value, Sequence) else value


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
