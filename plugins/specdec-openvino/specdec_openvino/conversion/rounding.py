"""Rounds a conversion's weights to 8 or 4 bits, by nncf. The rounded conversion holds all of its weights."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import openvino as ov

from specdec import ModelError
from specdec.errors import in_one_line
from specdec_openvino.conversion.external_weights import Weights, extract_constants
from specdec_openvino.conversion.files import Conversion
from specdec_openvino.conversion.weight_separation import joined, serialized

_NO_GROUPS = -1


@dataclass(frozen=True, slots=True)
class Rounding:
    """A rounding of weights, in nncf's terms.

    Attributes:
        mode: nncf's name, such as ``int4_sym``.
        group_size: the number of weights that share a scale; -1 for a whole channel, the only way with 8 bits.
        is_adjusted: False to refuse matrices whose channels aren't multiples of ``group_size``; True to choose the
            largest power of two that divides them instead, or 8 bits if it is below 32.
    """

    mode: str
    group_size: int = _NO_GROUPS
    is_adjusted: bool = True

    def __str__(self) -> str:
        groups = "channels" if self.group_size == _NO_GROUPS else f"{self.group_size}{'' if self.is_adjusted else '!'}"
        return f"{self.mode}-{groups}"

    def key(self, version: str) -> str:
        """Return a name for files of conversions rounded like this by a version of nncf."""
        return f"{self}-nncf{version}"


def rounded(conversion: Conversion, weights: Weights, rounding: Rounding, device: str) -> Conversion:
    """Return a conversion with rounded matrices, which needs no other weights.

    Raises:
        ModelError: if nncf refuses, with the reason and the remedy.
    """
    graph = joined(ov.Core(), device, conversion, weights)
    _round(graph, rounding)
    _, own = extract_constants(graph, {})
    facts = replace(conversion.facts, places={}, baked={}, tied={}, rounding=str(rounding))
    return Conversion(facts, *serialized(graph), own)


def _round(graph: ov.Model, rounding: Rounding) -> None:
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedCompressionParameters, GroupSizeFallbackMode

    fallback = GroupSizeFallbackMode.ADJUST if rounding.is_adjusted else GroupSizeFallbackMode.ERROR
    mode = nncf.CompressWeightsMode(rounding.mode)
    in_groups = {"group_size": rounding.group_size} if rounding.mode.startswith("int4") else {}
    advanced = AdvancedCompressionParameters(group_size_fallback_mode=fallback)
    try:
        with _quiet(), _static_caches(graph):
            nncf.compress_weights(graph, mode=mode, advanced_parameters=advanced, **in_groups)
    except Exception as error:  # nncf's own kinds, which have no base class
        raise ModelError(
            f"nncf can't round the model's weights to {rounding}: {in_one_line(error)}; use another group_size, or "
            "weights=int8"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence nncf's log, and keep its progress bars off standard output."""
    logger = logging.getLogger("nncf")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _static_caches(graph: ov.Model) -> Iterator[None]:
    """Temporarily give inputs without a type that of float32, since nncf reads the types of all inputs."""
    untyped: list[Any] = [each for each in graph.get_parameters() if each.get_element_type().is_dynamic()]
    for parameter in untyped:
        parameter.set_element_type(ov.Type.f32)
    graph.validate_nodes_and_infer_types()
    try:
        yield
    finally:
        for parameter in untyped:
            parameter.set_element_type(ov.Type.dynamic)
        graph.validate_nodes_and_infer_types()
