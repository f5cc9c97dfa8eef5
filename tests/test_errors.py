"""Memory that ran out is told from errors that only speak of it."""

import errno

import pytest
import typer
from safetensors import SafetensorError

from specdec import RequestError, SpecdecError
from specdec.apps.cli.options import before_anything_runs
from specdec.errors import failure, is_out_of_memory, memory_ran_out

OUT_OF_MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, "Nicht genug Hauptspeicher"),
    OSError("Cannot allocate memory (os error 12)"),  # as Rust's libraries raise it, without a number
    Exception("Cannot allocate memory (os error 12)"),
    SafetensorError("Cannot allocate memory (os error 12)"),
    RuntimeError("could not create a primitive"),
    RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ImportError("libx.so: failed to map segment: Cannot allocate memory"),
]
OF_OTHER_KINDS = [
    RuntimeError("could not create a primitive descriptor for a matmul primitive"),
    ValueError("unknown rule 'out of memory' in grammar"),
    KeyError("out of memory"),
    FileNotFoundError(errno.ENOENT, "No such file or directory", "out of memory"),
    SpecdecError("stop='out of memory' is a special token"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_memory_that_ran_out_has_a_remedy_for_every_reader(error: Exception) -> None:
    assert is_out_of_memory(error)
    said = memory_ran_out(error)
    assert said.endswith("): free memory, or load the model in bfloat16 or a smaller one")
    assert "--" not in said, "the sentence is also that of Python and the server"
    assert str(failure("a plug-in", error)) == f"a plug-in failed: {said}"


@pytest.mark.parametrize("error", OF_OTHER_KINDS, ids=repr)
def test_an_error_of_another_kind_is_told_as_it_is(error: Exception) -> None:
    assert not is_out_of_memory(error)
    assert memory_ran_out(error) == ""
    assert "memory ran out" not in str(failure("a plug-in", error))


def _refused(error: Exception, cause: Exception | None) -> SpecdecError:
    try:
        try:
            raise error
        except type(error):
            raise RequestError("x can't be read: give another") from cause
    except RequestError as refusal:
        return refusal


def test_an_error_that_was_settled_is_not_looked_at_again(capsys: pytest.CaptureFixture[str]) -> None:
    settled, caused = _refused(MemoryError(), None), _refused(MemoryError(), MemoryError("2 GiB"))
    assert memory_ran_out(settled) == ""
    assert memory_ran_out(caused).startswith("memory ran out (MemoryError: 2 GiB)")
    with pytest.raises(typer.Exit) as left, before_anything_runs():
        raise settled from None
    assert left.value.exit_code == 2
    assert capsys.readouterr().err == "error: x can't be read: give another\n"
    with pytest.raises(RequestError), before_anything_runs():
        raise caused
