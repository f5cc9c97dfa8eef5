"""Options for the model of a measurement: the built-in one, as it is or widened, SmolLM2, or a folder."""

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.models import demo_folder
from benchmarks.widening import SHAPES
from benchmarks.widening import checkpoint as widened_checkpoint
from specdec import ModelError, demo
from specdec.demo import smollm2
from specdec.models.loading import load_pretrained


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--dtype`` and ``--threads``."""
    known = f"a folder, smollm2 (`make real-model`), or {' or '.join(SHAPES)} for a larger model's step costs"
    parser.add_argument("--model", help=f"{known}; default: the built-in model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)


def load_model(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Set torch's threads, and load the model of ``add_model_options`` with its tokenizer."""
    torch.set_num_threads(arguments.threads)
    if arguments.model is None:
        return demo.load(arguments.dtype)
    try:
        if arguments.model == "smollm2":
            return smollm2.load(arguments.dtype)
        return load_pretrained(str(checkpoint(arguments)), dtype=arguments.dtype)
    except ModelError as error:
        raise SystemExit(str(error)) from None


def checkpoint(arguments: argparse.Namespace) -> Path:
    """The folder of that model, for processes that load it themselves."""
    if arguments.model is None:
        return demo_folder("model")
    if arguments.model in SHAPES:
        return widened_checkpoint(arguments.model, arguments.dtype)
    try:
        return smollm2.checkpoint(arguments.dtype) if arguments.model == "smollm2" else Path(arguments.model)
    except ModelError as error:
        raise SystemExit(str(error)) from None


def millions(model: Any) -> str:
    """A model's size in words."""
    return f"{model.num_parameters() / 1e6:.0f} million parameters"


def description(model: Any) -> str:
    """A model's class, size and dtype, and whether it is a widened model."""
    config, parameters = model.config, model.num_parameters() / 1e6
    described = f"{type(model).__name__}, {parameters:.4g} million parameters, width {config.hidden_size}, "
    described += f"{config.num_hidden_layers} layers, {str(model.dtype).removeprefix('torch.')}"
    widened_from = getattr(config, "widened_from", None)
    if widened_from is not None:
        described += f"; widened from {widened_from}: its text, so its acceptance, and a large model's step costs"
    return described
