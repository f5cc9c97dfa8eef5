"""Run strategies on the same prompts: which is faster, by how much, and are their texts equal?"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self, Unpack

from specdec.apps.comparison.contenders import Contenders, read_strategies
from specdec.apps.comparison.options import ComparisonKeywords, ComparisonOptions
from specdec.apps.comparison.prompts import EvaluationPrompt, as_chat, demo_prompts, named
from specdec.apps.comparison.results import Comparison
from specdec.apps.comparison.runfile import RunFile
from specdec.apps.comparison.runs import WARM, ComparisonPlan, Decoder, Promise, Run, decoder, measure
from specdec.apps.comparison.ties import examine_differences
from specdec.costs import Costs
from specdec.errors import RequestError, SpecdecError
from specdec.generator import Generator
from specdec.machine.facts import machine_facts, model_facts
from specdec.models.loading import ModelSource
from specdec.models.weights.pack_model import Weights
from specdec.plugins.registry import load_plugins
from specdec.requests.prompts import encode, is_chat
from specdec.requests.turn_ends import ends_in_chat
from specdec.runtime.backend_choice import read_models, why_torch
from specdec.runtime.probes.costs import measure_costs
from specdec.runtime.strategies import check_files
from specdec.strategies.base import Proposer
from specdec.verifiers.base import Verifier


class ComparisonSession:
    """A comparison before it runs: a generator for each strategy, and the plan.

    Arguments are those of ``compare``. ``Contenders`` adds plain decoding to the strategies. ``model`` and
    ``tokenizer`` are those of the strategies, loaded.

    Raises:
        SpecdecError: something can't be compared; raised before anything is run.
    """

    def __init__(
        self,
        model: Any,
        strategies: Mapping[str, Any],
        prompts: Sequence[EvaluationPrompt | Any] | None = None,
        *,
        tokenizer: Any | None = None,
        **options: Unpack[ComparisonKeywords],
    ) -> None:
        if not isinstance(strategies, Mapping):
            raise RequestError(f"strategies={strategies!r}: give a mapping of names to strategies, {{'auto': 'auto'}}")
        given = ComparisonOptions.make(options)
        if isinstance(model, str | os.PathLike):
            model, tokenizer = open_by_name(model, tokenizer, strategies, given)
        self.runs: list[Run] = []  # of the last call of ``run``, also after an error
        self.settings = given.settings
        rows = with_warm(strategies) if given.warm else strategies
        self._contenders = Contenders(model, tokenizer, rows, given.stages)
        self.model, self.tokenizer = self._contenders.model, self._contenders.tokenizer
        self.generators = self._contenders.generators
        plain = self.generators[self._contenders.baseline]
        chosen = as_chat(named(demo_prompts() if prompts is None else prompts), plain.tokenizer, given.chat)
        ends = ends_in_chat(plain.model, plain.tokenizer, plain.vocab_size, {})
        self._ends = {index: ends for index, prompt in enumerate(chosen) if is_chat(prompt.prompt)}
        self.plan = ComparisonPlan(
            strategies={name: _described(made.proposer) for name, made in self.generators.items()},
            baseline=self._contenders.baseline,
            reference=self._contenders.reference,
            verifiers={name: repr(made.verifier) for name, made in self.generators.items()},
            numerics={name: made.numerics.mode for name, made in self.generators.items()},
            inexact={name: made.numerics.inexact for name, made in self.generators.items()},
            promises={
                name: _promise(made.verifier, given.decoding.temperature) for name, made in self.generators.items()
            },
            settings=given.decoding.model_dump(mode="json", exclude_unset=True, exclude={"seed"}),
            seed=given.seed,
            repeats=given.repeats,
            prompts=_encoded(chosen, plain, self.settings),
            model=model_facts(self.model) | {"engine": f"decoded with {_engine(plain.weights)}"},
            machine=machine_facts(),
        )

    def generator(self, proposer: Any) -> Generator:
        """Make a generator for another strategy with this session's model, acceptance rule and numerics."""
        return self._contenders.make(proposer)

    def decoder(self, made: Generator, settings: dict[str, Any]) -> Decoder:
        """Return a function that decodes one of the plan's prompts with a seed, chats until their turn ends."""
        return decoder(made, [prompt[2] for prompt in self.plan.prompts], settings, self._ends)

    def close(self) -> None:
        """Close the generators."""
        for made in self.generators.values():
            made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def costs(self) -> Costs:
        """Measure the costs of passes in the strategies' numerics, and of a plain step in fast numerics."""
        names = dict.fromkeys((self.plan.reference, self.plan.baseline))
        with ExitStack() as opened:
            targets = [opened.enter_context(closing(self.generators[name].open_target())) for name in names]
            return measure_costs(targets[0], plain=targets[1] if targets[1:] else None)

    def run(
        self,
        run_file: str | Path | None = None,
        on_run: Callable[[Run], None] | None = None,
        seconds: float = math.inf,
        fewest_prompts: int = 1,
    ) -> Comparison:
        """Measure. Ctrl-C or the failure of a strategy ends the measurement early; the runs so far are compared.

        Args:
            run_file: each run is appended as it ends; runs in the file aren't repeated.
            on_run: called after each run.
            seconds: no run starts after this time, once every strategy has run ``fewest_prompts`` prompts.

        Raises:
            KeyboardInterrupt, SpecdecError: raised before every strategy had run a prompt.
        """
        file = RunFile(Path(run_file), self.plan) if run_file is not None else None
        self.runs = list(file.runs) if file is not None else []
        began, fewest = time.perf_counter(), fewest_prompts * len(self.generators)
        stopped: KeyboardInterrupt | SpecdecError | None = None
        try:
            for run in self._measured():
                self.runs.append(run)
                if file is not None:
                    file.add(run)
                if on_run is not None:
                    on_run(run)
                if time.perf_counter() - began > seconds and len(self.runs) >= fewest:
                    break
        except (KeyboardInterrupt, SpecdecError) as error:
            stopped = error
        finally:
            if file is not None:
                file.close()
        return self._compared(stopped)

    def _measured(self) -> Iterator[Run]:
        decoders = {name: self.decoder(made, self.settings) for name, made in self.generators.items()}
        return measure(self.plan, decoders, {run.key for run in self.runs}, forget=self._forget)

    def _forget(self) -> None:
        """Empty the memory of all strategies but the warm ones."""
        for name, made in self.generators.items():
            if name not in self.plan.warm:
                made.forget()

    def _compared(self, stopped: KeyboardInterrupt | SpecdecError | None) -> Comparison:
        """Compare the runs so far; if there are too few, raise the error that stopped them."""
        try:
            comparison = Comparison(self.plan, self.runs)
        except RequestError as nothing:
            raise stopped or nothing from None
        comparison.failure = stopped if isinstance(stopped, SpecdecError) else None
        examine_differences(comparison, self.generators, self.settings, self._ends)
        return comparison


