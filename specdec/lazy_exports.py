"""Packages that import their public names at the first use of each: importing torch alone takes more than a second.

A package's ``__init__.py`` exports the names that documents, plug-ins and the tests of contracts import, so that its
files can be moved. Code in ``specdec/`` imports from files: importing from its own package's ``__init__.py`` would be a
circle.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``; submodules are imported at first use as well.

    Call it in the ``else`` of an ``if TYPE_CHECKING`` that imports the exported names as themselves, for type checkers:
    the names and their modules are read from these statements.

    Args:
        package: the package's ``__name__``.
    """
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_bytes())
    statements = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    modules = {name.asname: str(each.module) for each in statements for name in each.names if name.asname}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)
