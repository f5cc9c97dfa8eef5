"""A generator's parts, made for a model in its present state."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specdec.backends.base import Backend
from specdec.decoding.contexts import Contexts
from specdec.decoding.plan import Strategy, layers_of
from specdec.errors import ModelError, PluginError, SpecdecError, failure
from specdec.layout import Compiler
from specdec.masks.dense import DenseCompiler
from specdec.models.fingerprint import Fingerprint, fingerprint_of
from specdec.models.loading import check_tokenizer, load_pretrained
from specdec.models.state import state_of
from specdec.numerics import Driven, Mode, drive
from specdec.plugins.registry import Registry
from specdec.requests.builder import Intake
from specdec.runtime.engines import backend_for
from specdec.strategies.base import Engine, Hidden, Host, Nodes, Proposer, Signal, TopK, TopLogits, What
from specdec.target import Target
from specdec.verifiers.base import Verifier
from specdec.weights.laying_out import Weights, stock_or_refuse
from specdec.weights.lease import Holding

_MOST_STRATEGIES = 8  # kept bound beside a generator's own
_MOST_WITH_MODELS = 2  # of those, that have models of their own


@dataclass(frozen=True, slots=True)
class Choice:
    """The plug-ins and numerics that a generator's owner asked for; ``compiler`` of None leaves it to the numerics."""

    proposer: Proposer
    verifier: Verifier
    numerics: Mode
    compiler: Compiler | None
    backend: str
    weights: str


class Strategies:
    """Proposers bound to one target: each when it is first asked for, and the last ones kept.

    Raises:
        ModelError, PluginError: when the generator's own proposer can't be bound.
    """

    def __init__(self, host: Host, own: Proposer) -> None:
        self._host = host
        self._bound: list[tuple[Proposer, Host, Strategy]] = []
        self.own_proposer, self.own = own, self.of(own)

    def of(self, proposer: Proposer, verifier: Verifier | None = None) -> Strategy:
        """The strategy that a proposer makes; an equal one makes its own, since what it holds may change.

        Args:
            verifier: the rule that decides about its drafts; by default the generator's.
        """
        host = self._host
        if verifier is not None:
            host = replace(host, reads_q=verifier.reads_q, is_keyed=verifier.is_keyed)
        for known, told, strategy in self._bound:
            if known is proposer and (told.reads_q, told.is_keyed) == (host.reads_q, host.is_keyed):
                return strategy
        strategy = _bound_to(host, proposer)
        self._bound.append((proposer, host, strategy))
        return strategy

    def forget(self) -> None:
        """Have every strategy forget the texts of earlier requests; nothing may be decoding."""
        for *_, strategy in self._bound:
            strategy.engine.forget()

    def trim(self, in_use: Set[Strategy] = frozenset()) -> None:
        """Close all but the generator's own and the last few; those ``in_use``, by requests, stay as well."""
        others = [strategy for *_, strategy in self._bound[1:] if strategy not in in_use]
        with_models = [strategy for strategy in others if strategy.targets]
        stale = {*others[:-_MOST_STRATEGIES], *with_models[:-_MOST_WITH_MODELS]}
        self._bound = [bound for bound in self._bound if bound[-1] not in stale]
        for strategy in stale:
            try:
                strategy.close()
            except Exception as error:  # a third party's code, which takes no results away
                warnings.warn(str(failure(f"closing proposer {strategy.name}", error)), stacklevel=2)

    def close(self) -> None:
        """Release what the strategies hold; none is bound any more."""
        bound, self._bound = self._bound, []
        _close(strategy for *_, strategy in bound)


def _close(strategies: Iterable[Strategy]) -> None:
    """Close all of them, whatever one raises."""
    with ExitStack() as closing:
        for strategy in strategies:
            closing.callback(strategy.close)


@dataclass(frozen=True, slots=True)
class Bound:
    """The parts made for a model, and the model's state at that time.

    ``fallback`` decides about drafts that a rule which reads q can't rely on. ``copied`` is the fingerprint of the
    model that the backend has a copy of, None where it runs the model itself.
    """

    model: Any
    state: Hashable
    copied: Fingerprint | None
    weights: Weights
    load: Callable[[Compiler], Backend]
    driven: Driven
    strategies: Strategies
    fallback: Verifier
    intake: Intake
    first: int  # a token that most others may follow
    contexts: Contexts

    @property
    def target(self) -> Target:
        """The target that all requests share."""
        return self.driven.target

    def is_current(self) -> bool:
        """True while the parts fit the model, and a backend's copy of its weights is what the model has."""
        if state_of(self.model) != self.state:
            return False
        return self.copied is None or fingerprint_of(self.model) == self.copied

    def close(self) -> None:
        """Close the strategies, and then the target."""
        with ExitStack() as closing:
            closing.callback(self.target.close)
            closing.callback(self.strategies.close)
            closing.callback(self.contexts.close)


