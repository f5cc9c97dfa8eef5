"""A complete third-party strategy: guess that each token is followed by what followed it last time."""

from itertools import pairwise

from pydantic import Field

from specdec import ROOT, Budget, Drafter, DraftTree, Feedback, Proposer, Request, hookimpl


class SuccessorProposer(Proposer):
    """Configuration: a chain of up to ``length`` successors."""

    length: int = Field(default=4, ge=1, description="tokens proposed per step")

    def start(self, request: Request) -> Drafter:
        return SuccessorDrafter(request, self.length)


class SuccessorDrafter(Drafter):
    """One request's state: for every token seen, its latest successor."""

    def __init__(self, request: Request, length: int) -> None:
        super().__init__(request)
        self.length = length
        self.successor = dict(pairwise(request.tokens))

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        node, token = ROOT, self.request.root
        for _ in range(min(self.length, budget.depth, budget.num_nodes)):
            if token not in self.successor:
                break
            token = self.successor[token]
            node = tree.add(node, token)
        return tree

    def observe(self, feedback: Feedback) -> None:
        recent = self.request.tokens[-len(feedback.tokens) - 1 :]
        self.successor.update(pairwise(recent))


@hookimpl
def specdec_proposers() -> dict[str, type[Proposer]]:
    return {"successor": SuccessorProposer}
