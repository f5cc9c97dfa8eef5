"""Prove a strategy or an acceptance rule of your own: exact enumeration, random cases, and the laws as functions.

- ``outcomes`` runs a function once for every way its random choices can fall, and returns the exact law of its result.
- ``shapes``, ``laws`` and ``trees`` are hypothesis strategies for draft shapes, laws over a vocabulary, and trees.
- ``check_verifier``, ``check_drafting`` and ``check_proposer`` raise AssertionError where a contract's law is broken:
  that of a rule, of a strategy that samples its candidates together with a rule, and of any strategy.

hypothesis comes with the extra ``specdec[testing]``; enumeration works without it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch

from specdec.backends.base import Output
from specdec.backends.toy import Law, ToyBackend, ToyModel
from specdec.driver import Driver
from specdec.errors import ModelError
from specdec.masks.dense import DenseCompiler
from specdec.randomness import Chances, Randomness
from specdec.sampling import SequenceTarget, Warper
from specdec.sequence import TokenView
from specdec.settings import Settings
from specdec.strategies.base import Feedback, Host, Proposer, Request
from specdec.tree import ROOT, Budget, DraftTree, Role
from specdec.verifiers.base import Verdict, Verifier

if TYPE_CHECKING:
    from hypothesis import strategies as st

T = TypeVar("T", bound=Hashable)
TreeDrawing = Callable[[Chances], DraftTree]
CPU = torch.device("cpu")
EXACT = 1e-12  # float64 rounding over a few thousand outcomes


class _Script:
    """Chances whose choices are given in advance, and where they run out, the first possible one."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = list(choices)
        self.probability = 1.0
        self.num_made = 0
        self.alternatives: list[int] = []  # the possible choices after the script's end, by their number

    def accept(self, r: float, q: float) -> bool:
        chance = min(1.0, r / q) if q > 0.0 else float(r > 0.0)
        return self._choose([1.0 - chance, chance]) == 1

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        total = float(weights.double().sum())
        return self._choose((weights.double() / total).tolist()) if total > 0.0 else 0

    def _choose(self, law: Sequence[float]) -> int:
        possible = [index for index, chance in enumerate(law) if chance > 0.0]
        if self.num_made == len(self.choices):
            self.choices.append(0)
            self.alternatives.append(len(possible))
        choice = possible[self.choices[self.num_made]]
        self.num_made += 1
        self.probability *= law[choice]
        return choice


def outcomes(run: Callable[[Chances], T]) -> dict[T, float]:
    """The exact law of what ``run`` returns, over all outcomes of the two random primitives that it is given.

    The function is run once per outcome, so it must be a function of its chances alone.
    """
    law: dict[T, float] = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        script = _Script(waiting.pop())
        result = run(script)
        law[result] = law.get(result, 0.0) + script.probability
        num_given = len(script.choices) - len(script.alternatives)
        for offset, count in enumerate(script.alternatives):
            fixed = script.choices[: num_given + offset]
            waiting += [[*fixed, other] for other in range(1, count)]
    return law


def total_variation(law: dict[T, float], other: dict[T, float]) -> float:
    """Half the sum of absolute differences: the greatest difference in probability of any event."""
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys()) / 2


@dataclass(frozen=True)
class Shape:
    """What is drawn below a node: each draw's kind, and the shape below its child.

    ``sampled`` draws come from the drafter's law at the node, renormalised without earlier tokens if ``replaces`` is
    False; the j-th ``chosen`` one is the j-th likeliest token there.
    """

    draws: tuple[tuple[Literal["sampled", "chosen"], "Shape"], ...] = ()
    replaces: bool = True

    @property
    def depth(self) -> int:
        """Of the deepest draw."""
        return max((1 + below.depth for _, below in self.draws), default=0)


def draw_tree(context: Sequence[int], q: Law, shape: Shape, chances: Chances) -> DraftTree:
    """A random tree of a shape below the last token of ``context``, drawn from q, a law by context."""
    tree = DraftTree(context[-1])
    _draw_below(tree, ROOT, context, q, shape, chances)
    return tree


def _draw_below(tree: DraftTree, node: int, context: Sequence[int], q: Law, shape: Shape, chances: Chances) -> None:
    if not shape.draws:
        return
    path = (*context, *tree.path(node))
    law = torch.tensor(list(q(path)), dtype=torch.float64)
    ranked = iter(law.argsort(descending=True, stable=True).tolist())
    for kind, below in shape.draws:
        known = len(tree)
        if kind == "chosen":
            token = next(ranked, None)
            if token is None:
                continue  # more choices than tokens
            child = tree.add(node, token)
        elif not law.any():
            return  # without replacement every possible token is out
        else:
            child = tree.add(node, chances.categorical(law, -1), q=law)
            if not shape.replaces:
                law = law.index_fill(0, torch.tensor(tree.tokens[child]), 0.0)
                law = law / law.sum() if law.any() else law
        if child == known:  # a token drawn twice has the subtree of its first draw
            _draw_below(tree, child, context, q, below, chances)


