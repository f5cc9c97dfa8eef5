"""Checkpoints that torch loads: folders of safetensors files, and GGUF files."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from specdec.models import ModelSource, load_pretrained
from specdec.models.gguf_file import config_of
from specdec_openvino.conversion.external_weights import Checkpoint, Weights, weights_of
from specdec_openvino.conversion.files import Conversion
from specdec_openvino.conversion.names import name_of_file, name_of_folder
from specdec_openvino.conversion.tracing import Converted, convert_checked
from specdec_openvino.conversion.weight_separation import separate_weights
from specdec_openvino.engine.graphs import Graphs
from specdec_openvino.options import OpenVINOOptions, check_dtype
from specdec_openvino.sources.base import ConversionSource, ModelFolder, Prove


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

    def __init__(self, model: ModelSource, folder: Path, tokenizer: Any | None) -> None:
        super().__init__(model.name, folder)
        self._model, self._tokenizer = model, tokenizer

    def state(self, device: str) -> str:
        return name_of_folder(self.source, device)

    def _load(self) -> PreTrainedModel:
        model: PreTrainedModel = load_pretrained(self._name, self._tokenizer, hub=self._model.hub_answer())[0]
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
        return config_of(self.source)
