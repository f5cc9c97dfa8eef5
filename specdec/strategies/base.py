"""The proposer's contract.

Three stages, of which a simple strategy writes the first and the last:

1. ``Proposer``: configuration only, a frozen pydantic model (``LookaheadProposer(N=5, W=15, G=15)``).
2. ``Engine``: made once per generator by ``bind``; owns what requests share (weights, caches). The default has nothing.
3. ``Drafter``: one request's state: ``propose`` a tree, ``observe`` what became of it, ``stop``.

Laws, checked on every step by the core, which names the proposer in the error:
- Parents precede children; node count and depth stay within the budget; token ids are in the vocabulary; the root is
  the last committed token.
- Same history and seed, same tree: randomness comes from ``request.rng`` alone. A strategy that declares
  ``learns_across_requests`` may also go by what its engine saw of other requests, or measured; the text stays the same.
- A wrong proposal can make decoding slower, never wrong.
- A tree without draws has chosen candidates only (q is one-hot).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from specdec.costs import Costs
from specdec.target import Driver
from specdec.tree import ROOT, Budget, DraftTree, Role

Tunable = Mapping[str, Sequence[Any]]


class Nodes(Enum):
    """The nodes of the verified tree whose predictions a proposer wants to hear."""

    LAST = "last"  # the last accepted node, whose draw is the bonus token
    PATH = "path"  # the accepted path, root included
    CANDIDATE = "candidate"
    PROBE = "probe"
    ALL = "all"


class What(Enum):
    """The kind of prediction that a proposer wants to hear for the chosen ``Nodes``, besides ``TopK``."""

    ARGMAX = "argmax"  # the greedy prediction from the raw logits
    DRAW = "draw"  # what the target would emit there: processors, temperature and keyed noise included


@dataclass(frozen=True, slots=True)
class TopK:
    """The ``k`` likeliest next tokens by the raw logits, likeliest first, each with its probability."""

    k: int


Signal = tuple[Nodes, What | TopK]


@dataclass(frozen=True, slots=True)
class Feedback:
    """The outcome of a proposal.

    ``tree`` is the verified tree: the proposed one, or its longest chain where the model takes chains only. ``path``
    holds the accepted nodes, root first. ``tokens`` are the committed ones, cut at an end of text, a stop string or the
    length. ``signals`` has the answers to each declared pair: by node a token, or for ``TopK`` pairs of a token and its
    probability; a node where no token is possible is left out.
    """

    tree: DraftTree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    signals: Mapping[Signal, Mapping[int, Any]] = field(default_factory=dict)

    @property
    def predictions(self) -> dict[int, int]:
        """The next token at each declared node: all arguments of the maximum and draws, of two the draw."""
        told = [signal for signal in self.signals if isinstance(signal[1], What)]
        told.sort(key=lambda signal: signal[1] is What.DRAW)
        return {node: token for signal in told for node, token in self.signals[signal].items()}


@dataclass(frozen=True, slots=True)
class Host:
    """A generator as the proposer that drafts for it may see it.

    Attributes:
        model, tokenizer: the target's; the tokenizer may be None.
        vocab_size: entries of the target's logits.
        reads_q: True if the acceptance rule makes use of the distributions that candidates are drawn from.
        is_keyed: True if the text doesn't depend on what is drafted.
        takes_trees: True if the model can be given branching trees; otherwise drafts are cut to their longest chain.
        load: loads a model and its tokenizer from a folder or hub name, as the target is loaded; the tokenizer may be
            given, else None. Raises ModelError.
        open: drives another model, with a cache of its own, as the target is driven. Raises ModelError.
        costs: returns the costs of the target's passes here, by their number of nodes. They are measured when first
            asked for, in about a second; ask while binding.
    """

    model: Any
    tokenizer: Any
    vocab_size: int
    reads_q: bool
    is_keyed: bool
    takes_trees: bool
    load: Callable[[str, Any], tuple[Any, Any]]
    open: Callable[[Any], Driver]
    costs: Callable[[], Costs]


@dataclass(frozen=True, slots=True)
class Request:
    """A request as its drafter may see it.

    Attributes:
        tokens: a live view of prompt and committed tokens; its last entry is the root of the next tree.
        warp: the distribution that the request's own settings make of raw logits behind some drafted tokens: (drafted,
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
        """The tokens up to the first end-of-text id, itself included: nothing is emitted behind one."""
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
    """The law of logits, float32 or better."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class Drafter(ABC):
    """One request's drafting state."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @abstractmethod
    def propose(self, budget: Budget) -> DraftTree:
        """A tree below ``request.root``, within the budget."""

    def observe(self, feedback: Feedback) -> None:  # noqa: B027 - optional
        """Learn what became of the last tree."""

    def stop(self) -> None:  # noqa: B027 - optional
        """Release what the request held; called once on every exit."""


class Engine:
    """The state that a proposer's requests share; in ``propose_many`` a draft model would run once for the batch."""

    def __init__(self, start: Callable[[Request], Drafter]) -> None:
        self._start = start

    def start(self, request: Request) -> Drafter:
        """Begin a request."""
        return self._start(request)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """One tree per drafter; a drafter that fails yields its exception and the others go on."""
        return [_attempt(drafter, budget) for drafter, budget in zip(drafters, budgets, strict=True)]

    def close(self) -> None:
        """Release what the engine held."""


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
            may then differ as well: only the law that the text is drawn from stays.
    """

    tunable: ClassVar[Tunable] = {}
    learns_across_requests: ClassVar[bool] = False

    model_config = ConfigDict(frozen=True, extra="forbid")

    def wants(self) -> frozenset[Signal]:
        """The signals that ``observe`` needs, as pairs of which nodes and what about them."""
        return frozenset()

    def bind(self, host: Host) -> Engine:
        """The engine for a generator's model; called once per generator."""
        return Engine(self.start)

    @abstractmethod
    def start(self, request: Request) -> Drafter:
        """A drafter for one request."""


def select(nodes: Nodes, tree: DraftTree, path: Sequence[int]) -> Sequence[int]:
    """The nodes of a verified tree that a declaration names."""
    match nodes:
        case Nodes.LAST:
            return path[-1:]
        case Nodes.PATH:
            return path
        case Nodes.ALL:
            return range(len(tree))
        case Nodes.CANDIDATE:
            return tree.nodes_with(Role.CANDIDATE)
        case Nodes.PROBE:
            return tree.nodes_with(Role.PROBE)


def wanted(tree: DraftTree, signals: Iterable[Signal]) -> list[int]:
    """The nodes whose logits a step reads, ascending: what the verifier needs, and what was declared."""
    declared = {nodes for nodes, _ in signals}
    if Nodes.ALL in declared:
        return list(range(len(tree)))
    roles = Role.CANDIDATE | Role.PROBE if Nodes.PROBE in declared else Role.CANDIDATE
    return [ROOT, *tree.nodes_with(roles)]
