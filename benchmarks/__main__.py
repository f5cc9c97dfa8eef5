"""``python -m benchmarks NAME …`` runs a measurement; without a name, or with ``--help``, it lists all of them."""

import ast
import runpy
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent


def measurements() -> dict[str, Path]:
    """Return the modules that can be run, by name."""
    found = dict[str, Path]()
    for path in sorted(_FOLDER.rglob("*.py"), key=lambda path: path.stem):
        source = ast.parse(path.read_text(encoding="utf-8"))
        runs = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in source.body)
        if runs and path.stem != "__main__" and path.parent.name != "peers":
            found[path.stem] = path
    return found


def question(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def main() -> None:
    known = measurements()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [--help | OPTIONS]\n")
        print("\n".join(f"{name:12} {question(path)}" for name, path in known.items()))
    elif name in known:
        sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
        module = ".".join(known[name].relative_to(_FOLDER.parent).with_suffix("").parts)
        runpy.run_module(module, run_name="__main__")
    else:
        raise SystemExit(f"there is no measurement {name!r}: there are {', '.join(known)}")


if __name__ == "__main__":
    main()
