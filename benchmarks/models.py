"""The model that a measurement is of: the built-in one or a checkpoint's, by the same three options everywhere."""

import argparse
from pathlib import Path
from typing import Any

import torch

from specdec import demo
from specdec.loading import load_pretrained


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--dtype`` and ``--threads``."""
    parser.add_argument("--model", type=Path, help="a checkpoint folder instead of the built-in model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)


def load_model(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """What those options ask for: the model with its tokenizer, once torch has its threads."""
    torch.set_num_threads(arguments.threads)
    if arguments.model is None:
        return demo.load(arguments.dtype)
    return load_pretrained(str(arguments.model), dtype=arguments.dtype)


def millions(model: Any) -> str:
    """A model's size in words."""
    return f"{model.num_parameters() / 1e6:.0f} million parameters"
