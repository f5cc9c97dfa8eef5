"""Plug-ins: the hooks that register them, the built-in ones, and the registry that finds and checks them all."""
