"""The command that does once what every load of a model would do a part of."""

import typer

from specdec.cli.model_choice import USUAL, ModelChoice, takes_model
from specdec.cli.options import Threads, before_anything_runs, use_threads
from specdec.cli.progress import part_of


@takes_model
def prepare(choice: ModelChoice = USUAL, threads: Threads = None) -> None:
    """Ask a model once what may follow each of its tokens.

    Every load spends some seconds on that until all tokens are done; this does the rest at once.
    What is found is kept in specdec's cache folder. An interrupted run goes on where it ended.
    """
    with before_anything_runs():
        from specdec.generator import Generator

        use_threads(threads)
        loaded, tokenizer = choice.load()
        generator = Generator(loaded, tokenizer, proposer="autoregressive", **choice.stages)
        with part_of("tokens") as show:
            generator.prepare(show)
    typer.echo(f"{choice.model} is prepared: what may follow each of its {generator.vocab_size:,} tokens is kept")
