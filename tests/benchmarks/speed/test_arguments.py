"""Numbers of nodes that can't be measured are refused before a model is loaded."""

import sys

import pytest

from benchmarks.speed import compiled_passes


def test_compiled_passes_refuses_more_nodes_than_its_cache_has_slots_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compiled_passes", "--nodes", "1", "any", "65"])
    with pytest.raises(SystemExit):
        compiled_passes.main()
    assert "--nodes: at most 64" in capsys.readouterr().err


def test_step_profile_refuses_to_profile_passes_that_it_doesnt_time(capsys):
    pytest.importorskip("openvino")
    pytest.importorskip("specdec_openvino")
    from benchmarks.speed import step_profile

    with pytest.raises(SystemExit):
        step_profile.main(["--nodes", "1", "4"])
    assert "--profiled 8: --nodes must contain them too" in capsys.readouterr().err
