"""Files that a model given by name is converted from: their contract, and the two kinds that torch loads.

These are folders of safetensors files, and GGUF files; ``export`` has those that OpenVINO reads itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from specdec.models.loading import load_pretrained
from specdec_openvino.conversion.external_weights import Checkpoint, Weights, weights_of
from specdec_openvino.conversion.files import Conversion
from specdec_openvino.conversion.names import name_of_file, name_of_folder
from specdec_openvino.conversion.tracing import Converted, convert_checked
from specdec_openvino.conversion.weight_separation import separate_weights
from specdec_openvino.engine.graphs import Graphs
from specdec_openvino.options import OpenVINOOptions, check_dtype

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


class _TorchSource(ConversionSource):
    """Files that torch loads, once, to convert the model."""

    def graphs(self, options: OpenVINOOptions, prove: Prove) -> Graphs:
        model = self._load()
        check_dtype(model.dtype, options.device)
        graphs = Graphs(*self._separate(convert_checked(model)))
        prove(model, graphs)
        return graphs

    @abstractmethod
    def _load(self) -> PreTrainedModel: ...

    @abstractmethod
    def _separate(self, converted: Converted) -> tuple[Conversion, Weights]:
        """Return a conversion without the weights that it can read from the files, and these weights."""


class CheckpointFolder(ModelFolder, _TorchSource):
    """A folder of safetensors files, in the dtype that they have."""

    def __init__(self, name: str, folder: Path, tokenizer: Any | None) -> None:
        super().__init__(name, folder)
        self._tokenizer = tokenizer

    def state(self, device: str) -> str:
        return name_of_folder(self.source, device)

    def _load(self) -> PreTrainedModel:
        model: PreTrainedModel = load_pretrained(self._name, self._tokenizer)[0]
        return model

    def _separate(self, converted: Converted) -> tuple[Conversion, Weights]:
        weights = weights_of(converted.model)
        places = Checkpoint.of(self.source).places_of(weights)
        found = {name: weights[name] for name in places}
        return separate_weights(converted, found, source=str(self.source.resolve()), places=places)


class GgufFile(_TorchSource):
    """A GGUF file, whose weights transformers dequantises to a dtype; conversions hold them."""

    def __init__(self, name: str, dtype: str, tokenizer: Any | None) -> None:
        self._dtype, self._tokenizer, self.source, self.folder = dtype, tokenizer, Path(name), None

    def state(self, device: str) -> str:
        return name_of_file(self.source, self._dtype, device)

    def _load(self) -> PreTrainedModel:
        model: PreTrainedModel = load_pretrained(str(self.source), self._tokenizer, self._dtype)[0]
        return model

    def _separate(self, converted: Converted) -> tuple[Conversion, Weights]:
        return separate_weights(converted, {}, source=f"{self.source.resolve()}, {self._dtype}")

    def config(self) -> Any:
        return AutoConfig.from_pretrained(self.source.absolute().parent, gguf_file=self.source.name)
