"""When graphs with static shapes are compiled while requests decode, and for which sizes of passes."""

import threading
from collections.abc import Callable

import pytest
from specdec_openvino.engine.static_graphs import StaticGraphs

from specdec import ModelError

SECONDS = 2.0  # that a compile takes


class Compiler:
    """Compiles graphs, which are their sizes, once ``may_end`` is set."""

    def __init__(self) -> None:
        self.began, self.ended = list[int](), list[int]()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, size: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        assert not threading.current_thread().daemon, "the interpreter must not end while the engine compiles"
        self.began.append(size)
        assert self.may_end.wait(60)
        self.ended.append(size)
        return size

    def graphs(self, num_bytes: int = 1, free: Callable[[], int | None] = lambda: 100) -> StaticGraphs[int]:
        return StaticGraphs((1, 6, 8, 12), self, SECONDS, num_bytes, free)


def compiled_after(graphs: StaticGraphs[int], size: int = 0, seconds: float = 0.0) -> int | None:
    """Note a pass, wait for the compile under way, and return the graph that is ready."""
    ready = graphs.add_pass(size, seconds)
    for thread in threading.enumerate():
        if thread.name == "static shapes":
            thread.join(60)
    return graphs.add_pass(0, 0.0) if ready is None else ready


def test_a_size_gets_a_graph_once_its_passes_have_taken_eight_times_as_long_as_a_compile() -> None:
    graphs = (compiler := Compiler()).graphs()
    for size, seconds in ((1, 15.9), (6, 15.9), (7, 100.0), (0, 100.0)):
        assert compiled_after(graphs, size, seconds) is None
    assert not compiler.began
    assert compiled_after(graphs, 6, 0.2) == 6
    assert compiled_after(graphs, 6, 100.0) is None
    assert compiler.began == [6]


def test_one_graph_is_compiled_at_a_time_and_that_of_the_longest_passes_first() -> None:
    graphs = (compiler := Compiler()).graphs()
    compiler.may_end.clear()
    for size, seconds in ((8, 20.0), (1, 30.0), (12, 50.0), (6, 40.0)):
        assert graphs.add_pass(size, seconds) is None
    compiler.may_end.set()
    assert [compiled_after(graphs) for _ in range(5)] == [8, 12, 6, 1, None]
    assert compiler.began == [8, 12, 6, 1]


def test_graphs_take_a_quarter_of_the_free_memory_at_most() -> None:
    free: list[int | None] = [399]
    graphs = (compiler := Compiler()).graphs(100, lambda: free[0])
    assert compiled_after(graphs, 6, 20.0) is None
    free[0] = 400
    assert compiled_after(graphs, 6, 15.0) is None, "memory is looked at again after as many seconds"
    assert compiled_after(graphs, 6, 1.0) == 6
    for free[0] in (799, None):
        assert compiled_after(graphs, 1, 16.0) is None
    free[0] = 800
    assert compiled_after(graphs, 1, 16.0) == 1
    assert compiler.began == [6, 1]


def test_after_a_failure_nothing_is_compiled_any_more() -> None:
    tried = list[int]()

    def fail(size: int) -> int:
        tried.append(size)
        raise ModelError("memory ran out")

    graphs = StaticGraphs((1, 6), fail, SECONDS, 1, lambda: 100)
    with pytest.warns(
        UserWarning,
        match="^no graph .* for passes of 6 tokens: memory ran out; passes stay as they are, and",
    ):
        assert compiled_after(graphs, 6, 20.0) is None
    for size in (1, 6):
        assert compiled_after(graphs, size, 1000.0) is None
    assert tried == [6]


def test_closing_waits_for_no_compile_and_drops_its_graph() -> None:
    """The garbage collector may close graphs in a thread with a lock that the compile waits for."""
    graphs = (compiler := Compiler()).graphs()
    compiler.may_end.clear()
    graphs.add_pass(6, 20.0)
    graphs.close()
    assert not compiler.ended
    compiler.may_end.set()
    graphs.wait()
    assert compiler.ended == [6]
    assert graphs._ready is None, "its memory is freed"
    assert compiled_after(graphs, 1, 1000.0) is None
    assert compiler.began == [6]


@pytest.mark.filterwarnings("error")
def test_garbage_collected_in_the_thread_may_close_the_graphs() -> None:
    """As an abandoned stream of a generator that was closed meanwhile."""
    has_begun, ended = threading.Event(), list[int]()

    def compiled(size: int) -> int:
        assert has_begun.wait(60)
        graphs.close()
        ended.append(size)
        return size

    graphs = StaticGraphs((1, 6), compiled, SECONDS, 1, lambda: 100)
    graphs.add_pass(6, 20.0)
    has_begun.set()
    assert compiled_after(graphs, 1, 1000.0) is None
    assert ended == [6]
