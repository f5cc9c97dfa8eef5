"""A model that is there as an OpenVINO graph alone: its weights are held once, by the compiled graph."""

from dataclasses import dataclass
from typing import Any

import torch

from specdec_openvino.engine import Graphs


@dataclass(eq=False)
class OpenVINOModel:
    """The graphs of a checkpoint with the facts of its model.

    Attributes:
        config, generation_config: transformers' own.
        fingerprint: a text that is another for other files or another device.
        name_or_path: what reports call it.
    """

    name: str
    graphs: Graphs
    config: Any
    generation_config: Any
    fingerprint: str = ""

    def __post_init__(self) -> None:
        self.name_or_path = self.name

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype, not that of arithmetic."""
        return self.graphs.conversion.facts.dtype

    def __repr__(self) -> str:
        return f"OpenVINOModel({self.name!r})"
