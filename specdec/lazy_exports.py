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
from pkgutil import get_data
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``; submodules are imported at first use as well.

    Call it in the ``else`` of an ``if TYPE_CHECKING``. What that block imports for type checkers, each name as itself,
    is what the package exports: it is read from the package's source.

    Args:
        package: the package's ``__name__``.
    """
    source = get_data(package, "__init__.py")
    assert source is not None, "a package is read from its source"
    blocks = [node.body for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [each for block in blocks for each in block if isinstance(each, ast.ImportFrom)]
    modules = {alias.name: str(each.module) for each in imports for alias in each.names}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)
