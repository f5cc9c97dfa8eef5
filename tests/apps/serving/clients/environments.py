"""Make the environments of clients, each in a folder of its own, where the tests find them.

    python -m tests.apps.serving.clients.environments             # all: 2 GB, ten minutes
    python -m tests.apps.serving.clients.environments litellm js

They are made in ``build/clients/`` with the current Python, and with npm. Existing environments are left alone.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "build" / "clients"
_TORCH = f"--constraint={ROOT / 'constraints.txt'}", "torch", "transformers", "accelerate"
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "instructor": ("instructor",),
    "langchain": ("langchain", "langchain-openai", "langgraph"),
    "litellm": ("litellm",),
    "lm_eval": ("lm_eval[api]", *_TORCH),
    "pydantic_ai": ("pydantic-ai-slim[openai]",),
    "js": ("openai", "zod"),
}


def command(client: str) -> list[str] | None:
    """What runs a client's script; None without its environment."""
    if client == "js":
        return ["node"] if (FOLDER / "js" / "node_modules" / "openai").exists() else None
    python = FOLDER / client / "bin" / "python"
    return [str(python)] if python.exists() else None


def make(client: str) -> None:
    """Make the environment of a client."""
    if command(client) is not None:
        return
    folder, requirements = FOLDER / client, REQUIREMENTS[client]
    if client == "js":
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", str(folder), *requirements], check=True)
        return
    venv.create(folder, with_pip=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements], check=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or REQUIREMENTS:
        make(name)
