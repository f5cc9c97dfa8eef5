"""The command that precomputes successors for token recycling."""

import typer

from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.options import Threads, before_anything_runs, use_threads
from specdec.apps.cli.progress import part_of
from specdec.apps.cli.ranked_choice import takes_model


@takes_model
def prepare(choice: ModelChoice = USUAL, threads: Threads = None) -> None:
    """Compute the likely successors of each token, once.

    They are saved in specdec's cache folder for later loads. An interrupted run continues where it ended.
    """
    with before_anything_runs():
        choice.check_early()
        from specdec.generator import Generator

        use_threads(threads)
        loaded, tokenizer = choice.load()
        generator = Generator(loaded, tokenizer, proposer="token_recycling", **choice.stages)
        with part_of("tokens") as show:
            generator.prepare(show)
    num_tokens = generator.vocab_size
    typer.echo(f"{choice.name} is prepared: the successors of its {num_tokens:,} tokens are saved")
