"""The proposers that are bound to a target, each with its engine and signals."""

import math
import warnings
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from itertools import accumulate
from typing import Any

from specdec.decoding.strategy import Strategy, layers_of
from specdec.errors import PluginError, blaming, close_all, failure
from specdec.strategies.base import Engine, Proposer
from specdec.strategies.host import Host
from specdec.strategies.signals import Hidden, Nodes, Signal, TopK, TopLogits, What
from specdec.strategies.size import size_of
from specdec.target import Target
from specdec.verifiers.base import Verifier

_MAX_STRATEGIES = 8  # bound in addition to the generator's own
_MAX_WITH_MODELS = 2  # of those, with draft models


class Strategies:
    """Proposers bound to one target, each when it is first used; the last few that were used stay bound.

    Args:
        own: the generator's own proposer.

    Raises:
        ModelError, PluginError: if the generator's own proposer can't be bound.
    """

    def __init__(self, host: Host, own: Proposer) -> None:
        self._host = host
        self._bound: list[tuple[Proposer, Host, Strategy]] = []
        self.own = self.of(own)

    def of(self, proposer: Proposer, verifier: Verifier | None = None) -> Strategy:
        """Return the strategy of a proposer object; an equal proposer has another, since each has its own state.

        Args:
            verifier: verifies the strategy's drafts; the generator's by default.
        """
        host = self._host
        if verifier is not None:
            host = replace(host, reads_q=verifier.reads_q, is_keyed=verifier.is_keyed)
        for place, (known, its_host, strategy) in enumerate(self._bound):
            if known is proposer and (its_host.reads_q, its_host.is_keyed) == (host.reads_q, host.is_keyed):
                if place > 0:  # the generator's own stays the first
                    self._bound.append(self._bound.pop(place))
                return strategy
        strategy = _bound_to(host, proposer)
        try:
            host.expect_hidden(strategy.tree_layers | strategy.prompt_layers)
        except BaseException:
            strategy.close()
            raise
        self._bound.append((proposer, host, strategy))
        return strategy

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        """Prepare one engine after another; see ``Engine.prepare``."""
        return all(strategy.engine.prepare(on_progress, seconds) for *_, strategy in self._bound)

    def forget(self) -> None:
        """Let every strategy forget the texts of earlier requests; called while no request decodes."""
        for *_, strategy in self._bound:
            strategy.engine.forget()

    @property
    def bound(self) -> frozenset[Strategy]:
        """Return all strategies that are bound now."""
        return frozenset(strategy for *_, strategy in self._bound)

    def trim(self, in_use: Set[Strategy] = frozenset(), max_size: float = math.inf) -> None:
        """Close all strategies except the generator's own, those ``in_use``, and the last few that were used.

        Args:
            max_size: of these few together, by ``size_of``.
        """
        others = [(proposer, strategy) for proposer, _, strategy in self._bound[1:] if strategy not in in_use]
        sizes = accumulate(size_of(proposer) for proposer, _ in others[: -1 - _MAX_STRATEGIES : -1])
        num_stale = len(others) - sum(size <= max_size for size in sizes)
        with_models = [strategy for _, strategy in others if strategy.targets]
        stale = {*(strategy for _, strategy in others[:num_stale]), *with_models[:-_MAX_WITH_MODELS]}
        self._bound = [bound for bound in self._bound if bound[-1] not in stale]
        for strategy in stale:
            try:
                strategy.close()
            except Exception as error:  # a third party's code; the results stay valid
                warnings.warn(str(failure(f"closing proposer {strategy.name}", error)), stacklevel=2)

    def close(self) -> None:
        """Close all strategies."""
        bound, self._bound = self._bound, []
        close_all(strategy for *_, strategy in bound)


def check_files(proposers: Iterable[Proposer]) -> None:
    """Check the files that options of proposers name, before a model is loaded.

    Raises:
        SpecdecError: ``bind`` would refuse a file.
        PluginError: a check failed in another way.
    """
    for proposer in proposers:
        with blaming(f"checking the files of proposer {type(proposer).__name__}"):
            proposer.check_files()


def _bound_to(host: Host, proposer: Proposer) -> Strategy:
    """Bind a proposer, noting the draft models that it opens."""
    opened: list[Target] = []

    def open_target(model: Any) -> Target:
        target = host.open(model)
        opened.append(target)
        return target

    try:
        return Strategy(*_parts(replace(host, open=open_target), proposer), opened, proposer.reads_reference)
    except BaseException:  # Ctrl-C too
        for target in reversed(opened):
            target.close()
        raise


def _parts(host: Host, proposer: Proposer) -> tuple[str, Engine, frozenset[Signal]]:
    """Return a proposer's name, engine and signals."""
    name = type(proposer).__name__
    with blaming(f"binding proposer {name}"):
        engine, wants = proposer.bind(host), frozenset(proposer.wants())
        if isinstance(engine, Engine):
            wants |= engine.wants()
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
