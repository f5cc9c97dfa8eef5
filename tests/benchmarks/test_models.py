"""The model of a measurement, by name or folder."""

import argparse
from pathlib import Path

import pytest

from benchmarks.models import add_model_options, checkpoint, load_model


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    return parser.parse_args([*given, "--threads", "1"])


def test_smollm2_is_the_folder_of_its_dtype_and_any_other_name_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for dtype in ("bfloat16", "float32"):
        (tmp_path / "specdec/smollm2" / dtype).mkdir(parents=True)
        assert checkpoint(options("--model", "smollm2", "--dtype", dtype)) == tmp_path / "specdec/smollm2" / dtype
    assert checkpoint(options("--model", "wide")) == Path("wide")
    assert (checkpoint(options()) / "model.safetensors").is_file()


@pytest.mark.parametrize("find", [load_model, checkpoint])
def test_without_the_real_model_a_measurement_ends_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: object
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^smollm2 has not been fetched: run `make real-model`"):
        find(options("--model", "smollm2"))  # type: ignore[operator]


def test_a_folder_that_is_not_there_ends_a_measurement_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^can't load '.*/no': there is no such folder\."):
        load_model(options("--model", str(tmp_path / "no")))
