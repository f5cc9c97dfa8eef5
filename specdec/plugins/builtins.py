"""The plug-ins that come with specdec, registered in the same way as third-party ones."""

from collections.abc import Mapping

from specdec.backends.base import Backend
from specdec.constraints.base import Constraint
from specdec.constraints.choice import Choice
from specdec.constraints.grammar import Grammar
from specdec.constraints.json_object import JsonObject
from specdec.constraints.json_schema import JsonSchema
from specdec.constraints.regex import Regex
from specdec.constraints.structural_tags import StructuralTags
from specdec.masks.base import MaskCompiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.masks.split.compiler import SplitCompiler
from specdec.plugins.hookspecs import hookimpl
from specdec.strategies.auto import AutoProposer
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.base import Proposer
from specdec.strategies.draft_model.proposer import DraftModelProposer
from specdec.strategies.eagle import EagleProposer
from specdec.strategies.eagle3 import Eagle3Proposer
from specdec.strategies.jacobi import JacobiProposer
from specdec.strategies.lookahead import LookaheadProposer
from specdec.strategies.medusa.proposer import MedusaProposer
from specdec.strategies.mtp import MtpProposer
from specdec.strategies.p_eagle import PEagleProposer
from specdec.strategies.prompt_lookup import PromptLookupProposer
from specdec.strategies.sources.datastore import DatastoreProposer
from specdec.strategies.sources.grammar import GrammarProposer
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer
from specdec.verifiers.base import Verifier
from specdec.verifiers.match import MatchVerifier
from specdec.verifiers.rejection import RejectionVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier
from specdec.weights.base import Kernel
from specdec.weights.fbgemm import FBGEMMKernel
from specdec.weights.int8 import Int8Kernel
from specdec.weights.onednn import OneDNNKernel


@hookimpl
def specdec_proposers() -> Mapping[str, type[Proposer]]:
    return {
        "auto": AutoProposer,
        "suffix": SuffixProposer,
        "token_recycling": TokenRecyclingProposer,
        "datastore": DatastoreProposer,
        "grammar": GrammarProposer,
        "autoregressive": AutoregressiveProposer,
        "draft_model": DraftModelProposer,
        "eagle": EagleProposer,
        "eagle3": Eagle3Proposer,
        "jacobi": JacobiProposer,
        "lookahead": LookaheadProposer,
        "medusa": MedusaProposer,
        "mtp": MtpProposer,
        "p_eagle": PEagleProposer,
        "prompt_lookup": PromptLookupProposer,
    }


@hookimpl
def specdec_verifiers() -> Mapping[str, type[Verifier]]:
    return {
        "match": MatchVerifier,
        "rejection": RejectionVerifier,
        "traversal": TraversalVerifier,
        "typical": TypicalVerifier,
    }


@hookimpl
def specdec_masks() -> Mapping[str, type[MaskCompiler]]:
    return {"dense": DenseCompiler, "exact": ExactCompiler, "slot_table": SlotTableCompiler, "split": SplitCompiler}


@hookimpl
def specdec_constraints() -> Mapping[str, type[Constraint]]:
    return {
        "json_schema": JsonSchema,
        "json_object": JsonObject,
        "regex": Regex,
        "choice": Choice,
        "grammar": Grammar,
        "structural_tags": StructuralTags,
    }


@hookimpl
def specdec_kernels() -> Mapping[str, type[Kernel]]:
    return {"fbgemm": FBGEMMKernel, "int8": Int8Kernel, "onednn": OneDNNKernel}


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    # Imported here because transformers' model code takes seconds to import; a registry calls this last.
    from specdec.backends.hf import HFBackend
    from specdec.backends.static import StaticBackend
    from specdec.backends.toy import ToyBackend

    return {"static": StaticBackend, "hf": HFBackend, "toy": ToyBackend}  # for models on GPUs "static" is tried first
