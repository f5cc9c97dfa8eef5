"""Triton's kernels without a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for CUDA")


def run_interpreted(code: str) -> None:
    """Run code in a process of its own, where kernels are interpreted; raises if it fails."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=os.environ | {"TRITON_INTERPRET": "1"})
