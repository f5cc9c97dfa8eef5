"""The command line: passes arguments to the library and prints its results. One file per family of commands.

It exports its entry point, and what commands of plug-ins share with its own.
"""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.apps.cli.command_line import app as app
    from specdec.apps.cli.command_line import main as main
    from specdec.apps.cli.figures_table import FiguresTable as FiguresTable
    from specdec.apps.cli.options import SHOWN_DEFAULT_MODEL as SHOWN_DEFAULT_MODEL
    from specdec.apps.cli.options import before_anything_runs as before_anything_runs
    from specdec.apps.cli.options import check_outputs as check_outputs
    from specdec.apps.cli.options import load_tokenizer as load_tokenizer
    from specdec.apps.cli.options import named_model as named_model
    from specdec.apps.cli.progress import counted as counted
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
