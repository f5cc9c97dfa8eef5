"""All commands, those of plug-ins included, and how a run of one ends."""

import errno
import io
import os
import sys
import warnings
from typing import TextIO

import typer
from rich.console import Console

from specdec.apps.cli.audit import audit
from specdec.apps.cli.chat import chat
from specdec.apps.cli.decode import generate
from specdec.apps.cli.demo import demo
from specdec.apps.cli.evaluate import compare, report
from specdec.apps.cli.heads import heads
from specdec.apps.cli.load import bench_serve
from specdec.apps.cli.options import EXIT_ERROR, EXIT_INTERRUPTED
from specdec.apps.cli.plugin_commands import ANY_OPTIONS, CommandGroup
from specdec.apps.cli.plugin_list import plugins
from specdec.apps.cli.prepare import prepare
from specdec.apps.cli.ranked_choice import silence_followers
from specdec.apps.cli.serve import serve
from specdec.apps.cli.show import mask, race, trace
from specdec.apps.cli.train_head import refuse_consistency, train
from specdec.apps.cli.tuning import tune
from specdec.apps.cli.usage_errors import show
from specdec.apps.cli.version_option import Version, with_version
from specdec.errors import SpecdecError, memory_ran_out

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _specdec(version: Version = False) -> None:
    """Decode several tokens per forward pass with any Hugging Face causal model, without changing its output.

    Begin with `specdec demo`. `specdec COMMAND --help` lists a command's options.
    """


_COMMANDS = (
    demo, generate, chat, serve, bench_serve, plugins, compare, tune, report, audit, mask, trace, race, prepare,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(with_version(command))
_training = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_training.command("head")(with_version(train))
_training.command("consistency", hidden=True, context_settings=ANY_OPTIONS)(refuse_consistency)
app.add_typer(heads, name="heads")
app.add_typer(_training, name="train", help="Train a draft head for a model.")


_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed or another text, 2 wrong usage, 130 interrupted."""
    silence_followers()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # as other tools do with characters that the encoding doesn't have
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        _run()


def _run() -> None:
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except SpecdecError as error:
        _say(memory_ran_out(error) or str(error))
        sys.exit(EXIT_ERROR)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            _say(f"the output can't be written: {error.strerror}")
            # otherwise the interpreter would try to write the rest again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_ERROR)
        if said := memory_ran_out(error):
            _say(said)
            sys.exit(EXIT_ERROR)
        # Usage errors of the argument parser have their own formatting.
        if not hasattr(error, "show"):
            raise
        show(error)
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code or 0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning for users as one line, and one for programmers as Python does."""
    if issubclass(category, UserWarning):
        text = f"warning: {' '.join(str(message).split())}"
        Console(stderr=True, highlight=False).print(text, style="dim", markup=False, soft_wrap=True)
    elif sys.stderr is not None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _say(fault: str) -> None:
    sys.stderr.write(f"error: {fault}\n")  # rich would import modules, for which there may be no memory
