"""A proposer that is bound to the target, as the loop uses it."""

from collections.abc import Iterable, Sequence

from specdec.errors import close_all
from specdec.strategies.base import Engine
from specdec.strategies.signals import Hidden, Nodes, Signal, TopLogits
from specdec.target import Target
from specdec.tree import Role


class Strategy:
    """A proposer that is bound to the target.

    Args:
        wants: the signals that its drafters observe.
        targets: other models that it drives, in the order in which they were opened; it may open more later.
        reads_reference: its drafters read ``Request.reference``.

    Attributes:
        author: its name in errors.
        about_trees, about_prompts: the signals of each kind.
        tree_layers, prompt_layers: the layers whose hidden states are signals of each kind.
        read_roles: of the nodes whose logits a pass returns, besides the root; None for all nodes.
        reads_prompts: True if its drafters need the signals at all positions of a prompt: received now, or retained by
            an earlier request.
        reads_prompt_logits: True if any of these signals needs logits.
        num_top: the largest ``k`` of its ``TopLogits`` about trees.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        wants: frozenset[Signal],
        targets: Sequence[Target] = (),
        reads_reference: bool = False,
    ) -> None:
        self.name, self.engine, self.targets, self.reads_reference = name, engine, targets, reads_reference
        self.author = f"proposer {name}"
        self.about_prompts = tuple(signal for signal in wants if signal[0] is Nodes.PROMPT)
        self.about_trees = tuple(wants.difference(self.about_prompts))
        self.prompt_layers, self.tree_layers = layers_of(self.about_prompts), layers_of(self.about_trees)
        self.reads_prompts = bool(self.about_prompts)
        self.reads_prompt_logits = any(not isinstance(what, Hidden) for _, what in self.about_prompts)
        read = {nodes for nodes, what in self.about_trees if not isinstance(what, Hidden)}
        roles = Role.CANDIDATE | Role.PROBE if Nodes.PROBE in read else Role.CANDIDATE
        self.read_roles = None if Nodes.ALL in read else roles
        self.num_top = max((what.k for _, what in self.about_trees if isinstance(what, TopLogits)), default=0)

    def close(self) -> None:
        """Close the engine, and then the models that it drove."""
        close_all([*self.targets, self.engine])


def layers_of(signals: Iterable[Signal]) -> frozenset[int]:
    """The layers whose hidden states are among some signals."""
    return frozenset(layer for _, what in signals if isinstance(what, Hidden) for layer in what.layers)
