"""Stage 1: which tokens might come next."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.strategies.auto.acceptance_rates import AcceptanceRate as AcceptanceRate
    from specdec.strategies.auto.acceptance_rates import AcceptanceRates as AcceptanceRates
    from specdec.strategies.auto.growth import Growth as Growth
    from specdec.strategies.auto.loss_budget import LossBudget as LossBudget
    from specdec.strategies.auto.merged import MergedEngine as MergedEngine
    from specdec.strategies.auto.merged import MergedProposer as MergedProposer
    from specdec.strategies.auto.proposer import AutoProposer as AutoProposer
    from specdec.strategies.auto.sizer import DraftSizer as DraftSizer
    from specdec.strategies.auto.sizer import SpeedupSizer as SpeedupSizer
    from specdec.strategies.auto.source import Candidate as Candidate
    from specdec.strategies.auto.source import Source as Source
    from specdec.strategies.auto.source import SourceProposer as SourceProposer
    from specdec.strategies.autoregressive import AutoregressiveProposer as AutoregressiveProposer
    from specdec.strategies.base import Drafter as Drafter
    from specdec.strategies.base import Engine as Engine
    from specdec.strategies.base import Proposer as Proposer
    from specdec.strategies.draft_model.proposer import DraftModelProposer as DraftModelProposer
    from specdec.strategies.feedback import Feedback as Feedback
    from specdec.strategies.host import Host as Host
    from specdec.strategies.jacobi import JacobiProposer as JacobiProposer
    from specdec.strategies.lookahead import LookaheadProposer as LookaheadProposer
    from specdec.strategies.prompt_lookup import PromptLookupProposer as PromptLookupProposer
    from specdec.strategies.request import Request as Request
    from specdec.strategies.request import Retained as Retained
    from specdec.strategies.signals import Answers as Answers
    from specdec.strategies.signals import Hidden as Hidden
    from specdec.strategies.signals import HiddenAnswers as HiddenAnswers
    from specdec.strategies.signals import Nodes as Nodes
    from specdec.strategies.signals import Signal as Signal
    from specdec.strategies.signals import TopK as TopK
    from specdec.strategies.signals import TopLogits as TopLogits
    from specdec.strategies.signals import What as What
    from specdec.strategies.sources.grammar import GrammarProposer as GrammarProposer
    from specdec.strategies.sources.recycling import TokenRecyclingProposer as TokenRecyclingProposer
    from specdec.strategies.sources.reference import ReferenceProposer as ReferenceProposer
    from specdec.strategies.sources.suffix import SuffixProposer as SuffixProposer
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
