"""The facts that belong beside every figure."""

import os
import platform
from pathlib import Path

import torch
import transformers


def facts() -> str:
    """Processor, cores, threads in use and versions, in one line."""
    return (
        f"{_processor()}, {os.cpu_count()} cores ({torch.get_num_threads()} threads used), {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"
