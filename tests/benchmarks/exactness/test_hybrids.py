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
