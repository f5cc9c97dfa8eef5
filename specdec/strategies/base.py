"""The proposer's contract.

Three stages, of which a simple strategy writes the first and the last:

1. ``Proposer``: configuration only, a frozen pydantic model (``LookaheadProposer(N=5, W=15, G=15)``). It defines
   ``start`` or, to make an engine of its own, ``bind``.
2. ``Engine``: made by ``bind`` for a generator's model, and anew once that has changed; owns what requests share
   (weights, caches). The default has nothing.
3. ``Drafter``: one request's state: ``read`` a prompt, ``propose`` a tree, ``observe`` what became of it, ``stop``.

Laws, checked on every step by the core, which names the proposer in the error:
- Parents precede children; node count and depth stay within the budget; token ids are in the vocabulary; the root is
  the last committed token.
- Same history and seed, same tree: randomness comes from ``request.rng`` alone. A strategy that declares
  ``learns_across_requests`` may also go by what its engine saw of other requests, or measured; the text stays the same.
- A wrong proposal can make decoding slower, never wrong.
- A tree without draws has chosen candidates only (q is one-hot).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from specdec.costs import Costs
from specdec.errors import PluginError
from specdec.record import Outcome, StepRecord
from specdec.target import Target
from specdec.tree import Budget, DraftTree

Tunable = Mapping[str, Sequence[Any]]


class Nodes(Enum):
    """The nodes whose signals a proposer wants."""

    LAST = "last"  # the last accepted node, whose draw is the bonus token
    PATH = "path"  # the accepted path, root included
    CANDIDATE = "candidate"
    PROBE = "probe"
    ALL = "all"
    PROMPT = "prompt"  # the prompt's tokens but its last, which is the first root; told once, by position


class What(Enum):
    """A signal without a size that a proposer wants."""

    ARGMAX = "argmax"  # the greedy prediction from the raw logits
    DRAW = "draw"  # what the target would emit there: processors, temperature and keyed noise included


@dataclass(frozen=True, slots=True)
class TopK:
    """The top-k next tokens by raw logits, most likely first, each with its probability."""

    k: int


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The top-k raw logits, highest first, as pairs of token and logit; cheaper than probabilities."""

    k: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden states of some layers, ``(layers, size)``, on the model's device.

    Layers are numbered as by transformers: 0 for the embeddings, -1 for the last layer after its norm.
    """

    layers: tuple[int, ...] = (-1,)


Signal = tuple[Nodes, What | TopK | TopLogits | Hidden]


class Answers(Mapping[int, Any]):
    """The answers to one signal, by node, found when they are first asked for: they stay on the device until then."""

    def __init__(self, find: Callable[[], Mapping[int, Any]]) -> None:
        self._find = find
        self._found: Mapping[int, Any] | None = None

    def _answers(self) -> Mapping[int, Any]:
        if self._found is None:
            self._found = self._find()
        return self._found

    def __getitem__(self, node: int) -> Any:
        return self._answers()[node]

    def __iter__(self) -> Iterator[int]:
        return iter(self._answers())

    def __len__(self) -> int:
        return len(self._answers())

    def __repr__(self) -> str:
        return "Answers(not asked for)" if self._found is None else f"Answers({dict(self._found)})"

    def at(self, place: Mapping[int, int]) -> "Answers":
        """The same answers by the numbers of other nodes, each of which stands for one of these."""
        return Answers(lambda: {node: self[there] for node, there in place.items() if there in self})


@dataclass(frozen=True, slots=True)
class Feedback:
    """The outcome of a proposal.

    ``tree`` is the proposed tree. ``path`` holds the accepted nodes, root first. ``tokens`` are the committed ones, cut
    at an end of text, a stop string or the length. ``signals`` has the answers to each declared pair: by node a token,
    or what ``TopK`` and ``Hidden`` say; by position for ``Nodes.PROMPT``. A node where no token is possible, or that
    wasn't forwarded (of a tree with branches, where the model takes chains only), is left out.
    """

    tree: DraftTree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    signals: Mapping[Signal, Mapping[int, Any]] = field(default_factory=dict)

    @property
    def predictions(self) -> dict[int, int]:
        """The next token at each declared node: all arguments of the maximum and draws, of two the draw."""
        told = [signal for signal in self.signals if isinstance(signal[1], What) and signal[0] is not Nodes.PROMPT]
        told.sort(key=lambda signal: signal[1] is What.DRAW)
        return {node: token for signal in told for node, token in self.signals[signal].items()}

    def about(self, tree: DraftTree) -> "Feedback":
        """Return the same for a tree that the verified one was made of, in that tree's own numbering.

        Raises:
            ValueError: for a tree that has no part in the verified one.
        """
        if tree is self.tree:
            return self
        place = self.tree.place_of(tree)
        if place is None:
            raise ValueError("feedback was asked about a tree that the verified one wasn't made of")
        node_at = {there: node for node, there in place.items()}
        path = tuple(node_at[there] for there in self.path if there in node_at)
        signals = {
            signal: told if signal[0] is Nodes.PROMPT else _at(told, place) for signal, told in self.signals.items()
        }
        return Feedback(tree, path, self.tokens, signals)


def _at(told: Mapping[int, Any], place: Mapping[int, int]) -> Mapping[int, Any]:
    return Answers(lambda: told).at(place)


@dataclass(frozen=True, slots=True)
class Host:
    """A generator as the proposer that drafts for it may see it.

    Attributes:
        model, tokenizer: the target's; the tokenizer may be None.
        vocab_size: entries of the target's logits.
        reads_q: True if the acceptance rule makes use of the distributions that candidates are drawn from.
        is_keyed: True if the text doesn't depend on what is drafted.
        takes_trees: True if the model can be given branching trees; otherwise drafts are cut to their longest chain.
        num_layers: those that ``Hidden`` may name, besides the embeddings; None where any may be named.
        load: loads a model and its tokenizer from a folder or hub name, as the target is loaded; the tokenizer may be
            given, else None. Raises ModelError.
        open: drives another model, with a cache of its own, as the target is driven. It is closed after the engine.
            Raises ModelError.
        costs: returns the costs of the target's passes here, by their number of nodes. They are measured when first
            asked for, in about a second; ask while binding.
        idle_target: returns the target while no request decodes, for questions to the model; otherwise None.
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
    num_layers: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request as its drafter may see it.

    Attributes:
        tokens: a live view of prompt and committed tokens; its last entry is the root of the next tree.
        warp: the distribution that the request's own settings make of raw logits after some draft tokens: (drafted,
            logits) -> distribution, logits and distribution ``(vocab,)``; at temperature 0 that of temperature 1.
        noise: what the acceptance rule adds to the log-probabilities at an absolute position before it takes the
            argmax, ``(vocab,)``; None at temperature 0, and under rules where a drafter that knew it would bias the
            text.
    """

    tokens: Sequence[int]
    prompt_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    temperature: float
    rng: np.random.Generator
    warp: Callable[[Sequence[int], torch.Tensor], torch.Tensor] = lambda _, logits: softmax(logits)
    noise: Callable[[int], torch.Tensor] | None = None

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    def until_eos(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens up to the first end-of-text id, itself included: no token follows one."""
        for index, token in enumerate(tokens):
            if token in self.eos_token_ids:
                return tokens[: index + 1]
        return tokens

    def draw(self, weights: torch.Tensor) -> int:
        """A draw from weights, shape ``(vocab,)``, not all zero, which need not sum to one."""
        cumulative = weights.double().cumsum(0)
        place = self.rng.random() * float(cumulative[-1])
        return int(torch.searchsorted(cumulative, place, right=True).clamp_max(int(weights.nonzero().max())))

    def random_tokens(self, count: int) -> list[int]:
        """Tokens of the history, drawn with replacement; the root stands in for an end-of-text id among them."""
        drawn = [self.tokens[index] for index in self.rng.integers(len(self.tokens), size=count)] if count else []
        return [self.root if token in self.eos_token_ids else token for token in drawn]


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """The distribution of logits, float32 or better."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class Drafter(ABC):
    """One request's drafting state; ``notes`` are reported with its result."""

    notes: tuple[str, ...] = ()

    def __init__(self, request: Request) -> None:
        self.request = request

    def read(self, num_tokens: int, budget: Budget) -> None:  # noqa: B027 - optional
        """Hear that the target has read the first ``num_tokens`` of a long prompt.

        Called after each chunk, between which other requests make their steps. A drafter with a model of its own reads
        as much now, since no other request advances while it proposes. The budget is that of a first tree made now.
        """

    @abstractmethod
    def propose(self, budget: Budget) -> DraftTree:
        """A tree below ``request.root``, within the budget."""

    def observe(self, feedback: Feedback) -> None:  # noqa: B027 - optional
        """Learn what became of the last tree."""

    def stop(self) -> None:  # noqa: B027 - optional
        """Release what the request held; called once on every exit."""


