"""The folder of fetched models and measured choices; only this module and the command line read the environment."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return specdec's cache folder: in ``$XDG_CACHE_HOME`` if set, else in ``~/.cache``."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the XDG specification says to ignore a relative path
    return (given if given.is_absolute() else Path.home() / ".cache") / "specdec"
