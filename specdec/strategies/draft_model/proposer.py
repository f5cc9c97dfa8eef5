"""A draft model: a smaller model drafts, and the target verifies.

Leviathan et al. 2022, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from specdec.errors import ModelError, plural
from specdec.models.encoder_decoders import decoder_of
from specdec.models.loading import checked_name
from specdec.models.unwrapping import unwrapped
from specdec.sampling.distributions import NodeOutputs
from specdec.strategies.base import BatchDrafter, Drafter, Engine, Proposer, Tunable
from specdec.strategies.draft_model.drafts import (
    BeamDraft,
    BeamOptions,
    ChainDraft,
    Draft,
    DraftDistribution,
    TextDraft,
)
from specdec.strategies.draft_model.vocabulary import DraftVocabulary, SameVocabulary, TextVocabulary, vocabulary_of
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.signals import Answers, Signal
from specdec.target import CacheRow, Target
from specdec.tree import Budget, DraftTree


class DraftModelProposer(Proposer):
    """Drafts with a smaller model that has a KV cache of its own.

    Under a rule that reads q (``rejection``, ``traversal``) and at a temperature above 0, candidates are drawn from the
    draft model's distribution, warped as the target's is. Otherwise they are its most likely tokens. Under ``match``
    the noise of each position is added to the draft model's logits as well, so that it predicts what the target will
    *draw*; ``confidence`` then applies to that prediction.

    >>> from specdec import ToyModel
    >>> from specdec.testing import first_drafts
    >>> first_drafts(DraftModelProposer(model=ToyModel.counting(), num_tokens=3), prompt=[0, 1])
    [DraftTree(tokens=[1, 2, 3, 4], parents=[-1, 0, 1, 2])]
    >>> first_drafts(DraftModelProposer(model=ToyModel.counting(), width=2, num_tokens=1), prompt=[0, 1])
    [DraftTree(tokens=[1, 2, 3], parents=[-1, 0, 0])]
    """

    tunable: ClassVar[Tunable] = {
        "num_tokens": (1, 2, 3, 4, 5, 7, 10, 15, 20),
        "confidence": (0.0, 0.2, 0.4, 0.6, 0.8),
    }

    model: Any = Field(default=None, description="draft model, or its folder or hub name; not with layers", repr=False)
    tokenizer: Any = Field(default=None, description="the draft model's, if it differs from the target's", repr=False)
    layers: int | None = Field(default=None, ge=1, description="draft with the target's own first layers (early exit)")
    num_tokens: int = Field(default=5, ge=1, description="depth of the draft")
    width: int = Field(default=1, ge=1, description="candidates per node, and nodes expanded per level; 1: a chain")
    num_nodes: int = Field(
        default=24, ge=1, description="maximum nodes of a tree: the most likely if chosen, the first if sampled"
    )
    siblings: Literal["chosen", "without_replacement", "with_replacement"] = Field(
        default="chosen", description="siblings of a sampled candidate: the most likely tokens, or further draws"
    )
    confidence: float = Field(default=0.0, ge=0.0, lt=1.0, description="stop after a token of lower probability")
    vocabulary: Literal["same", "shared", "text"] = Field(
        default="same", description="what the two tokenizers share: ids, token strings, or text alone"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.model is None) == (self.layers is None):
            raise ValueError("give either a draft model (model=PATH) or a number of the target's layers (layers=2)")
        if self.layers is not None and self.vocabulary != "same":
            raise ValueError(
                f"vocabulary={self.vocabulary!r} is for another model's tokenizer; layers share the target's"
            )
        if self.layers is not None and self.tokenizer is not None:
            raise ValueError("tokenizer is for another model; layers share the target's")
        if self.vocabulary == "text" and self.width != 1:
            raise ValueError("vocabulary='text' drafts chains only: leave width at 1")
        if self.width > self.num_nodes:
            raise ValueError(
                f"width={self.width} is above num_nodes={self.num_nodes}, which leaves no room for a level"
            )
        for name in ("num_nodes", "siblings"):
            if self.width == 1 and name in self.model_fields_set:
                raise ValueError(f"{name} is for trees: set width above 1, or leave {name} out")
        return self

    @property
    def reads_layers(self) -> bool:
        return self.layers is not None

    def check_files(self) -> None:
        if isinstance(self.model, str):
            checked_name(self.model)

    def bind(self, host: Host) -> Engine:
        given, tokenizer = _drafter(self, host)
        model = _decoder(given, host)
        target = host.open(model)
        if self.width > 1 and not target.shapes.takes_trees:
            raise ModelError(
                f"width={self.width}: the draft model, a {type(model).__name__}, supports chains only; use width=1"
            )
        vocabulary = vocabulary_of(
            self.vocabulary, host, target.shapes.vocab_size, tokenizer, self.tokenizer is not None
        )
        return _DraftModelEngine(self, model, target, vocabulary, reads_q=host.reads_q)


class _ModelDrafter(BatchDrafter):
    """One request's row of the draft model's cache, and the ids in it."""

    def __init__(self, request: Request, engine: "_DraftModelEngine") -> None:
        super().__init__(request, engine)
        self._engine = engine
        self.row: CacheRow | None = None
        self.cached: list[int] = []
        self.num_agreed = 0  # how many of these are known to be committed tokens
        self.has_drafted = False

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        if not self.has_drafted:  # the first draft has read the rest of the prompt
            self._engine.read(self, num_tokens, budget)

    def stop(self) -> None:
        self._engine.release(self)


class _DraftModelEngine(Engine):
    """The draft model with a cache row for each request; drafts for the whole batch at once."""

    def __init__(
        self,
        config: DraftModelProposer,
        model: Any,
        target: Target,
        vocabulary: DraftVocabulary | TextVocabulary,
        reads_q: bool,
    ) -> None:
        self._config, self._model, self._target = config, model, target
        self._vocabulary, self._reads_q = vocabulary, reads_q

    def start(self, request: Request) -> Drafter:
        return _ModelDrafter(request, self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """Extend all drafts together until each is done; an error ends its own request's draft only."""
        drafts: dict[_ModelDrafter, Draft] = {}
        failed: dict[Drafter, Exception] = {}
        for drafter, budget in zip(drafters, budgets, strict=True):
            assert isinstance(drafter, _ModelDrafter), "drafters were started here"
            try:
                if (draft := self._begin(drafter, budget)) is not None:
                    drafts[drafter] = draft
            except Exception as error:  # a model's own code
                failed[drafter] = error
        while writing := {drafter: draft for drafter, draft in drafts.items() if not draft.is_done}:
            outputs = self._forward(writing)
            for drafter, draft in writing.items():
                try:
                    draft.receive(outputs[drafter])
                except Exception as error:  # broken weights: they fail their own request
                    failed[drafter], draft.is_done = error, True
        return [failed[each] if each in failed else _tree(drafts.get(each), each.request) for each in drafters]  # type: ignore[call-overload]  # as above

    def read(self, drafter: _ModelDrafter, num_tokens: int, budget: Budget) -> None:
        """Prefill the first tokens of a prompt, in whole chunks."""
        request = drafter.request
        if drafter.row is None:
            whole = self._vocabulary.context(request.text())
            if self._num_free(whole) < 1 or not self._knows(whole):
                return  # nothing will be drafted
            drafter.row = self._open(request, len(whole) + budget.num_tokens)
        self._synchronise(drafter, drafter.row, self._vocabulary.context(request.text(num_tokens + 1)))

    def _begin(self, drafter: _ModelDrafter, budget: Budget) -> Draft | None:
        """Bring the request's row up to date with the text, except for the tokens that the first pass will forward.

        None if nothing can be drafted.
        """
        config, request, drafter.has_drafted = self._config, drafter.request, True
        context = self._vocabulary.context(request.text())
        num_tokens = min(config.num_tokens, budget.depth, budget.num_nodes, budget.num_tokens - 1)
        num_tokens = min(num_tokens, self._num_free(context))
        if num_tokens < 1 or len(context) < 2 or not self._knows(context[min(drafter.num_agreed, len(context)) :]):
            return None
        if drafter.row is None:
            drafter.row = self._open(request, len(context) + budget.num_tokens)
        pending = self._synchronise(drafter, drafter.row, context)
        if isinstance(self._vocabulary, TextVocabulary):
            return TextDraft(request, pending, num_tokens, self._vocabulary, context, config.confidence)
        distribution = DraftDistribution(request, self._vocabulary, samples=self._reads_q and request.temperature > 0.0)
        if config.width == 1:
            return ChainDraft(request, pending, num_tokens, distribution, config.confidence)
        num_nodes = min(config.num_nodes, budget.num_nodes)
        options = BeamOptions(config.width, num_nodes, config.confidence, config.siblings)
        return BeamDraft(request, pending, num_tokens, distribution, options)

    def _open(self, request: Request, capacity: int) -> CacheRow:
        row = self._target.open(capacity)
        if request.inputs is not None and (inputs := request.inputs.for_draft_model(self._model)):
            self._target.set_inputs(row, inputs)
        return row

    def _num_free(self, context: Sequence[int]) -> int:
        """Return the number of positions left after a text."""
        return self._target.shapes.context_length - len(context)

    def _knows(self, tokens: Sequence[int]) -> bool:
        """Return True if the draft model has these ids; it may lack those of the target's padding."""
        return all(token < self._target.shapes.vocab_size for token in tokens)

    def _synchronise(self, drafter: _ModelDrafter, row: CacheRow, context: Sequence[int]) -> Sequence[int]:
        """Roll the row back to where it agrees with the text, and prefill; return the missing ids, at least one."""
        cached = drafter.cached
        common = drafter.num_agreed if isinstance(self._vocabulary, SameVocabulary) else 0
        while common < min(len(cached), len(context) - 1) and cached[common] == context[common]:
            common += 1
        if common < len(cached):
            self._target.rollback(row, common)
            del cached[common:]
        while chunk := self._target.chunk_after(row, context):
            self._target.read(row, chunk)
            cached += chunk
        drafter.num_agreed = len(cached)
        return context[len(cached) :]

    def _forward(self, drafts: Mapping[_ModelDrafter, Draft]) -> Mapping[_ModelDrafter, NodeOutputs]:
        """Run one pass of the draft model over the nodes that each draft needs next."""
        rows = {drafter: drafter.row for drafter in drafts if drafter.row is not None}
        planned = self._target.compile(
            {row: drafts[drafter].next_tree for drafter, row in rows.items()},
            {row: drafts[drafter].uncached_prefix for drafter, row in rows.items()},
        )
        output = self._target.forward(planned)
        output.fetch({row: drafts[drafter].next_tree.nodes_wanted() for drafter, row in rows.items()})
        self._target.commit(planned, {row: drafts[drafter].keeps for drafter, row in rows.items()})
        for drafter, draft in drafts.items():
            drafter.cached += [*draft.uncached_prefix, *(draft.next_tree.tokens[node] for node in draft.keeps)]
            draft.uncached_prefix = ()
        return {drafter: output.rows[row] for drafter, row in rows.items()}

    def release(self, drafter: _ModelDrafter) -> None:
        """Close a request's row."""
        if drafter.row is not None:
            self._target.release(drafter.row)
            drafter.row = None


