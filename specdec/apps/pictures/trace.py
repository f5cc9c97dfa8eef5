"""The trace of a generation: the draft trees, the accepted paths and the text of each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.decoding.result import Chunk, Result
from specdec.generator import Generator
from specdec.record import Outcome, StepRecord
from specdec.requests.prompts import encode
from specdec.strategies.base import Proposer
from specdec.tree import ROOT, DraftTree, Role


@dataclass(frozen=True, slots=True)
class Branch:
    """A chain of nodes up to the next fork, the shallowest first, and the branches at the fork."""

    nodes: tuple[int, ...]
    children: tuple["Branch", ...]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a generation.

    Attributes:
        tree: the drafts that were verified, below the last committed token.
        labels: each node's token as text.
        prefix_length: the tokens before the root, which every node sees.
        path: the accepted nodes, root first.
        tokens: the committed tokens: the accepted ones and, unless the text ends before it, the bonus token.
        token_labels: the committed tokens as text.
        text: what the step added to the text; it may lag the tokens if a character takes several.
    """

    tree: DraftTree
    labels: tuple[str, ...]
    prefix_length: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    token_labels: tuple[str, ...]
    text: str

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were committed."""
        return len(self.path) - 1

    def named_by(self, node: int) -> tuple[str, ...]:
        """Return the strategies of a merge that proposed a node, each once; none if the draft isn't merged."""
        return tuple(dict.fromkeys(self.tree.proposed_by.get(node, ())))

    def branches(self, role: Role = Role.CANDIDATE) -> tuple[Branch, ...]:
        """Return the tree below the root, of nodes with any of the given roles that are connected to it."""
        children: dict[int, list[int]] = {}
        for node in self.tree.nodes_with(role):
            children.setdefault(self.tree.parents[node], []).append(node)
        return _branches(children, ROOT)

    @property
    def num_left_out(self) -> int:
        """Nodes below the root that ``branches`` leaves out: those that can't be accepted."""
        queue, num_shown = list(self.branches()), 0
        while queue:
            branch = queue.pop()
            num_shown += len(branch.nodes)
            queue += branch.children
        return len(self.tree) - 1 - num_shown

    def to_json(self) -> dict[str, Any]:
        """Return the step as plain data."""
        nodes = [
            {
                "token_id": token,
                "text": self.labels[node],
                "parent": self.tree.parents[node],
                "depth": self.tree.depths[node],
                "roles": list(role_names(self.tree, node)),
                "named_by": list(self.named_by(node)),
            }
            for node, token in enumerate(self.tree.tokens)
        ]
        return {
            "root": self.tree.tokens[ROOT],
            "prefix_length": self.prefix_length,
            "nodes": nodes,
            "path": list(self.path),
            "tokens": list(self.tokens),
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Trace:
    """A generation: the strategy as the caller named it, the prompt, the steps and the result."""

    proposer: str
    prompt: str
    steps: tuple[TraceStep, ...]
    result: Result
    is_sampled: bool = False

    @property
    def letters(self) -> dict[str, str]:
        """A unique letter for each strategy of a merge that proposed a node, from its name if possible."""
        found: dict[str, str] = {}
        for step in self.steps:
            for names in step.tree.proposed_by.values():
                for name in names:
                    if name not in found:
                        own = (*name, *"abcdefghijklmnopqrstuvwxyz")
                        found[name] = next((c for c in own if c.isalpha() and c not in found.values()), "?")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the trace as plain data; a node's parent is its index in the step's list of nodes, -1 for the root."""
        return {
            "proposer": self.proposer,
            "prompt": self.prompt,
            "text": self.result.text,
            "token_ids": list(self.result.token_ids),
            "finish_reason": self.result.finish_reason,
            "seed": self.result.seed,
            "tokens_per_step": self.result.stats.tokens_per_step,
            "steps": [step.to_json() for step in self.steps],
        }


class Recorder:
    """A generator that records traces; ``stages`` are further arguments of ``Generator``, such as ``numerics``.

    Raises:
        ModelError: if the model or tokenizer isn't supported.
        PluginError: for an unknown or misconfigured strategy.
    """

    def __init__(self, model: Any, tokenizer: Any | None, proposer: Proposer | str, **stages: Any) -> None:
        self._name = proposer if isinstance(proposer, str) else repr(proposer)
        self.generator = Generator(model, tokenizer, proposer=proposer, **stages)

    def trace(self, prompt: Any, **settings: Any) -> Trace:
        """Decode one prompt as ``Generator.generate`` does, and return the trace of all steps.

        Raises:
            SpecdecError: for a refused prompt or refused settings, or if decoding fails.
        """
        tokenizer = self.generator.tokenizer
        tokens = encode(prompt, tokenizer, self.generator.vocab_size)
        shown = str(prompt)
        if tokenizer is not None and not isinstance(prompt, str) and isinstance(prompt[0], Mapping):
            shown = str(tokenizer.decode(tokens))
        records: list[StepRecord] = []
        chunks = list(self.generator.stream(prompt, on_step=records.append, **settings))
        outcomes = [record.outcomes[0] for record in records if record.kind != "chunk"]
        steps = []
        for outcome, chunk in zip(outcomes, chunks, strict=True):
            if outcome.tree is not None:
                steps.append(_step(outcome, tokens, chunk, tokenizer))
                tokens += chunk.token_ids
        result = chunks[-1].result
        assert result is not None, "the last chunk of a request has its result"
        return Trace(self._name, shown, tuple(steps), result, is_sampled=bool(settings.get("temperature")))


def role_names(tree: DraftTree, node: int) -> tuple[str, ...]:
    """Return the names of a node's roles; the root, which is already committed, is "root" instead of a candidate."""
    roles = tree.roles[node] & ~Role.CANDIDATE if node == ROOT else tree.roles[node]
    return (*(("root",) if node == ROOT else ()), *(role.name.lower() for role in Role if role & roles and role.name))


def _step(outcome: Outcome, tokens: Sequence[int], chunk: Chunk, tokenizer: Any | None) -> TraceStep:
    """Return the step that appended the chunk's tokens to ``tokens``."""
    tree = outcome.tree
    assert tree is not None, "a step that verified nothing is left out"
    path = list(outcome.path)
    if len(outcome.tokens) == len(path) and (last := tree.child(path[-1], outcome.tokens[-1])) is not None:
        path.append(last)  # its token was committed as well, as the bonus token or the last of the text
    root = _label(tokens[-1], tokens[-2] if len(tokens) > 1 else None, tokenizer)
    drafted = [
        _label(token, tree.tokens[parent], tokenizer)
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True)
    ]
    before = (tokens[-1], *chunk.token_ids)
    committed = [_label(token, last, tokenizer) for last, token in zip(before, chunk.token_ids, strict=False)]
    return TraceStep(
        tree=tree,
        labels=(root, *drafted),
        prefix_length=len(tokens) - 1,
        path=tuple(path),
        tokens=chunk.token_ids,
        token_labels=tuple(committed),
        text=chunk.text,
    )


def _label(token: int, before: int | None, tokenizer: Any | None) -> str:
    """Return a token's text, decoded after another token to keep a leading space; its id without a tokenizer."""
    if tokenizer is None:
        return str(token)
    alone = str(tokenizer.decode([token]))
    if before is None:
        return alone
    start, both = str(tokenizer.decode([before])), str(tokenizer.decode([before, token]))
    text = both[len(start) :] if both.startswith(start) else ""
    return text or alone


def _branches(children: Mapping[int, Sequence[int]], parent: int) -> tuple[Branch, ...]:
    found = []
    for child in children.get(parent, ()):
        run = [child]
        while len(below := children.get(run[-1], ())) == 1:
            run += below
        found.append(Branch(tuple(run), _branches(children, run[-1])))
    return tuple(found)
