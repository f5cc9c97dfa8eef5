"""EAGLE-3: a trained head of one layer drafts from the target's hidden states.

Li et al. 2025, "EAGLE-3", arXiv 2503.01840; its draft trees are those of EAGLE-2, Li et al. 2024, arXiv 2406.16858,
section 4. ``specdec/heads/`` has the head itself, its folders and its trees.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from specdec.errors import ModelError, NumericsError
from specdec.heads.drafting import DraftedTrees, PairCache, TreeGrowth, append, extend
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.folder import TargetWeights, read_head
from specdec.strategies.base import (
    Answers,
    Drafter,
    Engine,
    Feedback,
    Hidden,
    Host,
    Nodes,
    Proposer,
    Request,
    Retained,
    Signal,
    Tunable,
)
from specdec.strategies.merging.acceptance_rates import AcceptanceRates
from specdec.strategies.merging.source import Candidate, Source
from specdec.tree import ROOT, Budget, DraftTree

_WIDTH_IN_MERGES = 1  # nodes fed per level: the path that the head believes in most
_DEEPEST = 2  # deeper candidates share the buckets of their probability
_BINS = 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98  # of the head's own probability
_MOST_PENDING = 256  # pairs whose hidden states are held until the next draft


class Eagle3Proposer(Proposer):
    """Drafts by an EAGLE-3 head that was trained for this model.

    Each step, the head reads the hidden states of the tokens that were accepted, and predicts the most probable next
    tokens; ``top_k`` of them are fed again, ``depth`` levels in all, and the ``num_nodes`` most probable paths form the
    draft. With the text "a cat" and top_k=2, depth=2, num_nodes=3:

        level 1 after "cat":  " sat" 0.6, " ran" 0.3
        level 2 after " sat": " on" 0.8, " in" 0.1;  after " ran": " off" 0.5, " to" 0.2
        path probabilities:   sat 0.6, sat on 0.48, ran 0.3, ran off 0.15, …
        draft:                sat → on, ran

    Candidates are chosen, not drawn, so they have no q. Under ``match`` and a temperature above 0 the head is given the
    noise of each position, as draft models are. In a merge, only the head's own most probable path is fed.
    Costs a pass of the head for each level. Memory: keys and values of one layer.
    """

    tunable: ClassVar[Tunable] = {"depth": (1, 2, 3, 4, 5, 7), "num_nodes": (4, 8, 16, 32)}

    head: Path = Field(description="folder of the head: config.json with safetensors or a .bin file")
    top_k: int = Field(default=4, ge=1, description="nodes fed per level, and candidates after each")
    depth: int = Field(default=5, ge=1, description="tokens of a path at most: passes of the head per step")
    num_nodes: int = Field(default=16, ge=1, description="nodes of a draft at most, the most probable paths")
    min_probability: float = Field(default=0.02, ge=0.0, le=1.0, description="least probability of a path, by the head")

    def bind(self, host: Host) -> Engine:
        folder = self.head.expanduser()
        if host.num_layers is None:
            raise ModelError(
                f"the head in {folder} reads hidden states, and the target's layers are unknown here: use another "
                "strategy, or a transformers or OpenVINO model"
            )
        embeddings = host.embeddings()
        dtype = torch.bfloat16 if embeddings.dtype == torch.bfloat16 else torch.float32
        weights = TargetWeights(embeddings, lambda: host.output_rows(range(len(embeddings))), host.num_layers)
        head = read_head(folder, weights, dtype)
        if int(head.target_ids.max()) >= host.vocab_size:
            raise ModelError(
                f"the head in {folder} drafts ids beyond the target's vocabulary of {host.vocab_size}: give the folder "
                "of an EAGLE-3 head that was trained for this model"
            )
        return Eagle3Engine(self, head, head.config.target_layers(host.num_layers), learns=host.is_keyed)


class Eagle3Engine(Engine):
    """The head, which drafts for all requests of a batch level by level.

    Args:
        layers: of the target, whose hidden states the head reads.
        learns: requests share acceptance rates in merges; False if the text depends on the drafts.
    """

    def __init__(self, config: Eagle3Proposer, head: Eagle3Head, layers: Sequence[int], learns: bool = True) -> None:
        self.head, self._config, self._learns = head, config, learns
        self.states = Hidden(tuple(layers))
        self._target_ids = head.target_ids
        self.forget()

    def forget(self) -> None:
        self._acceptance_rates = AcceptanceRates("eagle3", _prior)

    def acceptance_rates(self) -> AcceptanceRates:
        """Return a new request's acceptance rates."""
        return self._acceptance_rates if self._learns else AcceptanceRates("eagle3", _prior)

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROMPT, self.states), (Nodes.PATH, self.states)})

    def start(self, request: Request) -> Drafter:
        return Eagle3Drafter(request, self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        own = _own(drafters)
        self._draft(own, budgets, self._config.top_k, self._config.num_nodes)
        return [drafter.tree(budget) for drafter, budget in zip(own, budgets, strict=True)]

    def prepare_drafts(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> None:
        most = self._config.depth * self._config.top_k
        self._draft(_own(drafters), budgets, _WIDTH_IN_MERGES, most)

    @torch.inference_mode()
    def catch_up(self, drafters: Sequence["Eagle3Drafter"]) -> None:
        """Feed the pairs that came since the last draft, all requests in one pass."""
        behind = [drafter for drafter in drafters if drafter.pending]
        if not behind:
            return
        states, tokens = zip(*map(self._take_pending, behind), strict=True)
        last = extend(self.head, [drafter.cache for drafter in behind], states, tokens)
        for drafter, out in zip(behind, last, strict=True):
            drafter.last = out

    @torch.inference_mode()
    def store(self, drafter: "Eagle3Drafter") -> None:
        """Store keys and values of a request's pending pairs; nothing is drafted after the last of them."""
        if drafter.pending:
            append(self.head, drafter.cache, *self._take_pending(drafter))

    def _take_pending(self, drafter: "Eagle3Drafter") -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pending pairs of a request: states (n, layers * size), and the tokens after them (n,)."""
        weight, stop = self.head.fc.weight, drafter.num_known
        states = torch.cat(drafter.pending).to(weight.device, weight.dtype)
        drafter.pending = []
        tokens = drafter.request.tokens[stop - len(states) + 1 : stop + 1]
        return states, torch.tensor(tokens, device=weight.device)

    @torch.inference_mode()
    def _draft(
        self, drafters: Sequence["Eagle3Drafter"], budgets: Sequence[Budget], width: int, num_nodes: int
    ) -> None:
        """Draft for the requests whose texts the head knows up to the root."""
        depths = dict[Eagle3Drafter, int]()
        for drafter, budget in zip(drafters, budgets, strict=True):
            drafter.drafted = None
            depth = min(self._config.depth, budget.depth, budget.num_tokens - 1)
            if depth > 0 and budget.num_nodes > 0 and drafter.can_draft:
                depths[drafter] = depth
        if not depths:
            return
        ready = list(depths)
        self.catch_up(ready)
        last = torch.stack([drafter.last for drafter in ready if drafter.last is not None])
        num_children = min(self._config.top_k, self.head.config.draft_vocab_size)
        noise = _Noise([drafter.request for drafter in ready], self._target_ids)
        caches = [drafter.cache for drafter in ready]
        growth = TreeGrowth(self.head, caches, last, min(width, num_children), num_children, noise.added)
        least = math.log(self._config.min_probability) if self._config.min_probability else -math.inf
        for _ in range(max(depths.values()) - 1):
            # An accelerator would have to be waited for.
            if last.device.type == "cpu" and not bool((growth.next_log_probs >= least).any()):
                break
            growth.feed()
        for drafter, drafted in zip(ready, _fetched(growth.best(num_nodes)), strict=True):
            if all(map(math.isfinite, drafted.log_probs)):
                drafted.depth, drafted.least = depths[drafter], least
                drafter.drafted = drafted
            else:
                drafter.leave_out()


def _own(drafters: Sequence[Drafter]) -> list["Eagle3Drafter"]:
    own = [drafter for drafter in drafters if isinstance(drafter, Eagle3Drafter)]
    assert len(own) == len(drafters), "an engine is given the drafters that it started"
    return own


class _Noise:
    """The noise of each request's next positions, (requests, 1, draft vocab); nothing for greedy requests."""

    def __init__(self, requests: Sequence[Request], target_ids: torch.Tensor) -> None:
        self._requests, self._target_ids = requests, target_ids
        self._is_known = any(request.noise is not None for request in requests)

    def added(self, logits: torch.Tensor, num_drafted: int) -> torch.Tensor:
        """Return the scores whose argmax is the head's draw with the target's noise (see ``DraftLaw.at``)."""
        if not self._is_known:
            return logits
        return torch.stack(
            [self._added(request, row, num_drafted) for request, row in zip(self._requests, logits, strict=True)]
        )

    def _added(self, request: Request, logits: torch.Tensor, num_drafted: int) -> torch.Tensor:
        if request.noise is None:
            return logits
        noise = request.noise(len(request.tokens) + num_drafted).to(logits.device, logits.dtype)
        return logits / request.temperature + noise[self._target_ids]


@dataclass(slots=True)
class _Drafted:
    """A request's drafted candidates; parents precede children, and -1 stands for the root.

    Attributes:
        depth: tokens of a path at most.
        least: least log-probability of a path in a draft.
    """

    tokens: list[int]
    parents: list[int]
    log_probs: list[float]
    depth: int = 0
    least: float = -math.inf

    def tree(self, root: int, num_nodes: int, stops: frozenset[int]) -> DraftTree:
        """Return the tree of the most probable paths."""
        order = sorted(range(len(self.tokens)), key=lambda node: (-self.log_probs[node], node))
        place, tree = {-1: ROOT}, DraftTree(root)
        for node in sorted(order[:num_nodes]):
            above = place.get(self.parents[node])
            if above is None or self.log_probs[node] < self.least or tree.depths[above] >= self.depth:
                continue
            if above == ROOT or tree.tokens[above] not in stops:
                place[node] = tree.add(above, self.tokens[node])
                tree.probs[place[node]] = self.probability(node)
        return tree

    def probability(self, node: int) -> float:
        """Return the head's probability of a node after its parent."""
        parent = self.parents[node]
        return math.exp(self.log_probs[node] - (self.log_probs[parent] if parent >= 0 else 0.0))


def _fetched(trees: DraftedTrees) -> list[_Drafted]:
    """Copy trees to the host in one transfer."""
    numbers = torch.stack((trees.tokens.double(), trees.parents.double(), trees.log_probs.double()), 1).tolist()
    return [_Drafted([*map(int, tokens)], [*map(int, parents)], log_probs) for tokens, parents, log_probs in numbers]


class Eagle3Drafter(Source):
    """One request: the head's keys and values of the text, and the pairs that the head hasn't read yet.

    Attributes:
        cache: of the pairs at the first positions, or of those after a gap.
        num_known: the first positions whose hidden states were received.
        pending: hidden states of the last of them, (n, layers * size) each, that aren't in the cache.
        last: the head's output for the last pair; None if further pairs are pending.
        drafted: the candidates of the step under way.
    """

    def __init__(self, request: Request, engine: Eagle3Engine) -> None:
        super().__init__(request)
        self._engine, self._acceptance_rates = engine, engine.acceptance_rates()
        self.cache = PairCache(engine.head)
        self.pending: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None
        self.drafted: _Drafted | None = None
        self._fault: NumericsError | None = None
        self._children: dict[int, list[int]] = {}
        self.num_known = request.num_reused
        if request.retained:
            keys, values = zip(*(each.state for each in request.retained), strict=True)
            self.cache.append(torch.cat(keys), torch.cat(values))
            self.cache.truncate(request.num_reused)
        self._is_whole = len(self.cache) == request.num_reused
        if not self._is_whole:
            self.cache.truncate(0)

    @property
    def can_draft(self) -> bool:
        """True if the hidden states of the whole text before the root are known."""
        is_current = self.num_known == len(self.request.tokens) - 1
        return is_current and self._fault is None and (bool(self.pending) or self.last is not None)

    def leave_out(self) -> None:
        """Draft nothing from now on."""
        self._fault = NumericsError("gave probabilities that are not finite")
        self.cache, self.pending, self._is_whole = PairCache(self._engine.head), [], False
        self.notes = ("drafting goes on without the head: its probabilities are not finite",)

    def _receive(self, start: int, states: torch.Tensor) -> None:
        """Take the hidden states, (n, layers, size), of positions from ``start`` on."""
        if self._fault is not None or not len(states):
            return
        if start != self.num_known:  # the positions between are unknown: go on as if they weren't there
            self._engine.store(self)
            self._is_whole = False
        self.pending.append(states.flatten(1))
        self.num_known, self.last = start + len(states), None
        is_prompt = self.num_known < len(self.request.tokens) - 1
        if is_prompt or sum(map(len, self.pending)) > _MOST_PENDING:
            self._engine.store(self)

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        states = signals[Nodes.PROMPT, self._engine.states].tensor()
        self._receive(num_tokens - len(states), states)

    def receive(self, feedback: Feedback) -> None:
        self.drafted = None
        states = feedback.signals[Nodes.PATH, self._engine.states].tensor()
        root = len(self.request.tokens) - len(feedback.tokens) - 1
        self._receive(root, states[: len(feedback.tokens)])

    def retain(self, start: int, stop: int) -> Retained | None:
        self._engine.catch_up([self])
        if not self._is_whole or stop > len(self.cache):
            return None
        keys, values = self.cache.keys[start:stop].clone(), self.cache.values[start:stop].clone()
        return Retained((keys, values), keys.nbytes + values.nbytes)

    def propose(self, budget: Budget) -> DraftTree:
        proposal = self._engine.propose_many([self], [budget])[0]
        assert isinstance(proposal, DraftTree), "a head that fails raises its error"
        return proposal

    def tree(self, budget: Budget) -> DraftTree:
        """Return the draft of the step under way, the root alone if there is none."""
        root = self.request.root
        if self.drafted is None:
            return DraftTree(root)
        return self.drafted.tree(root, budget.num_nodes, self.request.eos_token_ids)

    def root(self) -> int | None:
        if self._fault is not None:
            raise self._fault
        if self.drafted is None:
            return None
        self._children = {}
        for node, parent in enumerate(self.drafted.parents):
            self._children.setdefault(parent, []).append(node)
        return -1

    def follow(self, state: int, token: int) -> int | None:
        assert self.drafted is not None, "a state is of a draft"
        children = self._children.get(state, ())
        return next((node for node in children if self.drafted.tokens[node] == token), None)

    def candidates(self, state: int) -> Sequence[Candidate]:
        drafted, rates = self.drafted, self._acceptance_rates
        assert drafted is not None, "a state is of a draft"
        depth, above = 1, state
        while above >= 0 and depth < _DEEPEST:
            depth, above = depth + 1, drafted.parents[above]
        is_sampled = self.request.noise is not None
        return [
            (drafted.tokens[node], rates[is_sampled, depth, _bin(drafted.probability(node))])
            for node in self._children.get(state, ())
        ]


def _bin(probability: float) -> int:
    return sum(probability >= edge for edge in _BINS)


def _prior(bucket: Hashable) -> float:
    """Believe the head: the middle of the bin."""
    assert isinstance(bucket, tuple), "buckets are (is_sampled, depth, bin of the probability)"
    edges = 0.0, *_BINS, 1.0
    return (edges[bucket[2]] + edges[bucket[2] + 1]) / 2
