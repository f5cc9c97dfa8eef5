"""Passes on a dynamic and on a static graph, which `step_profile`'s rows run; no time is asserted."""

from pathlib import Path

import pytest

from benchmarks.speed.static_shapes import compared
from tests.support import families


def test_passes_of_each_size_are_timed_on_both_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("specdec_openvino")
    from specdec_openvino.engine.bound_request import BoundRequest

    run, ran = BoundRequest.run, list[int]()
    monkeypatch.setattr(BoundRequest, "run", lambda self, inputs: (ran.append(self.num_tokens), run(self, inputs)))
    families.make(*families.TREES["llama"]).save_pretrained(tmp_path)
    ((size, *figures),) = compared(tmp_path, [3])
    assert size == "3"
    assert len(figures) == 5
    assert ran.count(3) == ran.count(0) - 2 > 0, "as many passes on the static graph, after one over each context"
