"""The proposer's contract.

There are three classes; a simple strategy defines the first and the last:

1. ``Proposer``: configuration only, a frozen pydantic model (``LookaheadProposer(N=5, W=15, G=15)``). It defines
   ``start`` or, to return an engine of its own, ``bind``.
2. ``Engine``: made by ``bind`` for a generator's model, and again after the model has changed; owns the state that
   requests share, such as weights and caches. The default engine has none.
3. ``Drafter``: one request's state: ``read`` a prompt, ``propose`` a tree, ``receive`` each step's outcome, ``observe``
   that of its own tree, ``retain`` state for later requests, ``stop``.

Laws, checked on every step by the core, which names the proposer in the error:
- Parents precede children; node count and depth stay within the budget; token ids are in the vocabulary; the root is
  the last committed token.
- Same history and seed, same tree: randomness comes from ``request.rng`` alone. A strategy that declares
  ``learns_across_requests`` may also depend on its engine's other requests and measurements; the text is the same.
- A wrong proposal can make decoding slower, never wrong.
- A tree without draws has chosen candidates only (q is one-hot).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from specdec.constraints.path_state import PathState
from specdec.costs import Costs
from specdec.errors import PluginError
from specdec.heads.base import HeadRunner
from specdec.heads.pair_head import PairHead
from specdec.heads.torch_runner import TorchRunner
from specdec.models.token_weights import embeddings_of, output_rows_of
from specdec.record import Outcome, StepRecord
from specdec.strategies.signals import Answers, Signal, What
from specdec.target import Target
from specdec.tree import Budget, DraftTree

Tunable = Mapping[str, Sequence[Any]]
# Whether a pass of a model pays, by the probability of each request that its text follows the path so far.
Pays = Callable[[Sequence[float]], bool]


@dataclass(frozen=True, slots=True)
class Feedback:
    """The outcome of a proposal.

    Attributes:
        tree: the proposed tree.
        path: the accepted nodes, root first.
        tokens: the committed tokens, cut at an end of text, a stop string or the maximum length.
        signals: the values of each declared signal except those about ``Nodes.PROMPT``, by node: a token, or the value
            that ``TopK``, ``TopLogits`` or ``Hidden`` describes. Nodes without a possible token are left out, and so
            are nodes that weren't forwarded, such as other branches if the model supports chains only.
    """

    tree: DraftTree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    signals: Mapping[Signal, Answers] = field(default_factory=dict)

    @property
    def predictions(self) -> dict[int, int]:
        """The next token at each node of the ``ARGMAX`` and ``DRAW`` signals; the draw if a node has both."""
        tokens = [signal for signal in self.signals if isinstance(signal[1], What)]
        tokens.sort(key=lambda signal: signal[1] is What.DRAW)
        return {node: token for signal in tokens for node, token in self.signals[signal].items()}

    def about(self, tree: DraftTree) -> "Feedback":
        """Return this feedback for a tree that the verified tree was made from, in that tree's node numbers.

        Raises:
            ValueError: if the verified tree wasn't made from it.
        """
        if tree is self.tree:
            return self
        place = self.tree.place_of(tree)
        if place is None:
            raise ValueError("the verified tree wasn't made from this tree")
        node_at = {there: node for node, there in place.items()}
        path = tuple(node_at[there] for there in self.path if there in node_at)
        return Feedback(tree, path, self.tokens, {signal: values.at(place) for signal, values in self.signals.items()})


@dataclass(frozen=True, slots=True)
class Retained:
    """A drafter's state about part of a text, cached with the keys and values of that part.

    Attributes:
        state: the strategy's own; it isn't modified.
        num_bytes: its size, counted against the memory for cached keys and values.
    """

    state: Any
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Host:
    """The target's model, tokenizer and costs, passed to a proposer's ``bind``.

    Attributes:
        model, tokenizer: the target's; the tokenizer may be None.
        vocab_size: entries of the target's logits.
        reads_q: True if the acceptance rule reads the distributions from which candidates are drawn.
        is_keyed: True if the text doesn't depend on the drafts.
        takes_trees: True if the model supports branching trees; otherwise drafts are cut to their longest chain.
        head_runner: returns a runner of a trained head's passes, by the target's engine if it can: called with the
            head and the number of tokens that a pass returns after each pair, or None for the whole draft vocabulary.
        num_layers: the number of layers that ``Hidden`` may refer to, besides the embeddings; None if unknown.
        load: loads a model and its tokenizer from a folder or hub name, as the target is loaded; called with the name
            and a tokenizer or None. Raises ModelError.
        open: returns a target for another model, with a cache of its own; it is closed after the engine. Raises
            ModelError.
        costs: returns the costs of the target's passes here, by number of nodes. The first call measures them, in about
            a second; call it while binding.
        expect_hidden: prepares the target to report the hidden states of some layers, as it does after binding for all
            layers that the strategy wants; call it while binding to find out whether it can. Raises ModelError.
        idle_target: returns the target if no request decodes, to run passes of one's own; otherwise None.
    """

    model: Any
    tokenizer: Any
    vocab_size: int
    reads_q: bool
    is_keyed: bool
    takes_trees: bool
    load: Callable[[str, Any], tuple[Any, Any]]
    open: Callable[[Any], Target]
    costs: Callable[[], Costs]
    idle_target: Callable[[], Target | None] = lambda: None
    head_runner: Callable[[PairHead, int | None], HeadRunner] = TorchRunner
    num_layers: int | None = None
    expect_hidden: Callable[[Collection[int]], object] = lambda _: None

    @classmethod
    def of_tokens(
        cls,
        vocab_size: int,
        tokenizer: Any,
        refuse: Callable[..., Any],
        costs: Callable[[], Costs] | None = None,
    ) -> "Host":
        """Return the host of another engine's loop, which passes tokens alone, keyed texts, and takes chains.

        Args:
            refuse: raises the error for a proposer that loads or opens a model, or reads costs where ``costs`` is None.
        """
        return cls(
            model=None,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            reads_q=False,
            is_keyed=True,
            takes_trees=False,
            load=refuse,
            open=refuse,
            costs=costs or refuse,
        )

    def embeddings(self) -> torch.Tensor:
        """Return the target's input embeddings, ``(vocab, hidden)``, as stored; read-only.

        If another engine than torch runs the model, they are mapped into memory from its folder's files.

        Raises:
            ModelError: if there are none, or they are quantised.
        """
        return embeddings_of(self.model)

    def output_rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the rows of the target's output matrix for some tokens, ``(tokens, hidden)``; see ``embeddings``."""
        return output_rows_of(self.model, ids)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its drafter sees it: the text so far, settings and constraint; passed to ``start``.

    Attributes:
        tokens: a live view of prompt and committed tokens; the last one is the root of the next tree.
        warp: applies the request's settings and constraint to raw logits after some draft tokens: (drafted, logits)
            -> distribution, both ``(vocab,)``. At temperature 0 the distribution is that of temperature 1.
        noise: returns the noise, ``(vocab,)``, that the acceptance rule adds to the log-probabilities at an absolute
            position before it takes the argmax. None at temperature 0, and under rules where a drafter that knew the
            noise would bias the text.
        constraint: returns the constraint's state after the committed tokens; None if the text is free.
        num_reused: the number of positions at the start of the prompt whose keys and values were cached before the
            request. They aren't prefilled again, so ``Drafter.read`` begins after them.
        retained: the results of ``Drafter.retain`` for an earlier request of the same strategy and model, in the order
            of the text from position 0. The two texts agree in at least their first ``num_reused + 1`` tokens; drop
            state about positions from ``num_reused`` on. Empty if nothing was retained.
    """

    tokens: Sequence[int]
    prompt_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    temperature: float
    rng: np.random.Generator
    warp: Callable[[Sequence[int], torch.Tensor], torch.Tensor] = lambda _, logits: softmax(logits)
    noise: Callable[[int], torch.Tensor] | None = None
    constraint: Callable[[], PathState | None] = lambda: None
    num_reused: int = 0
    retained: tuple[Retained, ...] = ()

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    def until_eos(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens up to the first end-of-text id, inclusive, since no token follows it."""
        for index, token in enumerate(tokens):
            if token in self.eos_token_ids:
                return tokens[: index + 1]
        return tokens

    def draw(self, weights: torch.Tensor) -> int:
        """Draw a token from weights, ``(vocab,)``, which aren't all zero and need not sum to one."""
        cumulative = weights.double().cumsum(0)
        place = self.rng.random() * float(cumulative[-1])
        return int(torch.searchsorted(cumulative, place, right=True).clamp_max(int(weights.nonzero().max())))

    def random_tokens(self, count: int) -> list[int]:
        """Draw tokens of the history, with replacement; end-of-text ids are replaced by the root."""
        drawn = [self.tokens[index] for index in self.rng.integers(len(self.tokens), size=count)] if count else []
        return [self.root if token in self.eos_token_ids else token for token in drawn]


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the distribution of logits, in float32 or better."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


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

        Not called after the last step. In a merge, only if all probe nodes of the tree were verified.
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

    ``notes`` are reported with the result of each request, before those of its drafter.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, start: Callable[[Request], Drafter]) -> None:
        self._start = start

    def start(self, request: Request) -> Drafter:
        """Return a drafter for a request."""
        return self._start(request)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """Return a tree for each drafter, or the exception of a drafter that failed."""
        return [_attempt(drafter, budget) for drafter, budget in zip(drafters, budgets, strict=True)]

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

    def rest(self) -> int:
        """Return for how many of the next steps nothing would be drafted, after a step without drafts.

        A loop whose own calls cost time may leave out this many calls of ``propose_many`` and ``learn``, and then has
        to: they count as made.
        """
        return 0

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


def _attempt(drafter: Drafter, budget: Budget) -> DraftTree | Exception:
    try:
        return drafter.propose(budget)
    except Exception as error:  # third-party code, whose errors end their own request only
        return error


class Proposer(BaseModel, ABC):
    """A strategy's configuration.

    Attributes:
        tunable: the options that ``specdec tune`` varies, each with its values in ascending order.
        learns_across_requests: True if a repeated request may get other trees. Under rules that read q its text may
            then differ as well, but not the distribution from which the text is drawn.
    """

    tunable: ClassVar[Tunable] = {}
    learns_across_requests: ClassVar[bool] = False

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def reads_layers(self) -> bool:
        """True if ``bind`` uses the layers or weights of ``Host.model``, so that torch must run the model."""
        return False

    def wants(self) -> frozenset[Signal]:
        """Return the signals that ``observe`` needs, as pairs of nodes and quantity."""
        return frozenset()

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
