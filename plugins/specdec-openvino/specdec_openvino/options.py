"""The backend's options, and their translation to OpenVINO's properties."""

from typing import Any, Literal

import openvino as ov
import torch
from openvino.properties import hint, inference_num_threads
from pydantic import Field

from specdec import ModelError
from specdec.backends import BackendOptions
from specdec_openvino.conversion.rounding import Rounding

Precision = Literal["model", "bfloat16", "bf16"]
CachePrecision = Literal["model", "u8"]
StaticSizes = Literal[0, 1, 2, 3, 4]
Weights = Literal["model", "int8", "int4", "int8_asym", "int8_sym", "int4_sym", "int4_asym"]
_TYPES = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16, torch.float16: ov.Type.f16}
_MODES, _FOUR_BITS = {"int8": "int8_asym", "int4": "int4_sym"}, "int4"
_CAPABILITIES = {torch.float16: "FP16", torch.bfloat16: "BF16"}
_CACHE_TYPES = {**_TYPES, torch.uint8: ov.Type.u8}


class OpenVINOOptions(BackendOptions):
    """Options of ``backend="openvino"``."""

    device: str = Field(default="CPU", description="a device that OpenVINO lists; tested on CPUs only")
    precision: Precision = Field(default="model", description="dtype of arithmetic: the model's own, or bfloat16")
    kv: CachePrecision = Field(default="model", description="dtype of keys and values: that of arithmetic, or 8 bits")
    weights: Weights = Field(
        default="model",
        description="the model's own, or rounded to 8 or 4 bits by nncf, in one of its modes: int8 is int8_asym, and "
        "int4 is int4_sym",
    )
    group_size: int = Field(
        default=128, ge=-1, description="weights that share a scale, with 4 bits; -1 for one scale per channel"
    )
    static_sizes: StaticSizes = Field(
        default=0,
        description="number of graphs with static shapes, for one request's passes of the smallest sizes: about a "
        "millisecond faster, and each has the weights in memory once more",
    )
    threads: int = Field(
        default=0, ge=0, description="threads of the engine (0: torch's number when the model is loaded)"
    )

    def of_arithmetic(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of arithmetic for a model's dtype."""
        return dtype if self.precision == "model" else torch.bfloat16

    def of_cache(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of keys and values for a model's dtype."""
        return torch.uint8 if self.kv == "u8" else self.of_arithmetic(dtype)

    @property
    def rounding(self) -> Rounding | None:
        """The rounding of the weights, or None."""
        if self.weights == "model":
            return None
        mode = _MODES.get(self.weights, self.weights)
        if not mode.startswith(_FOUR_BITS):
            return Rounding(mode)
        return Rounding(mode, self.group_size, is_adjusted="group_size" not in self.model_fields_set)

    @property
    def num_threads(self) -> int:
        """The number of the engine's threads."""
        return self.threads or torch.get_num_threads()

    def lossy(self, dtype: torch.dtype) -> str:
        """Return how the compiled model differs from the model, or ""."""
        changed = [f"precision={self.precision}"] if self.of_arithmetic(dtype) != dtype else []
        changed += ["kv=u8"] if self.kv == "u8" else []
        changed += [f"weights={self.weights}"] if self.weights != "model" else []
        return f"{', '.join(changed)}, but the model has {str(dtype).removeprefix('torch.')}" if changed else ""

    def properties(self, dtype: torch.dtype) -> dict[Any, Any]:
        """Return the properties with which a model is compiled."""
        return {
            hint.inference_precision(): openvino_type(self.of_arithmetic(dtype)),
            hint.kv_cache_precision(): _CACHE_TYPES[self.of_cache(dtype)],
            hint.performance_mode(): hint.PerformanceMode.LATENCY,
            **(self._properties_of_cpus() if self.device == "CPU" else {}),
        }

    def _properties_of_cpus(self) -> dict[Any, Any]:
        return {
            "KEY_CACHE_QUANT_MODE": "BY_TOKEN",  # for u8: each slot has its own scale, so it can be moved
            inference_num_threads(): self.num_threads,
            hint.enable_cpu_pinning(): False,  # torch runs between the passes, with threads of its own
        }


def openvino_type(dtype: torch.dtype) -> ov.Type:
    """Return OpenVINO's name of a dtype.

    Raises:
        ModelError: for an unsupported dtype.
    """
    if dtype not in _TYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in _TYPES)
        raise ModelError(f"the openvino backend supports models in {names}, not {str(dtype).removeprefix('torch.')}")
    return _TYPES[dtype]


def computes_in(dtype: torch.dtype, device: str) -> bool:
    """Return True if OpenVINO has the instructions of a dtype on a device; it has those of float32 on any."""
    wanted = _CAPABILITIES.get(dtype)
    return wanted is None or wanted in ov.Core().get_property(device, "OPTIMIZATION_CAPABILITIES")


def check_dtype(dtype: torch.dtype, device: str) -> None:
    """Refuse a dtype that a device doesn't support.

    Raises:
        ModelError: with the remedy.
    """
    openvino_type(dtype)
    if not computes_in(dtype, device):
        name = str(dtype).removeprefix("torch.")
        raise ModelError(
            f"OpenVINO doesn't support {name} on this {device}: load the model in float32, or use backend='hf'"
        )