def _engine(weights: Weights) -> str:
    """Return what runs the model's passes, and how torch has its weights."""
    if not weights.runs_layers:
        return weights.engine
    return f"{'torch' if weights.engine == 'hf' else f'{weights.engine} (torch)'}, weights {weights}"


def open_by_name(
    name: str | os.PathLike[str], tokenizer: Any | None, strategies: Mapping[str, Any], options: ComparisonOptions
) -> tuple[Any, Any]:
    """Load a model and its tokenizer by name, in the form that all strategies support.

    Raises:
        SpecdecError: a strategy is unknown, or the model can't be loaded.
    """
    registry = load_plugins()
    made = [each for each in read_strategies(registry, strategies).values() if isinstance(each, Proposer)]
    check_files(made)
    why = why_torch(options.weights, None, made)
    loaded = next(read_models(registry, options.backend, ModelSource.of(os.fspath(name)), tokenizer, why))
    return loaded.model, loaded.tokenizer


def with_warm(strategies: Mapping[str, Any]) -> dict[str, Generator | Proposer]:
    """Add a second, warm entry for each strategy that learns across requests."""
    read = read_strategies(load_plugins(), strategies)
    return read | {
        f"{name}{WARM}": given
        for name, given in read.items()
        if isinstance(given, Proposer) and given.learns_across_requests
    }


def compare(
    model: Any,
    strategies: Mapping[str, Any],
    prompts: Sequence[EvaluationPrompt | Any] | None = None,
    *,
    tokenizer: Any | None = None,
    run_file: str | Path | None = None,
    **options: Unpack[ComparisonKeywords],
) -> Comparison:
    """Compare strategies: which is faster, by how much, and do they write the same text?

    Every strategy decodes every prompt several times, one at a time, interleaved in random order. Speed-ups are over
    plain decoding in fast numerics. Texts are compared with plain decoding in the strategy's own numerics.

    Args:
        model: as for ``Generator``.
        strategies: by name, a proposer, its string, or a generator made with this model. Plain decoding is added if
            missing, and also in exact numerics if a strategy has those.
        prompts: texts, token ids, chat messages or ``EvaluationPrompt`` objects (default: the built-in prompts).
        tokenizer: as for ``Generator``.
        run_file: each run is appended as it ends; runs in the file aren't repeated.
        options: ``ComparisonOptions``: ``verifier``, ``numerics``, ``weights``, ``backend``, ``repeats`` (3), ``seed``,
            ``warm`` and ``chat``; and settings of ``Generator.generate``, of which ``max_new_tokens`` defaults to 64.

    Raises:
        SpecdecError: something can't be compared (raised before anything is run), or a strategy fails.
    """
    with ComparisonSession(model, strategies, prompts, tokenizer=tokenizer, **options) as session:
        comparison = session.run(run_file)
    if comparison.failure is not None:
        raise comparison.failure
    return comparison


def _encoded(
    chosen: Sequence[EvaluationPrompt], plain: Generator, settings: dict[str, Any]
) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Encode prompts as (category, name, token ids); raises for a prompt that decoding would refuse."""
    if not chosen:
        raise RequestError("there are no prompts to compare on")
    for prompt, refusal in zip(chosen, plain.refusals([prompt.prompt for prompt in chosen], **settings), strict=True):
        if refusal is not None:
            raise RequestError(f"prompt {prompt.name!r} ({prompt.category}): {refusal}") from refusal
    return tuple(
        (prompt.category, prompt.name, tuple(encode(prompt.prompt, plain.tokenizer, plain.vocab_size)))
        for prompt in chosen
    )


def _described(proposer: Proposer) -> str:
    """A proposer's options as text; a model among them is shown by its name."""
    hidden = {name for name, field in type(proposer).model_fields.items() if not field.repr}
    values = {name: getattr(proposer, name) for name in sorted(hidden) if getattr(proposer, name) is not None}
    named = {
        name: value if isinstance(value, str) else getattr(value, "name_or_path", type(value).__name__)
        for name, value in values.items()
    }
    return " ".join([repr(proposer), *(f"{name}={value}" for name, value in named.items())])


def _promise(verifier: Verifier, temperature: float) -> Promise:
    if not verifier.lossless:
        return "nothing"
    return "tokens" if verifier.is_keyed or temperature == 0.0 else "distribution"
