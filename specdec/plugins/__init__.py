"""Plug-ins: the hooks that register them, the built-in ones, and the registry that finds and checks them all."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.plugins.names import built_in as built_in
    from specdec.plugins.registry import Registry as Registry
    from specdec.plugins.registry import load_plugins as load_plugins
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
