"""The folder of fetched models and measured choices; only this module and the command line read the environment."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """specdec's folder among the user's caches: in ``$XDG_CACHE_HOME``, or else in ``~/.cache``."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # one that is relative is void, by the variable's rules
    return (given if given.is_absolute() else Path.home() / ".cache") / "specdec"