def bind(model: Any, tokenizer: Any | None, choice: Choice, registry: Registry, holding: Holding) -> Bound:
    """Lay out the model's weights, load a backend for it, and bind the proposer to both.

    Raises:
        ModelError: when the model or tokenizer can't be driven, with the reason.
        PluginError: for a backend that is unknown, or a proposer that fails.
    """
    chosen = backend_for(registry, choice.backend, model)

    def load(compiler: Compiler) -> Backend:
        return chosen.load(model, compiler)

    def open_target(other: Any) -> Target:
        compiler = DenseCompiler()  # a draft's last bits are nobody's concern
        drafting = backend_for(registry, "auto", other)
        if not drafting.cls.runs_layers:
            return Target(drafting.load(other, compiler), compiler)
        give_back = holding.lay_out_draft(other)
        try:
            return Target(drafting.load(other, compiler), compiler, give_back)
        except BaseException:
            give_back()
            raise

    weights, driven = _drive(model, choice, holding, load, chosen.cls.runs_layers, chosen.cls.__name__)
    with ExitStack() as failing:
        failing.callback(driven.target.close)
        state, shapes = state_of(model), driven.target.shapes
        copied = fingerprint_of(model) if chosen.cls.copies_weights else None
        check_tokenizer(tokenizer, shapes.vocab_size)
        first = _mild_beginning(tokenizer)
        host = Host(
            model=model,
            tokenizer=tokenizer,
            vocab_size=shapes.vocab_size,
            reads_q=choice.verifier.reads_q,
            is_keyed=choice.verifier.is_keyed,
            takes_trees=shapes.takes_trees,
            load=partial(load_pretrained, device=str(shapes.device)),
            open=open_target,
            costs=driven.costs,
            successors=partial(driven.successors, first),
            num_layers=shapes.num_layers,
        )
        fallback, intake = registry.make("verifiers", "match"), Intake(model, tokenizer, shapes, choice.verifier)
        strategies = Strategies(host, choice.proposer)
        failing.pop_all()
    contexts = Contexts(driven.target, fingerprint=partial(fingerprint_of, model))
    return Bound(model, state, copied, weights, load, driven, strategies, fallback, intake, first, contexts)


def _mild_beginning(tokenizer: Any | None) -> int:
    """A token that most others may follow: the comma; id 0 where there is no tokenizer to ask."""
    if tokenizer is None:
        return 0
    try:
        return int(tokenizer.encode(",", add_special_tokens=False)[-1])
    except Exception:  # a tokenizer of the caller's own
        return 0


def _drive(
    model: Any, choice: Choice, holding: Holding, load: Callable[[Compiler], Backend], runs_layers: bool, name: str
) -> tuple[Weights, Driven]:
    """Drive the model with its weights laid out; by the next kernel, or stock ones, where the first isn't exact."""
    if not runs_layers:
        weights = stock_or_refuse(choice.weights, 0, f"{name} runs no layers of torch")
        return weights, drive(load, model, choice.numerics, choice.compiler)
    failed: dict[str, str] = {}
    while True:
        try:
            weights = holding.lay_out(model, failed, "; ".join(f"not by {each}: {why}" for each, why in failed.items()))
        except ModelError:  # "packed" was asked for, and no kernel is left
            if not failed:
                raise
            break
        driven, refusal = None, None
        try:
            driven = drive(load, model, choice.numerics, choice.compiler)
            why = driven.why_not_exact
        except ModelError as error:
            refusal, why = error, str(error)
        is_last = not weights.kernel or choice.weights not in {"auto", "packed"} or holding.is_shared(model)
        if driven is not None:
            if not why or (is_last and not failed):
                return weights, driven
            driven.target.close()
        if is_last:
            break
        failed[weights.kernel] = why
    if refusal is not None:
        raise refusal
    # Exact numerics can't be had in any way: the fastest one serves.
    return holding.lay_out(model), drive(load, model, choice.numerics, choice.compiler)


def _bound_to(host: Host, proposer: Proposer) -> Strategy:
    """Return a proposer's engine for the target, with the signals that it wants and the models that it has opened."""
    opened: list[Target] = []

    def open_target(model: Any) -> Target:
        target = host.open(model)
        opened.append(target)
        return target

    try:
        return Strategy(*_parts(replace(host, open=open_target), proposer), opened)
    except BaseException:  # Ctrl-C too
        for target in reversed(opened):
            target.close()
        raise


def _parts(host: Host, proposer: Proposer) -> tuple[str, Engine, frozenset[Signal]]:
    """Return a proposer's name, engine and signals."""
    name = type(proposer).__name__
    try:
        engine, wants = proposer.bind(host), frozenset(proposer.wants())
    except SpecdecError:
        raise
    except Exception as error:  # a third party's code
        raise failure(f"binding proposer {name}", error) from error
    if not isinstance(engine, Engine):
        raise PluginError(f"proposer {name}: bind returned {engine!r}, which is not an Engine")
    most = host.num_layers
    for wanted in wants:
        if not _is_signal(wanted):
            pair = "a pair such as (Nodes.PATH, What.ARGMAX) or (Nodes.ALL, TopK(8))"
            raise PluginError(f"proposer {name}: wants returned {wanted!r}, which is not {pair}")
        if most is not None and not layers_of([wanted]) <= {*range(-most - 1, most + 1)}:
            has = f"layers 0 to {most}, or {-most - 1} to -1"
            raise PluginError(f"proposer {name} wants {wanted[1]!r}; the model has {has}")
    return name, engine, wants


def _is_signal(wanted: object) -> bool:
    match wanted:
        case (Nodes(), What()):
            return True
        case (Nodes(), TopK(k) | TopLogits(k)):
            return isinstance(k, int) and k > 0
        case (Nodes(), Hidden(layers)):
            return isinstance(layers, tuple) and bool(layers) and all(isinstance(layer, int) for layer in layers)
        case _:
            return False
