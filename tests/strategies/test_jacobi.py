"""Jacobi iteration against its definition: y_i <- f(x, y_1 … y_(i-1)), all at once."""

from specdec import ROOT, Budget, Feedback, JacobiProposer, Nodes, Request, What
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.signals import Answers

ROOMY = Budget(num_nodes=512, depth=512, num_tokens=512)


def test_guesses_move_up_by_the_accepted_length_and_take_the_predictions() -> None:
    tokens = [10, 11, 12]
    request = Request(TokenView(tokens), 3, 1000, frozenset(), 0.0, Randomness(0).stream("test"))
    drafter = JacobiProposer(n=4).start(request)
    tree = drafter.propose(ROOMY)
    assert tree.parents == [-1, 0, 1, 2, 3]
    predictions = {node: 100 + node for node in (1, 2, 3, 4)}
    tokens += [tree.tokens[1], 101]  # one guess was right; node 1's prediction is the bonus token
    drafter.observe(
        Feedback(tree, (ROOT, 1), tuple(tokens[-2:]), {(Nodes.PROBE, What.DRAW): Answers(lambda: predictions)})
    )
    following = drafter.propose(ROOMY)
    assert following.tokens[:4] == [101, 102, 103, 104], "the predictions behind the bonus token are the new guesses"
    assert len(following) == 5
    assert following.tokens[4] in tokens, "and a token of the history fills the end"


def test_a_fixed_point_is_accepted_whole() -> None:
    tokens = [3, 4]
    request = Request(TokenView(tokens), 2, 1000, frozenset(), 0.0, Randomness(0).stream("test"))
    drafter = JacobiProposer(n=3).start(request)
    tree = drafter.propose(ROOMY)
    emitted = (*tree.tokens[1:], 77)
    tokens += emitted
    predictions = Answers(lambda: {1: 0, 2: 0, 3: 77})
    drafter.observe(Feedback(tree, (0, 1, 2, 3), emitted, {(Nodes.PROBE, What.DRAW): predictions}))
    assert all(token in tokens for token in drafter.propose(ROOMY).tokens)
