"""Weights of 8 and of 4 bits, by nncf."""

import logging
from typing import Literal

import openvino as ov

from specdec import ModelError


def round_weights(graph: ov.Model, to: Literal["int8", "int4"]) -> None:
    """Round a graph's matrices, in place; with 4 bits, nncf leaves embeddings and the head 8.

    Raises:
        ModelError: where nncf isn't installed.
    """
    try:
        import nncf
    except ImportError:
        raise ModelError(f"weights={to} needs nncf: pip install nncf") from None
    logging.getLogger("nncf").setLevel(logging.ERROR)
    mode = {"int8": nncf.CompressWeightsMode.INT8_ASYM, "int4": nncf.CompressWeightsMode.INT4_SYM}[to]
    nncf.compress_weights(graph, mode=mode)
