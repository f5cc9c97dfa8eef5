"""Checks of the contracts' laws, to call from a plug-in's own tests."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from specdec.backends import TokenDistribution, ToyBackend
from specdec.decoding import TokenView
from specdec.errors import ModelError
from specdec.plugins import built_in
from specdec.sampling import Randomness, RandomSource
from specdec.settings import Settings
from specdec.strategies import Feedback, Host, Proposer, Request
from specdec.target import Target
from specdec.testing.cases import Shape, draw_tree
from specdec.testing.emission import emitted_distribution, plain_distribution, verdict_of
from specdec.testing.enumeration import EXACT, outcomes, total_variation
from specdec.tree import Budget
from specdec.verifiers import Verifier


def check_verifier(
    verifier: Verifier,
    p: TokenDistribution,
    q: TokenDistribution,
    shape: Shape,
    context: Sequence[int],
    settings: Settings | None = None,
) -> None:
    """Check that a lossless rule emits the target's distribution, for every length at which the text may be cut.

    Also that a rule which declares ``stays_on_the_text`` reads the target at accepted nodes only. All outcomes are
    enumerated: use a vocabulary of about 3 tokens and a few draws.

    Args:
        p, q: the distributions of the target and the drafter, as functions of the context.
        context: token ids before the draft.

    Raises:
        AssertionError: with what is wrong, such as the total variation distance of the two distributions. A lossy rule
            always fails: for its own tests, ``emitted_distribution`` and ``total_variation`` measure by how much.
    """
    num_tokens = shape.depth + 1
    p, q = cache(p), cache(q)  # outcomes share most of their contexts
    emitted = emitted_distribution(
        verifier, p, lambda source: draw_tree(context, q, shape, source), context, num_tokens, settings
    )
    plain = plain_distribution(p, context, num_tokens, settings)
    for length in range(1, num_tokens + 1):
        distance = total_variation(_cut(emitted, length), _cut(plain, length))
        assert distance <= EXACT, f"the first {length} tokens' distribution is off: total variation {distance:.3g}"


def _cut(probs: dict[tuple[int, ...], float], length: int) -> dict[tuple[int, ...], float]:
    cut: dict[tuple[int, ...], float] = {}
    for tokens, chance in probs.items():
        cut[tokens[:length]] = cut.get(tokens[:length], 0.0) + chance
    return cut


class EnumeratedRequest(Request):
    """A request whose draws are enumerated."""

    __slots__ = ("source",)
    source: RandomSource

    @classmethod
    def of(cls, tokens: list[int], vocab_size: int, source: RandomSource) -> "EnumeratedRequest":
        """Return a request at temperature 1 whose text is ``tokens``, a list that may grow."""
        rng = Randomness(0).stream("not drawn from")
        request = cls(TokenView(tokens), len(tokens), vocab_size, frozenset(), 1.0, rng)
        object.__setattr__(request, "source", source)
        return request

    def draw(self, weights: torch.Tensor) -> int:
        return self.source.categorical(weights, -1)


def toy_host(vocab_size: int, reads_q: bool, tokenizer: Any = None) -> Host:
    """Return a host for proposers that need only the target's vocabulary and tokenizer."""

    def load(name: str, tokenizer: object) -> tuple[object, object]:
        raise ModelError(f"can't load {name!r}: pass a model, not a name, in tests")

    def open_target(model: object) -> Target:
        compiler = built_in("masks", "dense")
        return Target(ToyBackend.load(model, compiler), compiler)

    return Host(
        model=None,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        reads_q=reads_q,
        is_keyed=not reads_q,
        takes_trees=True,
        load=load,
        open=open_target,
        costs=lambda: ToyBackend.costs,
    )


def check_drafting(
    proposer: Proposer,
    verifier: Verifier,
    p: TokenDistribution,
    context: Sequence[int],
    vocab_size: int,
    num_tokens: int = 2,
    tokenizer: Any = None,
) -> None:
    """Check that a strategy that samples with ``request.draw``, together with a rule, emits the target's distribution.

    Several steps are run, so the strategy may learn from rejections. All outcomes are enumerated: use few draws.

    Args:
        proposer: the strategy; a draft model must be a ``ToyModel``.
        p: the target's distribution, as a function of the context.
        tokenizer: what the strategy finds as ``host.tokenizer``.
    """
    settings = Settings(temperature=1.0)
    budget = Budget(num_nodes=16, depth=16, num_tokens=16)

    def run(source: RandomSource) -> tuple[int, ...]:
        tokens = list(context)
        engine = proposer.bind(toy_host(vocab_size, verifier.reads_q, tokenizer))
        drafter = engine.start(EnumeratedRequest.of(tokens, vocab_size, source))
        while len(tokens) < len(context) + num_tokens:
            tree = drafter.propose(budget)
            tree.check(tokens[-1], vocab_size, budget, type(proposer).__name__)
            tree.check_draws(vocab_size, type(proposer).__name__)
            verdict = verdict_of(verifier, p, tree, list(tokens), settings, source)
            tokens += verdict.tokens
            feedback = Feedback(tree, verdict.path, verdict.tokens)
            drafter.receive(feedback)
            drafter.observe(feedback)
        return tuple(tokens[len(context) :][:num_tokens])

    distance = total_variation(outcomes(run), plain_distribution(p, context, num_tokens))
    assert distance <= EXACT, f"the first {num_tokens} tokens' distribution is off: total variation {distance:.3g}"


def check_proposer(
    proposer: Proposer | str,
    model: Any,
    prompts: Sequence[Sequence[int]],
    seed: int = 0,
    tokenizer: Any = None,
) -> None:
    """Check that a strategy never changes the text: greedy or sampled, alone or in a batch, once or repeatedly.

    A repeated request must get the same trees, unless the strategy declares ``learns_across_requests``. The core checks
    each tree: parents before children, the budget, the vocabulary.

    Args:
        model: a ``ToyModel``, or any that ``Generator`` takes.
        prompts: token ids.
        tokenizer: what the strategy finds as ``host.tokenizer``: ``toy_tokenizer(vocab_size)``, or the model's own.
    """
    from specdec.generator import Generator

    drafted, plain = (
        Generator(model, tokenizer, proposer=which, max_batch_size=3) for which in (proposer, "autoregressive")
    )
    name, learns = repr(drafted.proposer), drafted.proposer.learns_across_requests
    batch = [tuple(prompt) for prompt in prompts]
    runs = {
        "of a batch": batch,
        "of a prompt alone": batch[:1],
        "of a prompt the second time": batch[:1],
        "of a batch in another order": batch[::-1],
    }
    for temperature in (0.0, 1.0):
        settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature, "seed": seed}
        texts = [result.token_ids for result in plain.generate(list(map(list, batch)), **settings)]
        expected = dict(zip(batch, texts, strict=True))
        lengths = dict[tuple[int, ...], list[int]]()  # accepted in each step, when the prompt was first decoded
        for which, chosen in runs.items():
            for prompt, result in zip(chosen, drafted.generate(list(map(list, chosen)), **settings), strict=True):
                if result.error is not None:
                    raise AssertionError(f"{name} failed: {result.error}") from result.error
                assert result.token_ids == expected[prompt], f"{name} changed the text {which}"
                first = lengths.setdefault(prompt, result.stats.accepted_lengths)
                assert learns or result.stats.accepted_lengths == first, (
                    f"{name} drafted differently the second time, by chance or because of an earlier request: "
                    "draw from request.rng alone, or declare learns_across_requests = True"
                )
