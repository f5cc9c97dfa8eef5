"""The target as a strategy may use it when it is bound: model, tokenizer and costs."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec.costs import CostModel, Costs, StepCosts
from specdec.models.token_weights import embeddings_of, output_rows_of
from specdec.target import Target


@dataclass(frozen=True, slots=True)
class Host:
    """The target's model, tokenizer and costs, passed to a proposer's ``bind``.

    Attributes:
        model, tokenizer: the target's; the tokenizer may be None.
        vocab_size: entries of the target's logits.
        reads_q: True if the acceptance rule reads the distributions from which candidates are drawn.
        is_keyed: True if the text doesn't depend on the drafts, so a strategy may learn from one request for another.
        takes_trees: True if the model supports branching trees; otherwise drafts are cut to their longest chain.
        extension: returns the engine's own implementation of a contract outside the core, or None: called with the
            contract's class, as ``Backend.extension``.
        local_sources: returns the ``LocalSource`` objects of what was prepared on this machine for this very model,
            such as a trained head, by the hook ``specdec_local_sources``, and raises what that raises; ``auto`` merges
            them.
        num_layers: the number of layers that ``Hidden`` may refer to, besides the embeddings; None if unknown.
        load: loads a model and its tokenizer from a folder or hub name, as the target is loaded; called with the name
            and a tokenizer or None. Raises ModelError.
        open: returns a target for another model, with a cache of its own; it is closed after the engine. Raises
            ModelError.
        costs: returns the costs of the target's passes here, by number of nodes. The first call measures them, in about
            a second, unless a request decodes: then they are nominal. Call it while binding.
        cost_model: the engine's model of what steps cost, ``Backend.cost_model``.
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
    cost_model: Callable[[Costs, int, bool], CostModel] = StepCosts
    idle_target: Callable[[], Target | None] = lambda: None
    extension: Callable[[type[Any]], Any] = lambda _: None
    local_sources: Callable[[], Sequence[Any]] = tuple
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
