"""The command ``specdec index``, which indexes a corpus for the strategy ``datastore``."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specdec.apps.cli import (
    SHOWN_DEFAULT_MODEL,
    FiguresTable,
    before_anything_runs,
    check_outputs,
    counted,
    load_tokenizer,
    named_model,
)
from specdec.errors import RequestError, plural

if TYPE_CHECKING:
    from specdec_datastore.index.corpus import Corpus, Messages

_TOLD = 3  # names of skipped files


def index(
    paths: Annotated[list[Path], typer.Argument(help="text files, .jsonl conversations, and folders of them")],
    model: Annotated[
        str | None,
        typer.Option(
            help="the model that will use the index; only its tokenizer is loaded", show_default=SHOWN_DEFAULT_MODEL
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="the file to write")] = Path("datastore.index"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an existing file")] = False,
) -> None:
    """Index a corpus for the strategy `datastore`.

    Each line of a .jsonl file is {"messages": …}, {"prompt": …, "completion": …} or {"text": …}.
    Files that aren't text are skipped and counted.
    """
    begun = time.monotonic()
    with before_anything_runs():
        _check_output(output, overwrite)
        from specdec_datastore.index.building import build_index
        from specdec_datastore.index.corpus import Corpus, Encoder
        from specdec_datastore.tokenizer_fingerprint import TokenizerFingerprint

        corpus = Corpus.of(paths)
        if not corpus.files:
            raise RequestError(f"the corpus is empty: there are no files below {', '.join(map(str, paths))}")
        tokenizer = load_tokenizer(named_model(model))
        with counted(len(corpus.files), "files") as (advance, say):
            encoded = Encoder(tokenizer).encode(_documents(corpus, advance))
            header, size = build_index(output, encoded, TokenizerFingerprint.of(tokenizer), on_stage=say)
    table = FiguresTable("index", "documents", "tokens", "MB", "seconds")
    seconds = time.monotonic() - begun
    table.add_row(
        str(output), f"{header.num_documents:,}", f"{header.num_tokens:,}", f"{size / 1e6:.1f}", f"{seconds:.1f}"
    )
    console = Console(highlight=False, markup=False)
    console.print(table)
    if corpus.skipped:
        names = ", ".join(str(path) for path in corpus.skipped[:_TOLD]) + (", …" if corpus.skipped[_TOLD:] else "")
        console.print(f"skipped, not UTF-8 text: {plural(len(corpus.skipped), 'file')} ({names})", soft_wrap=True)
    console.print(f"\nuse it: --proposer auto+datastore:path={output}", soft_wrap=True)


def _check_output(output: Path, overwrite: bool) -> None:
    if set(str(output)) & set("+,"):
        raise RequestError(f"--output {output}: give a name without '+' and ',', which separate strategies and options")
    if output.is_dir():
        raise RequestError(f"--output {output} is a folder: give a file")
    if output.exists() and not overwrite:
        raise RequestError(f"--output {output} exists already: add --overwrite, or give another name")
    check_outputs(output)


def _documents(corpus: "Corpus", advance: Callable[[], None]) -> Iterator["str | Messages"]:
    """Yield the documents of a corpus, and call ``advance`` after each file."""
    for path in corpus.files:
        yield from corpus.documents(path)
        advance()