class Engine:
    """The state that a proposer's requests share; ``propose_many`` runs a draft model once for the whole batch."""

    def __init__(self, start: Callable[[Request], Drafter]) -> None:
        self._start = start

    def start(self, request: Request) -> Drafter:
        """Begin a request."""
        return self._start(request)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """One tree per drafter; a drafter that fails yields its exception and the others go on."""
        return [_attempt(drafter, budget) for drafter, budget in zip(drafters, budgets, strict=True)]

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Hear of a step that the engine's requests took part in; ``outcomes`` are theirs.

        A step's time belongs to all its requests, whatever their strategies.
        """

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        """Do work that improves later drafts, while no request decodes.

        Called by ``Generator.prepare`` without a limit in time, and by servers again and again while they are idle.

        Args:
            on_progress: called with the number of parts done and of all parts, before each part.
            seconds: stop after the first part that ends later than this.

        Returns:
            True once no work is left.
        """
        return True

    def forget(self) -> None:
        """Forget the texts of earlier requests; nothing is decoding. What was learnt of the machine may stay."""

    def close(self) -> None:
        """Release what the engine held."""


class BatchDrafter(Drafter):
    """A drafter whose engine writes for all its requests at once, in a ``propose_many`` of its own."""

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
    except Exception as error:  # a third party's code: whatever it raises fails its own request only
        return error


class Proposer(BaseModel, ABC):
    """A strategy's configuration.

    Attributes:
        tunable: the options that ``specdec tune`` varies, each with the values worth trying, ascending.
        learns_across_requests: the same request may get other trees the next time. Under rules that read q its text
            may then differ as well: only the distribution that the text is drawn from stays.
    """

    tunable: ClassVar[Tunable] = {}
    learns_across_requests: ClassVar[bool] = False

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def reads_layers(self) -> bool:
        """True if ``bind`` uses the layers or weights of ``Host.model``, which torch has to run then."""
        return False

    def wants(self) -> frozenset[Signal]:
        """The signals that ``observe`` needs, as pairs of which nodes and what about them."""
        return frozenset()

    def bind(self, host: Host) -> Engine:
        """Return the engine for a generator's model; called again once the model has changed or the engine was closed.

        Define it where requests share something, or where the strategy needs the tokenizer, the model or its costs:
        ``host`` has them. The default engine calls ``start`` for each request.
        """
        if type(self).start is Proposer.start:
            raise PluginError(f"{type(self).__name__} defines neither start(request) nor bind(host): define one")
        return Engine(self.start)

    def start(self, request: Request) -> Drafter:
        """Return a drafter for one request; a strategy with a ``bind`` of its own needs no ``start``."""
        raise PluginError(f"{type(self).__name__} starts requests by its engine: call bind(host).start(request)")
