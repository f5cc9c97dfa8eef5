"""``specdec demo``: transformers' ``generate`` and specdec on three questions, and a verdict."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from specdec.apps.cli.columns import Column, Columns, figures, printable
from specdec.apps.cli.demo_summary import conclude, is_live, say_line
from specdec.apps.cli.model_choice import ModelChoice
from specdec.apps.cli.options import EXIT_ERROR, MaxNewTokens, before_anything_runs
from specdec.apps.cli.progress import stages, status
from specdec.errors import RequestError, SpecdecError
from specdec.models.own_models import BUILT_IN, NAME, SMOLLM2, STORED_AS, home

if TYPE_CHECKING:
    from specdec.apps.side_by_side.agreement import Agreement
    from specdec.apps.side_by_side.contenders import Contender, TimedAnswer
    from specdec.apps.side_by_side.questions import Question
    from specdec.apps.side_by_side.verdict import Measured

_NAMES = {BUILT_IN: "the built-in model of 7 million parameters", SMOLLM2: f"{NAME} ({STORED_AS})"}
_THEIRS = "transformers' generate"
_WARM_UP_TOKENS = 32


def demo(
    model: Annotated[
        str | None,
        typer.Option(
            help="a folder, hub name or GGUF file; 'demo' is a small built-in model",
            show_default="SmolLM2-135M-Instruct, fetched once",
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
) -> None:
    """Compare transformers with specdec on this machine, live.

    Three questions are answered by both, one after the other, on this machine. A table and one sentence at the end
    say how fast each was, whether the texts are the same, and how much comes from the engine and how much from drafts.
    Exit code 1 if a text differs by more than a numeric tie.
    """
    console = Console(highlight=False)
    with before_anything_runs():
        if max_new_tokens < 1:
            raise RequestError(f"--max-new-tokens {max_new_tokens}: it must be at least 1")
        if model is not None:
            with status(f"looking for {model}"):
                ModelChoice(model=model).refuse_missing()
        name = model if model is not None else _real_or_built_in(console)
        show = _Show(console, name, max_new_tokens)
    measured = show.run()
    conclude(console, measured, name)
    if any(each.verdict == "defect" for each in (*measured.agreements, *measured.agreements_without_drafts)):
        raise typer.Exit(EXIT_ERROR)


def _real_or_built_in(console: Console) -> str:
    """The default model: SmolLM2, fetched if it is missing. If that fails, say why and use the built-in model."""
    from specdec.demo import smollm2
    from specdec.demo.gguf_conversion import check_libraries

    folder = home()
    if folder.is_dir():
        return SMOLLM2
    try:
        with status("starting"):
            check_libraries()
        with stages() as say:
            smollm2.fetch(folder, say=say)
    except (SpecdecError, OSError) as error:
        say_line(console, f"SmolLM2-135M-Instruct can't be fetched: {error}", "yellow")
        say_line(
            console,
            "The built-in model takes its place. It has 7 million parameters and continues texts. Its passes are so "
            "short that drafts gain little: for figures that say something, use a real model.",
        )
        return BUILT_IN
    return SMOLLM2


def _generators(name: str) -> tuple[Any, Any]:
    """specdec with default settings, and without drafts in the same numerics."""
    from specdec.generator import Generator

    model, tokenizer = ModelChoice(model=name).load()
    with status("preparing specdec (longer the first time)"):
        ours = Generator(model, tokenizer)
        plain = Generator(model, tokenizer, proposer="autoregressive", numerics=ours.numerics.mode)
    return ours, plain


class _Show:
    """Asks the questions and shows the answers.

    Each side has its own copy of the model: specdec may pack its copy's weights, and transformers would gain by that.

    Raises:
        ModelError: for a model that can't be loaded or isn't supported.
    """

    def __init__(self, console: Console, name: str, max_new_tokens: int) -> None:
        with status("starting"):
            from specdec.apps.side_by_side.contenders import SpecdecContender, TransformersContender
            from specdec.apps.side_by_side.questions import QUESTIONS, built_in_questions
            from specdec.requests.turn_ends import ends_in_chat

        self._console, self._name, self._max_new_tokens = console, name, max_new_tokens
        self._is_live = is_live(console)
        model, self._tokenizer = ModelChoice(model=name, backend="hf").load()
        ours, plain = _generators(name)
        has_template = bool(getattr(self._tokenizer, "chat_template", None))  # then all questions are chats
        ends = ends_in_chat(model, self._tokenizer, ours.vocab_size, {}) if has_template else None
        self._transformers = TransformersContender(model, ends)
        self._specdec, self._without_drafts = SpecdecContender(ours, ends), SpecdecContender(plain, ends)
        self._questions = built_in_questions() if name == BUILT_IN else QUESTIONS
        # A model of another class is another engine's, which reads the checkpoint itself.
        is_torch = type(ours.model) is type(model)
        self._engine = ("packing the weights" if ours.weights.kernel else "its loop") if is_torch else "OpenVINO"
        self._ours = "specdec" if is_torch else "specdec on OpenVINO"

    def run(self) -> "Measured":
        """Warm each contender up, ask, and compare."""
        from specdec.apps.side_by_side.questions import WARM_UP
        from specdec.apps.side_by_side.verdict import Measured

        self._introduce()
        with status("warming up"):
            prompt = WARM_UP.encoded(self._tokenizer)
            for contender in (self._transformers, self._specdec, self._without_drafts):
                contender.answer(prompt, min(_WARM_UP_TOKENS, self._max_new_tokens), lambda *_: None)
        answers = [self._ask(place, question) for place, question in enumerate(self._questions)]
        theirs, ours, plain = (tuple(each) for each in zip(*answers, strict=True))
        with status("comparing the texts"):
            prompts = [question.encoded(self._tokenizer) for question in self._questions]
            agreements = [self._agreements(prompts, theirs, each) for each in (ours, plain)]
        kinds = tuple(question.kind for question in self._questions)
        numerics = self._specdec.generator.numerics.mode
        return Measured(kinds, theirs, plain, ours, self._engine, numerics, *agreements)

    def _agreements(
        self, prompts: list[list[int]], expected: "tuple[TimedAnswer, ...]", found: "tuple[TimedAnswer, ...]"
    ) -> "tuple[Agreement, ...]":
        from specdec.apps.side_by_side.agreement import agreement

        return tuple(
            agreement(self._transformers.model, prompt, theirs.token_ids, ours.token_ids)
            for prompt, theirs, ours in zip(prompts, expected, found, strict=True)
        )

    def _introduce(self) -> None:
        import torch

        dtype = str(self._transformers.model.dtype).removeprefix("torch.")
        say_line(
            self._console,
            f"{_NAMES.get(self._name, self._name)}, {dtype}, {torch.get_num_threads()} threads, greedy: three answers "
            f"of up to {self._max_new_tokens} tokens by {_THEIRS}, then by {self._ours}.",
        )
        if self._is_live and self._console.color_system is not None and not self._console.no_color:
            say_line(self._console, "Tokens of one pass share a colour.", "dim")

    def _ask(self, place: int, question: "Question") -> "tuple[TimedAnswer, TimedAnswer, TimedAnswer]":
        """transformers' answer, specdec's, and specdec's without drafts."""
        console = self._console
        console.print()
        heading = f"{place + 1} of {len(self._questions)}: {question.kind}"
        if self._is_live:
            console.rule(Text(heading, style="bold"), align="left", style="dim")
        else:
            console.print(heading, markup=False)
        say_line(console, printable(question.text.rstrip()), "italic")
        columns = [Column(name, self._tokenizer) for name in (_THEIRS, self._ours)]
        prompt = question.encoded(self._tokenizer)
        answering = self._live(columns) if self._is_live else self._plain(columns)
        with answering as (add, say):
            answers = []
            contenders: list[Contender] = [self._transformers, self._specdec]
            for column, contender in zip(columns, contenders, strict=True):
                column.begin()
                answer = contender.answer(prompt, self._max_new_tokens, partial(add, column))
                column.finish(answer)
                answers.append(answer)
                say(column, "")
            say(None, "specdec without drafts, not shown…")
            plain = self._without_drafts.answer(prompt, self._max_new_tokens, lambda *_: None)
            say(None, f"specdec without drafts: {figures(len(plain.token_ids), plain.seconds)}")
        return answers[0], answers[1], plain

    @contextmanager
    def _live(self, columns: list[Column]) -> Iterator[tuple[Callable[..., None], Callable[..., None]]]:
        drawn = Columns(self._console, columns)
        with drawn.shown():
            yield drawn.add, lambda _, below: drawn.say(below)

    @contextmanager
    def _plain(self, columns: list[Column]) -> Iterator[tuple[Callable[..., None], Callable[..., None]]]:
        def say(column: Column | None, below: str) -> None:
            if column is not None:
                say_line(self._console, f"\n{column.name}, {column.figures()}:")
                say_line(self._console, column.text.plain)
            elif not below.endswith("…"):
                say_line(self._console, f"\n{below}")

        yield Column.add, say
