"""The backend's options, and what they mean to OpenVINO."""

from typing import Any, Literal

import openvino as ov
import torch
from openvino.properties import hint, inference_num_threads
from pydantic import Field

from specdec import ModelError
from specdec.backends.base import BackendOptions

Precision = Literal["model", "bfloat16", "bf16"]
CachePrecision = Literal["model", "u8"]
Weights = Literal["model", "int8", "int4"]
_TYPES = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16, torch.float16: ov.Type.f16}
_CACHE_TYPES = {**_TYPES, torch.uint8: ov.Type.u8}


class OpenVINOOptions(BackendOptions):
    """Options of ``backend="openvino"``."""

    device: str = Field(default="CPU", description="a device that OpenVINO lists; tested on CPUs only")
    precision: Precision = Field(default="model", description="of arithmetic: the model's own, or bfloat16")
    kv: CachePrecision = Field(default="model", description="of keys and values: that of arithmetic, or 8 bits")
    weights: Weights = Field(default="model", description="the model's own, or rounded to 8 or 4 bits by nncf")
    threads: int = Field(default=0, ge=0, description="of the engine; 0: torch's number when the model is loaded")

    def of_arithmetic(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that a model of some dtype is computed in."""
        return dtype if self.precision == "model" else torch.bfloat16

    def of_cache(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of its keys and values."""
        return torch.uint8 if self.kv == "u8" else self.of_arithmetic(dtype)

    @property
    def num_threads(self) -> int:
        """The engine's threads."""
        return self.threads or torch.get_num_threads()

    def lossy(self, dtype: torch.dtype) -> str:
        """The reason why the compiled model is another one than the model, or ""."""
        changed = [f"precision={self.precision}"] if self.of_arithmetic(dtype) != dtype else []
        changed += ["kv=u8"] if self.kv == "u8" else []
        changed += [f"weights={self.weights}"] if self.weights != "model" else []
        return f"{', '.join(changed)} where the model has {str(dtype).removeprefix('torch.')}" if changed else ""

    def properties(self, dtype: torch.dtype) -> dict[Any, Any]:
        """The properties that a model of some dtype is compiled with."""
        return {
            hint.inference_precision(): openvino_type(self.of_arithmetic(dtype)),
            hint.kv_cache_precision(): _CACHE_TYPES[self.of_cache(dtype)],
            hint.performance_mode(): hint.PerformanceMode.LATENCY,
            **(self._properties_of_cpus() if self.device == "CPU" else {}),
        }

    def _properties_of_cpus(self) -> dict[Any, Any]:
        return {
            "KEY_CACHE_QUANT_MODE": "BY_TOKEN",  # of u8: each slot has a scale of its own, and can be moved
            inference_num_threads(): self.num_threads,
            hint.enable_cpu_pinning(): False,  # torch works between the passes, with threads of its own
        }


def openvino_type(dtype: torch.dtype) -> ov.Type:
    """OpenVINO's name of a dtype.

    Raises:
        ModelError: for one that the backend doesn't drive.
    """
    if dtype not in _TYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in _TYPES)
        raise ModelError(f"the openvino backend drives models of {names}, not {str(dtype).removeprefix('torch.')}")
    return _TYPES[dtype]
