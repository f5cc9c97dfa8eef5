"""The model of a generator that was opened by name: OpenVINO graphs without torch modules, so weights are held once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_openvino.engine.graphs import Graphs


@dataclass(eq=False)
class OpenVINOModel:
    """The graphs of a checkpoint, with the attributes of a model that specdec reads.

    Attributes:
        config, generation_config: transformers' own.
        folder: of the checkpoint, whose files have the embeddings; None if there is none.
        fingerprint: a text that changes with the files and the device.
        name_or_path: its name in reports.
    """

    name: str
    graphs: Graphs
    config: Any
    generation_config: Any
    folder: Path | None
    fingerprint: str = ""

    def __post_init__(self) -> None:
        self.name_or_path = self.name

    @property
    def device(self) -> torch.device:
        """The device of its logits."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The checkpoint's dtype; arithmetic may use another."""
        return self.graphs.conversion.facts.dtype

    def __repr__(self) -> str:
        return f"OpenVINOModel({self.name!r})"
