"""Passes on a dynamic and on a static graph, in turns, in rows of `step_profile`; no time is asserted."""

from pathlib import Path

import pytest

from benchmarks.speed.static_shapes import compared
from specdec.testing import toy_tokenizer
from tests.support import families


def test_passes_of_each_size_are_timed_on_both_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("specdec_openvino")
    from specdec_openvino.engine.bound_request import BoundRequest

    run, ran = BoundRequest.run, list[int]()
    monkeypatch.setattr(BoundRequest, "run", lambda self, inputs: (ran.append(self.num_tokens), run(self, inputs)))
    families.make(*families.TREES["llama"]).save_pretrained(tmp_path)
    toy_tokenizer(families.VOCAB).save_pretrained(tmp_path)
    ((size, *figures),) = compared(tmp_path, [3])
    assert (size, len(figures)) == ("3", 5)
    assert ran[-32:] == [*[0] * 8, *[3] * 8] * 2
