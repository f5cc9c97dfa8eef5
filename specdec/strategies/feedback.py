"""The outcome of a proposal, as its drafter receives it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec.strategies.signals import Answers, Signal, What
from specdec.tree import DraftTree


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
