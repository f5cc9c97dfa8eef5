"""Triton's kernels without a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for CUDA")
# The interpreter's numbers are arrays of size 1, which numpy 2.4 no longer takes for the bounds of a loop.
_BOUNDS = """
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def with_bounds(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = with_bounds
"""


def run_interpreted(code: str) -> None:
    """Run code in a process of its own, where kernels are interpreted; raises if it fails."""
    run_alone(_BOUNDS + code, TRITON_INTERPRET="1")


def run_alone(code: str, **environment: str) -> None:
    """Run code in a process of its own; raises if it fails."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=os.environ | environment)
