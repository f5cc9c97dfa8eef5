"""The command line: thin, arguments to the library and its results to the terminal. One file per family of commands."""

import os
import signal
import sys
from typing import NoReturn

import typer
from rich.console import Console

from specdec.cli.audit import audit
from specdec.cli.decode import demo, generate, plugins
from specdec.cli.evaluate import bench, compare, report
from specdec.cli.options import EXIT_ERROR, EXIT_INTERRUPTED
from specdec.cli.show import mask, race, trace
from specdec.cli.tuning import tune
from specdec.errors import SpecdecError

app = typer.Typer(
    help="Several tokens per forward pass from any Hugging Face causal model, without changing what it says.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, generate, plugins, compare, bench, tune, report, audit, mask, trace, race):
    app.command()(command)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed or another text, 2 wrong usage, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a request to end is an interruption too
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except SpecdecError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(EXIT_ERROR)
    except BrokenPipeError:  # whoever read the output has gone
        _leave_unread()
    except OSError as error:  # a full disk, say, where the output goes
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        _leave_unread()
    except Exception as error:
        # Usage errors of the argument parser know how to show themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code or 0)


def _leave_unread() -> NoReturn:
    """End without the interpreter's own attempt to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_ERROR)
