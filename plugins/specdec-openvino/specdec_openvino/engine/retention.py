"""Compiled graphs in a forked process, where freeing one hangs: it waits for threads, and a fork copies only one."""

import ctypes
import os

import openvino as ov


class RetainedInForks:
    """Owns a compiled graph, which a forked process never frees.

    The graph's memory is shared with the parent process, which frees its own.

    Attributes:
        model: the compiled graph.
    """

    model: ov.CompiledModel

    def __init__(self) -> None:
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._process and "model" in vars(self):  # else it couldn't be compiled
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.model))  # one that nothing gives back
