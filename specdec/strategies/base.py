"""The proposer's contract.

There are three classes; a simple strategy defines the first and the last:

1. ``Proposer``: configuration only, a frozen pydantic model (``LookaheadProposer(N=5, W=15, G=15)``). It defines
   ``start`` or, to return an engine of its own, ``bind``.
2. ``Engine``: made by ``bind`` for a generator's model, and again after the model has changed; owns the state that
   requests share, such as weights and caches. The default engine has none.
3. ``Drafter``: one request's state: ``read`` a prompt, ``propose`` a tree, ``receive`` each step's outcome, ``observe``
   that of its own tree, ``retain`` state for later requests, ``stop``.

What these are passed has a file each: ``host.py``, ``request.py``, ``feedback.py``, ``signals.py``.

Laws, checked on every step by the core, which names the proposer in the error:
- Parents precede children; node count and depth stay within the budget; token ids are in the vocabulary; the root is
  the last committed token.
- Same history and seed, same tree: randomness comes from ``request.rng`` alone. A strategy that declares
  ``learns_across_requests`` may also depend on its engine's other requests and measurements; the text is the same.
- A wrong proposal can make decoding slower, never wrong.
- A tree without draws has chosen candidates only (q is one-hot).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from specdec.configuration import Configuration
from specdec.errors import PluginError
from specdec.record import Outcome, StepRecord
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request, Retained
from specdec.strategies.signals import Answers, Signal
from specdec.tree import Budget, DraftTree

Tunable = Mapping[str, Sequence[Any]]
# Whether a pass of a model pays, by the probability of each request that its text follows the path so far.
Pays = Callable[[Sequence[float]], bool]


class Drafter(ABC):
    """One request's drafting state; ``notes`` are reported with its result."""

    notes: tuple[str, ...] = ()

    def __init__(self, request: Request) -> None:
        self.request = request

    def read(  # noqa: B027 - optional
        self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]
    ) -> None:
        """Called after each pass that has prefilled part of the prompt, up to its first ``num_tokens`` tokens.

        Whole chunks of a long prompt come before the first draft, and other requests' steps run between them. A
        drafter with a model of its own prefills the same tokens now, since no request advances while it proposes. The
        rest of the prompt shares a pass with the first draft and is reported after it, before ``receive``.

        Args:
            budget: of a tree proposed now.
            signals: the values of each declared signal about ``Nodes.PROMPT``, by position, of this part only. Read
                them now: values that are read later keep the pass's logits in memory.
        """

    @abstractmethod
    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree below ``request.root``, within the budget."""

    def receive(self, feedback: Feedback) -> None:  # noqa: B027 - optional
        """Called after every step, including the last, with the verified tree itself.

        In a merge it is called even if the tree has no node of this drafter. A drafter that needs signals of every
        step, such as hidden states at the accepted path, reads them here.
        """

    def observe(self, feedback: Feedback) -> None:  # noqa: B027 - optional
        """Called after ``receive`` with the outcome of the drafter's last tree, in that tree's node numbers.

        Not called after the last step, nor in a merge for a ``Source``, whose candidates' acceptance rates the merge
        updates.
        """

    def retain(self, start: int, stop: int) -> Retained | None:
        """Return the state about positions ``start`` to ``stop`` for later requests; None, the default, retains none.

        Called for strategies that declare ``Nodes.PROMPT`` signals when the text's keys and values are cached: after
        the prompt, and at the end. The state at the last position may depend on the token after it, since positions are
        reused only in texts that have this token too. All positions were reported by ``read`` or ``receive`` or are in
        ``Request.retained``, except in a merge whose other parts retained state when this drafter retained none.
        """
        return None

    def stop(self) -> None:  # noqa: B027 - optional
        """Release the request's resources; called once, however the request ends."""


