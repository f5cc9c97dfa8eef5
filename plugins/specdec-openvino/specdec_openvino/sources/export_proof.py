"""Compares an export's passes under specdec with its own plain decoding."""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino.properties import hint

from specdec.runtime.probes.walk import WrongLayout, distances, walk
from specdec.target import Target

_LEAST_BOUND, _MOST_NOISE = 1e-3, 4.0  # of an error over the logits' spread: in any case, and over that of plain steps
_ROUNDED_BOUND = 0.05  # with integer weights, whose kernels round activations to 8 bits as well
_NUM_STEPS = 12
_INTEGERS = {"i4", "u4", "i8", "u8"}


@dataclass(frozen=True, slots=True)
class PlainExport:
    """An exported graph as it is, with a cache of its own."""

    graph: ov.Model
    config: Any
    name: str

    def fault_of(self, target: Target) -> str:
        """Return which kind of a target's passes has other logits than the export's own, and how, or ""."""
        try:
            walked = walk(target)
        except WrongLayout as fault:
            return str(fault)
        request = self._request()
        expected = _logits(request, walked.tokens, 0)
        request.reset_state()
        steps = [_logits(request, [token], at)[0] for at, token in enumerate(walked.tokens[:_NUM_STEPS])]
        spread = float(expected.std().clamp_min(1e-6))
        noise = distances(torch.stack(steps), expected[:_NUM_STEPS]).max() / spread
        bound = max(float(noise) * _MOST_NOISE, _ROUNDED_BOUND if self._is_rounded else _LEAST_BOUND)
        errors = defaultdict[str, list[float]](list)
        for kind, position, logits in walked.passes():
            errors[kind].append(float(distances(logits.float(), expected[position])) / spread)
        for kind, found in errors.items():
            error = median(found) if all(map(math.isfinite, found)) else math.inf  # NaN has no order
            if not error <= bound:  # a bound of NaN too
                return f"{kind} is off from its own by {error:.2g} of the logits' spread; allowed {bound:.2g}"
        return ""

    @property
    def _is_rounded(self) -> bool:
        """True if there are matrices of integers."""
        return any(
            node.get_type_name() == "Constant"
            and node.get_element_type().get_type_name() in _INTEGERS
            and len(node.get_output_shape(0)) > 1
            for node in self.graph.get_ops()
        )

    def _request(self) -> ov.InferRequest:
        wide = {hint.inference_precision(): ov.Type.f32, hint.kv_cache_precision(): ov.Type.f32}
        return ov.Core().compile_model(self.graph, "CPU", wide).create_infer_request()


def _logits(request: ov.InferRequest, tokens: list[int], past: int) -> torch.Tensor:
    """Return the logits of tokens after ``past`` others, (tokens, vocab)."""
    length = past + len(tokens)
    given = {
        "input_ids": np.array([tokens]),
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(past, length)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return torch.from_numpy(request.infer(given)["logits"][0].copy())
