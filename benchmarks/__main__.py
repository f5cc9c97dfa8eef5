"""``python -m benchmarks NAME …`` runs a measurement; without a name, or with ``--help``, says which there are."""

import ast
import runpy
import sys
from pathlib import Path


def measurements() -> dict[str, str]:
    """The first line of each module that can be run, by its name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = ast.parse(path.read_text(encoding="utf-8"))
        runs = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in source.body)
        if runs and path.stem != "__main__":
            found[path.stem] = (ast.get_docstring(source) or "").partition("\n")[0]
    return found


def main() -> None:
    known = measurements()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [--help | OPTIONS]\n")
        print("\n".join(f"{name:12} {line}" for name, line in known.items()))
    elif name in known:
        sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    else:
        raise SystemExit(f"there is no measurement {name!r}: there are {', '.join(known)}")


if __name__ == "__main__":
    main()