def target_of(p: Law, tree: DraftTree, context: Sequence[int], settings: Settings, chances: Chances) -> SequenceTarget:
    """The production target over a known law: logits are its logarithm, in float64."""
    laws = np.array([p((*context, *tree.path(node))) for node in range(len(tree))])
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(laws))[None]
    warper = Warper(settings, len(context), (), CPU)
    return SequenceTarget(tree, Output(logits, range(len(tree))).row(0), context, warper, chances)


def plain_law(
    p: Law, context: Sequence[int], num_tokens: int, settings: Settings | None = None
) -> dict[tuple[int, ...], float]:
    """The law of the next tokens in plain decoding."""
    settings = settings or Settings(temperature=1.0)

    def run(chances: Chances) -> tuple[int, ...]:
        return _go_on(p, context, (), num_tokens, settings, chances)

    return outcomes(run)


def emitted_law(
    verifier: Verifier,
    p: Law,
    draw: TreeDrawing,
    context: Sequence[int],
    num_tokens: int,
    settings: Settings | None = None,
) -> dict[tuple[int, ...], float]:
    """The law of the first tokens when a random tree is drawn and verified, and plain decoding goes on behind it."""
    settings = settings or Settings(temperature=1.0)

    def run(chances: Chances) -> tuple[int, ...]:
        tree = draw(chances)
        verdict = verifier.verify(tree, target_of(p, tree, context, settings, chances), chances)
        verdict.check(tree)
        return _go_on(p, context, verdict.tokens, num_tokens, settings, chances)

    return outcomes(run)


def expected_length(
    verifier: Verifier, p: Law, draw: TreeDrawing, context: Sequence[int], settings: Settings | None = None
) -> float:
    """tau: the expected number of tokens that one step emits, the bonus token included."""
    settings = settings or Settings(temperature=1.0)

    def run(chances: Chances) -> int:
        tree = draw(chances)
        verdict: Verdict = verifier.verify(tree, target_of(p, tree, context, settings, chances), chances)
        return len(verdict.tokens)

    return sum(length * chance for length, chance in outcomes(run).items())


def _go_on(
    p: Law, context: Sequence[int], emitted: Sequence[int], num_tokens: int, settings: Settings, chances: Chances
) -> tuple[int, ...]:
    tokens = list(emitted[:num_tokens])
    while len(tokens) < num_tokens:
        known = [*context, *tokens]
        law = target_of(p, DraftTree(known[-1]), known, settings, chances).law(ROOT)
        assert law is not None, "laws under test are possible"
        tokens.append(chances.categorical(law, len(known)))
    return tuple(tokens)


@dataclass(frozen=True)
class TableLaw:
    """A law of its own for every context, with some tokens impossible; callable as a ``ToyModel``'s law is."""

    vocab_size: int
    seed: int
    chance_of_zero: float = 0.0

    def __call__(self, context: tuple[int, ...]) -> list[float]:
        rng = np.random.default_rng([self.seed, len(context), *context])
        weights = rng.exponential(size=self.vocab_size) * (rng.random(self.vocab_size) >= self.chance_of_zero)
        weights[rng.integers(self.vocab_size)] += 0.1  # some token is always possible
        law: list[float] = (weights / weights.sum()).tolist()
        return law


def laws(vocab_size: int) -> "st.SearchStrategy[TableLaw]":
    """Laws with and without impossible tokens."""
    from hypothesis import strategies as st

    return st.builds(TableLaw, st.just(vocab_size), st.integers(0, 9999), st.sampled_from([0.0, 0.3, 0.7]))


def shapes(max_depth: int = 3, max_draws: int = 4) -> "st.SearchStrategy[Shape]":
    """Shapes of chains and trees, sampled and chosen draws mixed, with and without replacement."""
    from hypothesis import strategies as st

    @st.composite
    def shape(draw: st.DrawFn, depth: int, room: list[int], replaces: bool) -> Shape:
        draws: list[tuple[Literal["sampled", "chosen"], Shape]] = []
        while depth and room[0] and draw(st.booleans()):
            room[0] -= 1
            below = draw(shape(depth - 1, room, replaces))
            draws.append(("sampled" if draw(st.integers(0, 2)) else "chosen", below))
        return Shape(tuple(draws), replaces)

    return st.booleans().flatmap(lambda replaces: shape(max_depth, [max_draws], replaces))


def trees(vocab_size: int = 6, max_nodes: int = 14) -> "st.SearchStrategy[DraftTree]":
    """Trees of chosen candidates: any parents, any roles, any tokens."""
    from hypothesis import strategies as st

    @st.composite
    def tree(draw: st.DrawFn) -> DraftTree:
        drawn = DraftTree(draw(st.integers(0, vocab_size - 1)))
        for _ in range(draw(st.integers(0, max_nodes))):
            parent = draw(st.integers(0, len(drawn) - 1))
            role = Role(draw(st.integers(1, 7)))
            drawn.add(parent, draw(st.integers(0, vocab_size - 1)), role)
        return drawn

    return tree()


