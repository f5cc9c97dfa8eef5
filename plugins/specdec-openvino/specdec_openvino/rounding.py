"""Rounds weights to 8 or 4 bits, by nncf."""

import logging
from typing import Literal

import openvino as ov


def round_weights(graph: ov.Model, to: Literal["int8", "int4"]) -> None:
    """Round a graph's matrices to 8 or 4 bits, in place; with 4, nncf uses 8 bits for the embeddings and the head."""
    import nncf

    logger = logging.getLogger("nncf")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        mode = {"int8": nncf.CompressWeightsMode.INT8_ASYM, "int4": nncf.CompressWeightsMode.INT4_SYM}[to]
        nncf.compress_weights(graph, mode=mode)
    finally:
        logger.setLevel(before)
