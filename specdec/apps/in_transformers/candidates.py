"""transformers' candidate generators as proposers, and proposers as candidate generators.

transformers' assisted generation gets its candidates, a chain of tokens after the text, from a ``CandidateGenerator``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic import Field
from transformers.generation.candidate_generator import CandidateGenerator

from specdec.errors import PluginError, RequestError
from specdec.strategies.base import Drafter, Engine, Proposer
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.tree import ROOT, Budget, DraftTree


class CandidatesProposer(Proposer):
    """Proposes the candidates of a transformers ``CandidateGenerator``, as a chain.

    ``make`` is called for each request; generators that read the target's outputs are refused.
    """

    make: Callable[[Request], Any] = Field(description="returns a new candidate generator for a request")

    def start(self, request: Request) -> Drafter:
        return _CandidatesDrafter(request, self.make(request))


class _CandidatesDrafter(Drafter):
    def __init__(self, request: Request, candidates: CandidateGenerator) -> None:
        super().__init__(request)
        name = type(candidates).__name__
        if not isinstance(candidates, CandidateGenerator):
            raise PluginError(f"make returned a {name}, which isn't a CandidateGenerator")
        if candidates.requires_model_outputs:
            raise PluginError(f"{name} reads the target's outputs, which only transformers' own loop provides")
        self._candidates = candidates

    def propose(self, budget: Budget) -> DraftTree:
        text = self._text()
        found, _ = self._candidates.get_candidates(text)
        chain = found[0, text.shape[1] :].tolist()[: min(budget.num_nodes, budget.depth)]
        tree = DraftTree(self.request.root)
        tree.add_chain(ROOT, [token for token in chain if token < self.request.vocab_size])
        return tree

    def observe(self, feedback: Feedback) -> None:
        # Only the number of scores is read: one for each candidate, and one for the bonus token.
        scores = torch.empty(1, len(feedback.tree), 0)
        self._candidates.update_candidate_strategy(self._text(), scores, len(feedback.path) - 1)

    def _text(self) -> torch.Tensor:
        return torch.tensor([list(self.request.tokens)])


class ProposerCandidates(CandidateGenerator):  # type: ignore[misc]  # transformers is untyped here
    """A candidate generator for assisted generation, from a proposer that needs tokens only; for one text.

    Args:
        proposer: such as ``PromptLookupProposer()``; the longest chain of its tree is used.
        vocab_size: of the target.
        num_tokens: the maximum number of candidates.
        seed: for proposers that draw randomly.
        tokenizer: the target's, for proposers that need one.

    Raises:
        RequestError: for a proposer that needs the target's predictions or the costs of passes.
    """

    def __init__(
        self, proposer: Proposer, vocab_size: int, num_tokens: int = 10, seed: int = 0, tokenizer: Any = None
    ) -> None:
        self._name, self._rng = type(proposer).__name__, np.random.default_rng(seed)
        if wanted := proposer.wants():
            wanted_names = ", ".join(sorted(str(what) for _, what in wanted))
            raise RequestError(
                f"{self._name} needs signals of the target ({wanted_names}), which assisted generation doesn't report"
            )
        self._engine: Engine = proposer.bind(Host.of_tokens(vocab_size, tokenizer, self._refuse))
        self._vocab_size = vocab_size
        self._budget = Budget(num_nodes=num_tokens, depth=num_tokens, num_tokens=num_tokens + 1)
        self._tokens: list[int] = []
        self._drafter: Drafter | None = None
        self._tree = DraftTree(0)

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """Return the text with candidates appended, ``(1, tokens)``."""
        tokens = input_ids[0].tolist()
        drafter = self._updated_drafter(tokens)
        self._tree = drafter.propose(self._budget).longest_chain()
        chain = torch.tensor([self._tree.tokens[1:]], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, chain], -1), None

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        """Do nothing: the accepted tokens are in the next call's text."""

    def _updated_drafter(self, tokens: list[int]) -> Drafter:
        """Return the drafter after feedback on its last tree; for another text, a new one."""
        known = len(self._tokens)
        if self._drafter is None or not known or tokens[:known] != self._tokens:
            self._tokens = list(tokens)
            self._drafter = self._engine.start(self._request())
            return self._drafter
        new, path = tokens[known:], [ROOT]
        self._tokens += new
        for token in new[:-1]:
            child = self._tree.child(path[-1], token)
            if child is None:
                break
            path.append(child)
        if new:
            feedback = Feedback(self._tree, tuple(path), tuple(new))
            self._drafter.receive(feedback)
            self._drafter.observe(feedback)
        return self._drafter

    def _request(self) -> Request:
        return Request(
            tokens=self._tokens,
            prompt_length=len(self._tokens),
            vocab_size=self._vocab_size,
            eos_token_ids=frozenset(),
            temperature=0.0,
            rng=self._rng,
        )

    def _refuse(self, *_: Any) -> Any:
        raise RequestError(f"{self._name} needs models or costs, which assisted generation doesn't provide")
