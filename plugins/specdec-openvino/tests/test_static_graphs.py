"""When graphs with static shapes are compiled while requests decode, and for which sizes of passes."""

import threading
from collections.abc import Callable

import pytest
from specdec_openvino.static_graphs import StaticGraphs

from specdec import ModelError

SECONDS = 2.0  # that a compile takes


class Compiler:
    """Compiles graphs, which are their sizes, once ``may_end`` is set."""

    def __init__(self) -> None:
        self.began = list[int]()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, size: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        assert not threading.current_thread().daemon, "the interpreter must not end while the engine compiles"
        self.began.append(size)
        assert self.may_end.wait(60)
        return size

    def graphs(self, num_bytes: int = 1, free: Callable[[], int | None] = lambda: 100) -> StaticGraphs[int]:
        return StaticGraphs((1, 6, 8, 12), self, SECONDS, num_bytes, free)


def after_compiling(graphs: StaticGraphs[int]) -> int | None:
    """The graph that is ready after the compile under way, if there is one."""
    for thread in threading.enumerate():
        if thread.name == "static shapes":
            thread.join(60)
    return graphs.add_pass(0, 0.0)


def test_a_size_gets_a_graph_once_its_passes_have_taken_eight_times_as_long_as_a_compile() -> None:
    graphs = (compiler := Compiler()).graphs()
    for size, seconds in ((1, 15.9), (6, 15.9), (7, 100.0), (0, 100.0)):
        assert graphs.add_pass(size, seconds) is None
        assert after_compiling(graphs) is None
    assert not compiler.began
    assert graphs.add_pass(6, 0.2) is None, "the pass that was the last is noted, and decoding goes on"
    assert after_compiling(graphs) == 6
    assert graphs.add_pass(6, 100.0) is None
    assert after_compiling(graphs) is None
    assert compiler.began == [6]


def test_one_graph_is_compiled_at_a_time_and_that_of_the_longest_passes_first() -> None:
    graphs = (compiler := Compiler()).graphs()
    compiler.may_end.clear()
    for size, seconds in ((8, 20.0), (1, 30.0), (12, 50.0), (6, 40.0)):
        assert graphs.add_pass(size, seconds) is None
    assert compiler.began == [8]
    compiler.may_end.set()
    taken = [after_compiling(graphs) for _ in range(8)]
    assert [size for size in taken if size is not None] == [8, 12, 6, 1]
    assert compiler.began == [8, 12, 6, 1]


def test_graphs_take_a_quarter_of_the_free_memory_at_most() -> None:
    free: list[int | None] = [399]
    graphs = (compiler := Compiler()).graphs(100, lambda: free[0])
    graphs.add_pass(6, 20.0)
    assert after_compiling(graphs) is None
    free[0] = 400
    graphs.add_pass(6, 15.0)
    assert after_compiling(graphs) is None, "memory is looked at again after as many seconds"
    graphs.add_pass(6, 1.0)
    assert after_compiling(graphs) == 6
    for free[0] in (799, None, 800):
        assert compiler.began == [6]
        graphs.add_pass(1, 16.0)
        after_compiling(graphs)
    assert compiler.began == [6, 1]


def test_after_a_failure_nothing_is_compiled_any_more() -> None:
    tried = list[int]()

    def fail(size: int) -> int:
        tried.append(size)
        raise ModelError("memory ran out")

    graphs = StaticGraphs((1, 6), fail, SECONDS, 1, lambda: 100)
    with pytest.warns(UserWarning, match="^no graph with static shapes for passes of 6 tokens: memory ran out$"):
        graphs.add_pass(6, 20.0)
        assert after_compiling(graphs) is None
    for size in (1, 6):
        graphs.add_pass(size, 1000.0)
        assert after_compiling(graphs) is None
    assert tried == [6]


def test_closing_waits_for_a_compile_and_drops_its_graph() -> None:
    graphs = (compiler := Compiler()).graphs()
    compiler.may_end.clear()
    graphs.add_pass(6, 20.0)
    closing = threading.Thread(target=graphs.close)
    closing.start()
    assert closing.is_alive()
    compiler.may_end.set()
    closing.join(60)
    assert not any(thread.name == "static shapes" for thread in threading.enumerate())
    assert graphs.add_pass(1, 1000.0) is None
    assert after_compiling(graphs) is None
    assert compiler.began == [6]