class Engine:
    """The state that a proposer's requests share; ``propose_many`` runs a draft model once for the whole batch.

    ``Engine(start)`` is enough for a strategy whose shared state ``start`` has in its closure. A subclass overrides
    ``start`` in place of passing it. ``notes`` are reported with the result of each request, before those of its
    drafter.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, start: Callable[[Request], Drafter]) -> None:
        self._start = start

    def start(self, request: Request) -> Drafter:
        """Return a drafter for a request."""
        return self._start(request)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """Return a tree for each drafter, or the exception of a drafter that failed."""
        proposals = list[DraftTree | Exception]()
        for drafter, budget in zip(drafters, budgets, strict=True):
            try:
                proposals.append(drafter.propose(budget))
            except Exception as error:  # third-party code, whose errors end their own request only
                proposals.append(error)
        return proposals

    def wants(self) -> frozenset[Signal]:
        """Return signals in addition to the proposer's: those that depend on the target, such as layers by number."""
        return frozenset()

    def prepare_drafts(self, drafters: Sequence[Drafter], budgets: Sequence[Budget], pays: Pays) -> None:
        """Called by merges before the trees of a step grow, with the drafters of all requests in the step.

        Sources whose candidates take passes of a model compute them here, each pass for all requests at once. Their
        candidates are those of the passes that ran.

        Args:
            pays: call it before each pass with the probability, for each drafter, that the text follows the path that
                the pass continues: 1 before the first pass, 0 if the pass drafts nothing for the request. Return if it
                returns False: the pass would take more time than its candidates save.
        """

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Called after each step that included the engine's requests, with these requests' outcomes.

        The time in ``record`` is that of all requests of the step, including those of other strategies.
        """

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        """Do work that improves later drafts, while no request decodes.

        Called by ``Generator.prepare`` without a time limit, and repeatedly by idle servers.

        Args:
            on_progress: called before each part, with the number of finished parts and of all parts.
            seconds: stop after the first part that ends later than this.

        Returns:
            True once no work is left.
        """
        return True

    def forget(self) -> None:
        """Drop what was learnt from earlier texts, but not about the machine; called while nothing decodes."""

    def close(self) -> None:
        """Release the engine's resources."""


def started(engine: Engine, request: Request) -> Drafter:
    """Return an engine's drafter for a request; raise TypeError if what it returns isn't a drafter."""
    drafter: object = engine.start(request)
    if not isinstance(drafter, Drafter):
        raise TypeError(f"start returned {drafter!r}, which isn't a Drafter")
    return drafter


class Proposer(Configuration, ABC):
    """A strategy's configuration.

    Attributes:
        tunable: the options that ``specdec tune`` varies, each with its values in ascending order.
        learns_across_requests: True if a repeated request may get other trees. Under rules that read q its text may
            then differ as well, but not the distribution from which the text is drawn.
    """

    tunable: ClassVar[Tunable] = {}
    learns_across_requests: ClassVar[bool] = False

    @property
    def reads_layers(self) -> bool:
        """True if ``bind`` uses the layers or weights of ``Host.model``, so that torch must run the model."""
        return False

    @property
    def reads_reference(self) -> bool:
        """True if the drafters read ``Request.reference``; requests with a reference are refused otherwise."""
        return False

    def wants(self) -> frozenset[Signal]:
        """Return the signals that the drafters need, as pairs of nodes and quantity.

        ``Drafter.read`` gets those about ``Nodes.PROMPT``; ``receive`` and ``observe`` get all others.
        """
        return frozenset()

    def check_files(self) -> None:
        """Check the files that options name; called before a model is loaded by its name, which takes seconds.

        Raises:
            SpecdecError: if ``bind`` would refuse the files for any model, with the same message.
        """

    def bind(self, host: Host) -> Engine:
        """Return the engine for a generator's model; called again once the model has changed or the engine was closed.

        Define ``bind`` if requests share state, or if the strategy needs the tokenizer, the model or its costs, which
        ``host`` has. The default engine calls ``start`` for each request.
        """
        if type(self).start is Proposer.start:
            raise PluginError(f"{type(self).__name__} defines neither start(request) nor bind(host): define one")
        return Engine(self.start)

    def start(self, request: Request) -> Drafter:
        """Return a drafter for one request; not needed by a strategy that defines ``bind``."""
        raise PluginError(f"{type(self).__name__} starts requests by its engine: call bind(host).start(request)")


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A strategy that was prepared for one model; ``auto`` drafts with it.

    Attributes:
        name: in notes on what wasn't used, as in "drafted without a trained head".
        description: in notes on what was, as in "drafted with the head trained for this model on 2026-11-27: FOLDER".
    """

    proposer: Proposer
    name: str
    description: str


class BatchDrafter(Drafter):
    """A drafter whose engine drafts for all its requests together, in its own ``propose_many``."""

    def __init__(self, request: Request, engine: Engine) -> None:
        super().__init__(request)
        self._write = engine.propose_many

    def propose(self, budget: Budget) -> DraftTree:
        proposal = self._write([self], [budget])[0]
        if isinstance(proposal, Exception):
            raise proposal
        return proposal
