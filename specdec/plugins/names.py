"""The names of the plug-ins in this repository, which are known before torch is imported, and remedies for others."""

import re
from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

from specdec.errors import PluginError, nearest

PROJECT = "specdec"
NAME = re.compile(r"[\w.-]+")  # names allowed before the colon in "name:key=value"
# The built-in implementations: the class of each name, by kind.
BUILT_INS = {
    "proposers": {
        "auto": "specdec.strategies.auto.proposer:AutoProposer",
        "suffix": "specdec.strategies.sources.suffix:SuffixProposer",
        "token_recycling": "specdec.strategies.sources.recycling:TokenRecyclingProposer",
        "grammar": "specdec.strategies.sources.grammar:GrammarProposer",
        "reference": "specdec.strategies.sources.reference:ReferenceProposer",
        "autoregressive": "specdec.strategies.autoregressive:AutoregressiveProposer",
        "draft_model": "specdec.strategies.draft_model.proposer:DraftModelProposer",
        "jacobi": "specdec.strategies.jacobi:JacobiProposer",
        "lookahead": "specdec.strategies.lookahead:LookaheadProposer",
        "prompt_lookup": "specdec.strategies.prompt_lookup:PromptLookupProposer",
    },
    "verifiers": {
        "match": "specdec.verifiers.match:MatchVerifier",
        "rejection": "specdec.verifiers.rejection:RejectionVerifier",
        "traversal": "specdec.verifiers.traversal:TraversalVerifier",
        "typical": "specdec.verifiers.typical:TypicalVerifier",
    },
    "masks": {
        "dense": "specdec.masks.dense:DenseCompiler",
        "exact": "specdec.masks.exact.compiler:ExactCompiler",
        "slot_table": "specdec.masks.slot_table.compiler:SlotTableCompiler",
    },
    "constraints": {
        "json_schema": "specdec.constraints.json_schema:JsonSchema",
        "json_object": "specdec.constraints.json_schema:JsonObject",
        "regex": "specdec.constraints.regex:Regex",
        "choice": "specdec.constraints.choice:Choice",
        "grammar": "specdec.constraints.grammar:Grammar",
        "structural_tags": "specdec.constraints.structural_tags:StructuralTags",
    },
    "kernels": {
        "fbgemm": "specdec.models.weights.fbgemm:FBGEMMKernel",
        "int8": "specdec.models.weights.int8:Int8Kernel",
        "onednn": "specdec.models.weights.onednn:OneDNNKernel",
    },
    "backends": {  # tried in this order: the first two for models on GPUs
        "fused": "specdec.backends.fused.backend:FusedBackend",
        "static": "specdec.backends.static:StaticBackend",
        "hf": "specdec.backends.recorded.backend:RecordedBackend",
        "toy": "specdec.backends.toy:ToyBackend",
    },
}
# The plug-ins in this repository that have entry points: the distribution of each kind and name.
_OTHERS = {
    **{("proposers", name): PROJECT for name in ("dflash", "dspark", "eagle", "eagle3", "medusa", "mtp", "p_eagle")},
    ("backends", "distributed"): "specdec-distributed",
    ("proposers", "datastore"): "specdec-datastore",
    ("commands", "index"): "specdec-datastore",
    ("backends", "openvino"): "specdec-openvino",
    ("proposers", "successor"): "specdec-example",
    ("masks", "tree_bits"): "specdec-example",
    ("masks", "split"): "specdec-flash",
}
# Names in other engines, in small letters, that are unlike the names here.
_ELSEWHERE = {("proposers", name): "prompt_lookup" for name in ("ngram", "ngrams", "n-gram", "n-grams", "n_gram")} | {
    ("backends", name): "hf" for name in ("torch", "pytorch", "transformers", "huggingface", "cpu")
}


def built_in(kind: str, name: str) -> Any:
    """Return an implementation that comes with specdec, with default options."""
    return resolve_name(BUILT_INS[kind][name])()


def check_name(kind: str, name: str) -> None:
    """Refuse a name that none of the installed plug-ins has, before torch is imported, which takes a second.

    Nothing is refused if distributions from elsewhere are installed: their names are known once they are imported.

    Raises:
        PluginError: with what was probably meant.
    """
    if not has_others():
        known = known_names(kind)
        if name not in known and "/" not in name:
            kinds = [each for each, names in BUILT_INS.items() if name in names and each != "backends"]
            raise PluginError(unknown(kind, name, known, kinds))


def known_names(kind: str) -> set[str]:
    """Return the names of one kind that this repository's installed distributions have."""
    installed = _installed()
    return {*BUILT_INS[kind], *(name for (of, name), dist in _OTHERS.items() if of == kind and dist in installed)}


def merged_parts(given: str, names: Collection[str]) -> list[str]:
    """Split a string of proposers joined by ``+``; a part that isn't one of the names belongs to an option's value."""
    first, *others = given.split("+")
    parts = [first]
    for part in others:
        if ":" not in parts[-1] or part.partition(":")[0].strip() in names:
            parts.append(part)
        else:
            parts[-1] += f"+{part}"
    return parts


def command_entries() -> Iterable[EntryPoint]:
    """Return the entry points of commands that installed plug-ins add to the command line."""
    return entry_points(group=f"{PROJECT}.commands")


def registered() -> Iterable[EntryPoint]:
    """Return the entry points of installed plug-ins."""
    return entry_points(group=PROJECT)


def has_others() -> bool:
    """Return True if plug-ins from elsewhere than this repository are installed."""
    return not _installed() <= {*_OTHERS.values()}


def _installed() -> set[str]:
    return {"" if each.dist is None else each.dist.name for each in registered()}


def not_installed(kind: str, name: str) -> str:
    """Return that a plug-in of this repository isn't installed, and how to install it; "" for an unknown name."""
    if (kind, name) not in _OTHERS:
        return ""
    command = f"pip install ./plugins/{_OTHERS[kind, name]}"
    return f"{name} is a plug-in that isn't installed: {command}, in a copy of specdec's repository"


def unknown(
    kind: str, name: str, names: Collection[str], kinds: Iterable[str], broken: Collection[str] = (), faults: str = ""
) -> str:
    """Return the message about an unknown name: what was probably meant, and the names of its kind.

    Args:
        names: those of its kind that are installed.
        kinds: those that have a plug-in of this name.
        broken: distributions that are installed, but can't be used.
        faults: further lines, about them.
    """
    if not name:
        return f"the {kind[:-1]}'s name is empty; installed: {', '.join(sorted(names))}{faults}"
    known = [*names, *(missing for of, missing in _OTHERS if of == kind)]
    near = nearest(_ELSEWHERE.get((kind, name.casefold()), name), known, most=3)
    hint = f"did you mean {' or '.join(near)}? " if near and near != [name] else ""
    start = NAME.match(name)
    if start is not None and start[0] != name and start[0] in names:
        hint = f"options follow a colon, {start[0]}:{name[start.end() :].strip(' ,;()[]')}; "
    for each in near:
        if each not in names and _OTHERS[kind, each] not in {*broken, PROJECT}:
            hint += f"{not_installed(kind, each)}; "
    hint += "".join(f"there is a {other[:-1]} of that name; " for other in kinds)
    return f"unknown {kind[:-1]} {name!r}: {hint}installed: {', '.join(sorted(names))}{faults}"
