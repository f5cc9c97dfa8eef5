"""The command that compares a strategy with plain decoding, bit by bit in bit-exact numerics."""

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.options import (
    EXIT_ERROR,
    AsJson,
    NewTokens,
    ProposerOption,
    Seed,
    Temperature,
    Threads,
    Verifier,
    before_anything_runs,
    check_request,
    echo_json,
    use_threads,
)
from specdec.apps.cli.progress import status
from specdec.apps.cli.prompt_set import BUILT_IN_CHATS, ChatPromptSet
from specdec.apps.cli.ranked_choice import takes_model
from specdec.errors import plural

if TYPE_CHECKING:
    from specdec.apps.auditing import Finding


@takes_model
def audit(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    choice: ModelChoice = USUAL,
    proposer: ProposerOption = "lookahead",
    verifier: Verifier = "match",
    prompts: ChatPromptSet = BUILT_IN_CHATS,
    max_new_tokens: NewTokens = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Check a strategy's text against plain decoding, bit by bit.

    A text that differs is a numeric tie or a defect.
    Exit code 1 for a defect. In bit-exact numerics every difference of a bit is a defect, even if no token differs.
    """
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed or 0}
    with before_anything_runs():
        chosen = prompts.read()
        choice.check_early(proposer, verifier=verifier, settings=settings)
        check_request(proposer, verifier=verifier, **choice.stages, settings=settings)
        from specdec.apps.auditing import audit as run
        from specdec.generator import Generator

        use_threads(threads)
        loaded, tokenizer = choice.load(proposer)
        with status("trying the model out"):
            generator = Generator(loaded, tokenizer, proposer=proposer, verifier=verifier, **choice.stages)
            run(generator, [], chat=prompts.chat, **settings)  # what can't be audited is refused here
    console = Console(highlight=False, markup=False)
    if not as_json:
        console.print(f"numerics: {generator.numerics}", soft_wrap=True)

    def show(finding: "Finding") -> None:
        if not as_json:
            console.print(sentence(finding, tokenizer), soft_wrap=True)

    whole = run(generator, chosen, chat=prompts.chat, on_finding=show, **settings)
    if as_json:
        echo_json(whole.to_json())
    else:
        same, ties = whole.count("identical"), whole.count("numeric tie")
        console.print(
            f"{plural(len(whole.findings), 'text')}: {same} identical, "
            f"{plural(ties, 'numeric tie')}, {plural(len(whole.defects), 'defect')}"
        )
    if whole.defects:
        raise typer.Exit(EXIT_ERROR)


def sentence(finding: "Finding", tokenizer: Any) -> str:
    """Return the line about one prompt."""
    if finding.position is None:
        because = f", {finding.reason}" if finding.reason else ""
        return f"{finding.prompt}: {finding.verdict}, {plural(finding.num_tokens, 'token')}{because}"
    token, expected = (
        "the end" if token is None else f"{tokenizer.decode([token])!r} ({token})"
        for token in (finding.token, finding.expected)
    )
    logits = "" if finding.scores is None else f", scores {finding.scores[0]:.5g} and {finding.scores[1]:.5g}"
    return (
        f"{finding.prompt}: {finding.verdict} at new token {finding.position}: {token} for plain decoding's {expected}"
        f"{logits}; {finding.reason}"
    )