def _tree(draft: Draft | None, request: Request) -> DraftTree | Exception:
    try:
        return DraftTree(request.root) if draft is None else draft.tree()
    except Exception as error:  # a tokenizer's own code
        return error


def _drafter(config: DraftModelProposer, host: Host) -> tuple[Any, Any]:
    """Return the draft model and its tokenizer (default: the target's)."""
    if config.layers is not None:
        from specdec.strategies.draft_model.early_exit import first_layers

        return first_layers(host.model, config.layers), host.tokenizer
    if isinstance(config.model, str):
        return host.load(config.model, config.tokenizer)
    return unwrapped(config.model), config.tokenizer if config.tokenizer is not None else host.tokenizer


def _decoder(model: Any, host: Host) -> Any:
    """Return a draft model as passes run it; that of an encoder-decoder reads what the target's encoder has computed.

    Raises:
        ModelError: if it can't.
    """
    decoder = decoder_of(model)
    size, of_target = (getattr(each, "state_size", None) for each in (decoder, host.model))
    if size in (None, of_target):
        return decoder
    has = "has no encoder" if of_target is None else f"encodes to {of_target}"
    raise ModelError(
        f"the draft model's decoder reads an encoder's states of {plural(size, 'number')}, and the target {has}: give "
        "a draft model that shares the target's encoder, or one of text alone"
    )
