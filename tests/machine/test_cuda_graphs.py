"""Graphs by shape: captured in a shape's second pass, the 64 that were used last, and none of other memory."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specdec.machine import cuda_graphs
from specdec.machine.cuda_graphs import GraphInputs, Graphs, slot_bucket
from specdec.machine.number_block import NumberBlock

MEMORY = object()


def number(value: int) -> GraphInputs:
    """The inputs of a pass that has one."""
    return GraphInputs(NumberBlock.of({}, is_pinned=False), {"value": torch.tensor([value])}, torch.device("cpu"))


class PretendGraph:
    """Replays a pass on the tensors of its capture."""

    def __init__(self, run: Callable[[GraphInputs], Any], inputs: GraphInputs, pool: Any) -> None:
        self._run, self._inputs = run, inputs.owned()

    def __call__(self, inputs: GraphInputs) -> Any:
        self._inputs.copy_(inputs)
        return (*self._run(self._inputs), "replayed")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    made = Graphs(torch.device("cpu"))
    assert not made.captures
    made.captures = True
    return made


def is_replayed(graphs: Graphs, shape: int, memory: object = MEMORY) -> bool:
    """Run a pass and assert that it had its input."""
    value, *replayed = graphs.run(lambda inputs: (2 * inputs["value"],), number(shape), shape, memory)
    assert value.tolist() == [2 * shape]
    return bool(replayed)


def test_a_shapes_second_pass_is_captured(graphs: Graphs) -> None:
    assert [(is_replayed(graphs, shape), graphs.is_warm) for shape in (3, 4, 3, 3)] == [
        (False, False),
        (False, False),
        (True, False),
        (True, True),
    ]


def test_the_graph_used_longest_ago_is_dropped(graphs: Graphs) -> None:
    for shape in range(65):
        is_replayed(graphs, shape)
        is_replayed(graphs, shape)
        is_replayed(graphs, 0)
    warm = []
    for shape in (0, 2, 64, 1):
        is_replayed(graphs, shape)
        warm.append(graphs.is_warm)
    assert warm == [True, True, True, False]


def test_graphs_of_other_memory_are_not_replayed(graphs: Graphs) -> None:
    for _ in range(3):
        is_replayed(graphs, 1)
    other = object()
    assert [is_replayed(graphs, 1, other) for _ in range(2)] == [False, True]
    graphs.forget()
    assert [is_replayed(graphs, 1, other) for _ in range(2)] == [False, True]


def test_a_pass_that_cannot_be_captured_is_called_from_then_on(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Mock(side_effect=RuntimeError("operation not permitted when stream is capturing"))
    monkeypatch.setattr(cuda_graphs, "Graph", capture)
    assert [(is_replayed(graphs, 1), graphs.is_warm) for _ in range(4)] == [(False, False), *[(False, True)] * 3]
    assert capture.call_count == 1
    graphs.forget()
    assert "operation not permitted" in graphs.fault


@pytest.mark.parametrize("is_led_to", [False, True])
def test_without_memory_for_graphs_passes_are_called_until_theirs_has_moved(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch, is_led_to: bool
) -> None:
    def capture(*_: object) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            if is_led_to:  # as by the end of a capture that has failed
                raise RuntimeError("the capture was invalidated")

    failing = Mock(side_effect=capture)
    with monkeypatch.context() as patched:
        patched.setattr(cuda_graphs, "Graph", failing)
        assert [(is_replayed(graphs, 1), graphs.is_warm) for _ in range(4)] == [(False, False), *[(False, True)] * 3]
        assert failing.call_count == 1
        assert graphs.fault.startswith("memory ran out (OutOfMemoryError: CUDA out of memory)")
    other = object()
    assert [is_replayed(graphs, 1, other) for _ in range(2)] == [False, True]
    assert not graphs.fault


def test_buckets_are_few_and_their_own_buckets() -> None:
    buckets = {slot_bucket(count) for count in range(1, 3000)}
    assert buckets == {256, 512, 1024, 2048, 3072}
    assert {slot_bucket(each) for each in buckets} == buckets
