"""Inputs in a decoder's own text: each image or recording stands where its placeholder ids are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch

from specdec.inputs.base import Mark, PassPart, PromptInputs, digest_of
from specdec.inputs.features import Features, joined


@dataclass(frozen=True, eq=False)
class PlaceholderInputs(PromptInputs):
    """The images, videos and recordings of a prompt, for a model that has only a decoder.

    Attributes:
        tokens: of the prompt.
        token_ids: by modality, the id of its placeholders.
        features: by modality, one for each of its placeholders; of modalities that are encoded before the prompt.
        raw: by name, the arguments for modalities that the model encodes in the prompt's pass.
        positions: of the prompt's tokens, ``(axes, tokens)``; None where they are the index plus ``offset``.
        token_types: by name, kinds of tokens that a model's layers read, ``(tokens,)``.
        markers: further ids whose vectors come with the features, such as Ovis2's ends of images.
    """

    tokens: Sequence[int]
    token_ids: Mapping[str, int]
    features: Mapping[str, Features]
    raw: Mapping[str, torch.Tensor]
    positions: torch.Tensor | None = None
    token_types: Mapping[str, torch.Tensor] | None = None
    blocks: tuple[range, ...] = ()
    block_kinds: frozenset[str] | None = None
    offset: int = 0
    markers: frozenset[int] = frozenset()

    @property
    def is_text_alone(self) -> bool:
        """True if the model reads nothing besides the tokens, at their positions."""
        return not (self.features or self.raw or self.blocks or self.offset) and self.positions is None

    @cached_property
    def num_tokens(self) -> int:  # type: ignore[override]  # read only
        return len(self.tokens)

    @cached_property
    def placeholders(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(self.token_ids.values()) | self.markers

    @cached_property
    def _unencoded(self) -> frozenset[int]:
        return frozenset(self.token_ids.values()) - {self.token_ids[modality] for modality in self.features}

    @cached_property
    def uncut(self) -> tuple[range, ...]:  # type: ignore[override]
        within = [place for place, token in enumerate(self.tokens) if token in self._unencoded]
        return (*self.blocks, range(within[0], within[-1] + 1)) if self.raw and within else self.blocks

    @cached_property
    def marks(self) -> tuple[Mark, ...]:  # type: ignore[override]
        """One for each run of placeholders; tokens of a block also depend on the block's end."""
        taken, marks = dict.fromkeys(self.features, 0), []
        names = {token: modality for modality, token in self.token_ids.items()}
        names |= {self.token_ids[modality]: modality for modality in self.features}  # several may share an id
        raw = digest_of(self.raw.values()) if self.raw else b""
        for modality, run in groupby(range(self.num_tokens), lambda place: names.get(self.tokens[place])):
            places = [*run]
            if modality in taken:
                features = self.features[modality].part(taken[modality], taken[modality] + len(places))
                taken[modality] += len(places)
                marks.append(Mark(places[0], digest_of(features.tensors())))
            elif modality is not None:
                marks.append(Mark(places[0], raw))
        for block in self.blocks:
            ids = torch.tensor(self.tokens[block.start : block.stop])
            marks.append(Mark(block.start, digest_of([ids])))
        if self.positions is not None:
            before = torch.nn.functional.pad(self.positions[:, :-1], (1, 0), value=-1)
            marks += _marks_where((self.positions != before + 1).any(0), self.positions)
        for types in (self.token_types or {}).values():
            marks += _marks_where(types != 0, types[None])
        return tuple(sorted(marks))

    @classmethod
    def arguments(cls, parts: Sequence[PassPart], positions: torch.Tensor) -> Mapping[str, Any]:
        reading = [(part, part.inputs) for part in parts if isinstance(part.inputs, cls)]
        reading = [(part, inputs) for part, inputs in reading if part.start < inputs.num_tokens]
        if not reading:
            return {}
        arguments: dict[str, Any] = {}
        taken: dict[str, list[Features]] = {}
        for part, inputs in reading:
            for modality, features in inputs._taken(part).items():
                taken.setdefault(modality, []).append(features)
            arguments |= inputs._raw_for(part)
            for name, types in (inputs.token_types or {}).items():
                arguments.setdefault(name, positions.new_zeros(positions.shape))
                given = types[part.start : part.start + len(part.tokens)]
                arguments[name][part.row, : len(given)] = given.to(positions.device)
        if taken:
            arguments["mm_encoder_outputs"] = {name: joined(each).output() for name, each in taken.items()}
        tables = [inputs.positions for _, inputs in reading if inputs.positions is not None]
        if tables:
            arguments["position_ids"] = by_axes = positions.expand(len(tables[0]), -1, -1).clone()
            for part, inputs in reading:
                if inputs.positions is not None:
                    given = inputs.positions[:, part.start : part.start + len(part.tokens)].to(positions.device)
                    by_axes[:, part.row, : given.shape[1]] = given
        return arguments

    def _places(self, part: PassPart, token: int) -> list[int]:
        """Return where a part reads a placeholder; a row that a pass only crosses is fed another id."""
        known = range(part.start, min(part.start + len(part.tokens), self.num_tokens))
        return [place for place in known if self.tokens[place] == part.tokens[place - part.start] == token]

    def _taken(self, part: PassPart) -> Mapping[str, Features]:
        """Return the features of the placeholders that a part reads."""
        found = {}
        has_markers = any(self._places(part, token) for token in self.markers)
        for modality, features in self.features.items():
            token = self.token_ids[modality]
            num_read = len(self._places(part, token))
            if num_read or has_markers:
                before = sum(1 for each in self.tokens[: part.start] if each == token)
                found[modality] = features.part(before, before + num_read)
        return found

    def _raw_for(self, part: PassPart) -> Mapping[str, torch.Tensor]:
        """Return the raw inputs, for the part that reads their placeholders."""
        return self.raw if any(self._places(part, token) for token in self._unencoded) else {}


def _marks_where(is_marked: torch.Tensor, values: torch.Tensor) -> list[Mark]:
    """Return a mark for each stretch of tokens with values, ``(axes, tokens)``, that don't follow from those before."""
    marks, end = list[Mark](), 0
    for marked, run in groupby(is_marked.tolist()):
        start, end = end, end + sum(1 for _ in run)
        if marked:
            marks.append(Mark(start, digest_of([values[:, start:end]])))
    return marks
