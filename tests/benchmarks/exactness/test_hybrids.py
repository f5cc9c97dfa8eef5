"""The measurement of hybrids: what it counts as a difference, and the model that it times."""

import pytest

from benchmarks.exactness import hybrids
from specdec import Generator


def test_texts_that_differ_are_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrids, "STRATEGIES", hybrids.STRATEGIES[:2])
    assert hybrids.compare("lfm2", num_texts=2, num_tokens=8) == 0
    assert [line.split(" | ")[2:5] for line in capsys.readouterr().out.splitlines()] == [["2", "0", "0"]] * 2
    monkeypatch.setattr(hybrids, "differing", lambda results, _: len(results))
    assert hybrids.compare("lfm2", num_texts=2, num_tokens=8) == 6  # plain decoding's samples aren't compared


def test_the_timed_model_counts() -> None:
    config_class, arguments = hybrids.TIMED_MODELS["Qwen3"]
    small = {**arguments, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    generator = Generator(hybrids.counting(config_class, small), proposer="autoregressive", numerics="fast")
    result = generator.generate([*range(24)], max_new_tokens=30, eos_token_id=())
    assert list(result.token_ids) == [*range(24), *range(6)]


def test_the_times_of_drafts_are_of_each_number_of_accepted_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hybrids, "TIMED_MODELS", {"LFM2": hybrids.FAMILIES["lfm2"]})
    monkeypatch.setattr(hybrids, "counting", hybrids.families.make)
    monkeypatch.setattr(hybrids, "REPEATS", 1)
    monkeypatch.setattr(hybrids, "STEPS", 1)
    hybrids.time_rejections(["LFM2"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["| LFM2", f"{count} of 7"] for count in (0, 1, 3, 6, 7)]
    assert all(float(row[2]) > 0.0 for row in rows)