def check_verifier(
    verifier: Verifier, p: Law, q: Law, shape: Shape, context: Sequence[int], settings: Settings | None = None
) -> None:
    """A lossless rule emits the target's law, for every number of tokens that the text may be cut to.

    ``p`` and ``q`` are the target's and the drafter's laws, over a vocabulary that ``context`` is of. Enumerates, so
    keep the vocabulary at 3 or so and the shape at a handful of draws.
    """
    num_tokens = shape.depth + 1
    emitted = emitted_law(
        verifier, p, lambda chances: draw_tree(context, q, shape, chances), context, num_tokens, settings
    )
    plain = plain_law(p, context, num_tokens, settings)
    for length in range(1, num_tokens + 1):
        distance = total_variation(_cut(emitted, length), _cut(plain, length))
        assert distance <= EXACT, f"the law of the first {length} tokens is off by a total variation of {distance:.3g}"


def _cut(law: dict[tuple[int, ...], float], length: int) -> dict[tuple[int, ...], float]:
    cut: dict[tuple[int, ...], float] = {}
    for tokens, chance in law.items():
        cut[tokens[:length]] = cut.get(tokens[:length], 0.0) + chance
    return cut


class EnumeratedRequest(Request):
    """A request whose ``draw`` goes through an enumeration."""

    __slots__ = ("chances",)
    chances: Chances

    @classmethod
    def of(cls, tokens: list[int], vocab_size: int, chances: Chances) -> "EnumeratedRequest":
        """A request at temperature 1 whose text is ``tokens``, which may grow."""
        rng = Randomness(0).stream("not drawn from")
        request = cls(TokenView(tokens), len(tokens), vocab_size, frozenset(), 1.0, rng)
        object.__setattr__(request, "chances", chances)
        return request

    def draw(self, weights: torch.Tensor) -> int:
        return self.chances.categorical(weights, -1)


def toy_host(vocab_size: int, reads_q: bool) -> Host:
    """A generator's side towards a proposer that needs no more of the target than its vocabulary."""

    def load(name: str, tokenizer: object) -> tuple[object, object]:
        raise ModelError(f"can't load {name!r}: tests give models, not names")

    def open_driver(model: object) -> Driver:
        compiler = DenseCompiler()
        return Driver(ToyBackend.load(model, compiler.compile), compiler.compile)

    return Host(None, None, vocab_size, reads_q, load, open_driver)


def check_drafting(
    proposer: Proposer, verifier: Verifier, p: Law, context: Sequence[int], vocab_size: int, num_tokens: int = 2
) -> None:
    """A strategy that samples with ``request.draw``, and a rule, emit the target's law together, step after step.

    The strategy sees what was rejected, and may learn from it. Enumerates, so keep drafts at a few draws. A draft model
    is a ``ToyModel``.
    """
    settings = Settings(temperature=1.0)
    budget = Budget(num_nodes=16, depth=16, num_tokens=16)

    def run(chances: Chances) -> tuple[int, ...]:
        tokens = list(context)
        engine = proposer.bind(toy_host(vocab_size, verifier.reads_q))
        drafter = engine.start(EnumeratedRequest.of(tokens, vocab_size, chances))
        while len(tokens) < len(context) + num_tokens:
            tree = drafter.propose(budget)
            tree.check(tokens[-1], vocab_size, budget, type(proposer).__name__)
            tree.check_draws(vocab_size, type(proposer).__name__)
            verdict = verifier.verify(tree, target_of(p, tree, list(tokens), settings, chances), chances)
            verdict.check(tree)
            tokens += verdict.tokens
            drafter.observe(Feedback(tree, verdict.path, verdict.tokens))
        return tuple(tokens[len(context) :][:num_tokens])

    distance = total_variation(outcomes(run), plain_law(p, context, num_tokens))
    assert distance <= EXACT, f"the law of the first {num_tokens} tokens is off by a total variation of {distance:.3g}"


def check_proposer(proposer: Proposer | str, model: ToyModel, prompts: Sequence[Sequence[int]], seed: int = 0) -> None:
    """A strategy never changes the text, greedy or sampled, alone or in a batch.

    The core checks each tree as it comes: parents before children, the budget, the vocabulary.
    """
    from specdec.generator import Generator

    drafted, plain = (Generator(model, proposer=which, max_batch_size=3) for which in (proposer, "autoregressive"))
    batch = [list(prompt) for prompt in prompts]
    for temperature in (0.0, 1.0):
        settings = {"max_new_tokens": 24, "temperature": temperature, "seed": seed}
        expected = [result.token_ids for result in plain.generate(batch, **settings)]
        results = drafted.generate(batch, **settings)
        for result in results:
            if result.error is not None:
                raise AssertionError(f"{proposer} failed: {result.error}") from result.error
        assert [result.token_ids for result in results] == expected, f"{proposer} changed the text of a batch"
        alone = drafted.generate(batch[0], **settings)
        assert alone.token_ids == expected[0], f"{proposer} changed the text of a prompt alone"
        again = drafted.generate(batch[0], **settings)
        assert again.stats.accepted_lengths == alone.stats.accepted_lengths, (
            f"{proposer} drafted differently the second time: randomness must come from request.rng alone"
        )
