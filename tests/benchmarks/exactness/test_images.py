"""The measurement of images and audio: what it counts as a difference."""

import pytest

from benchmarks.exactness import images


@pytest.mark.parametrize("family", ["llava", "whisper"])
def test_texts_that_differ_are_counted(
    family: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "STRATEGIES", images.STRATEGIES[:2])
    assert images.compare(family, num_texts=2, num_tokens=6) == (16, 0)
    assert [line.split(" | ")[1:4] for line in capsys.readouterr().out.splitlines()] == [
        ["fast", "8", "0"],
        ["exact", "8", "0"],
    ]
    monkeypatch.setattr(images, "greedy_texts", lambda _, prompts, __: [[0]] * len(prompts))
    assert images.compare(family, num_texts=2, num_tokens=6) == (16, 8)
