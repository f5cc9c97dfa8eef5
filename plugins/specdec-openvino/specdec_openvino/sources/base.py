"""The contract of files that a model given by name is converted from.

``checkpoints`` has those that torch loads, and ``export`` those that OpenVINO reads itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig

from specdec_openvino.engine.graphs import Graphs
from specdec_openvino.options import OpenVINOOptions

Prove = Callable[[Any, Graphs], None]  # compares a conversion with the model's own forward; raises a ModelError


class ConversionSource(ABC):
    """Files that a conversion is made from.

    Attributes:
        source: their path.
        folder: the folder from which conversions read weights; None if they hold all of them.
    """

    source: Path
    folder: Path | None

    @abstractmethod
    def state(self, device: str) -> str:
        """Return a name for the conversion of the present files, for a device."""

    @abstractmethod
    def graphs(self, options: OpenVINOOptions, prove: Prove) -> Graphs:
        """Convert the files and prove the conversion.

        Raises:
            ModelError: if the files can't be loaded or converted, or the proof fails, with the reason.
        """

    @abstractmethod
    def config(self) -> Any:
        """Return transformers' configuration."""

    def generation_config(self, config: Any) -> Any:
        """Return transformers' generation configuration, by default that of a configuration."""
        return GenerationConfig.from_model_config(config)


class ModelFolder(ConversionSource):
    """A folder with ``config.json``, given by its path or by a hub name."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self.source, self.folder = name, folder, folder

    def config(self) -> Any:
        return AutoConfig.from_pretrained(self.source)

    def generation_config(self, config: Any) -> Any:
        try:
            return GenerationConfig.from_pretrained(self.source)
        except OSError:  # it has none
            return super().generation_config(config)
