"""Hypothesis strategies shared by the laws: trees, laws, prompts and budgets."""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from specdec import ROOT, Budget, DraftModelProposer, DraftTree, Proposer, ToyModel, demo
from specdec.backends.output import OutputRow
from specdec.backends.toy import TokenDistribution
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.heads.strategies.medusa import MedusaProposer
from specdec.plugins.registry import load_plugins
from specdec.target import CacheRow, PlannedPass, Target
from tests.support.fitted_heads import eagle_folder, medusa_folder

REGISTRY = load_plugins()


def names_of(kind: str) -> list[str]:
    """Everything registered under a contract, by the name that finds it."""
    return [REGISTRY.name_of(plugin) for plugin in REGISTRY.of_kind(kind)]


# Trained heads, which need a model with hidden states; each with its strategy for the built-in model.
HEADS: dict[str, Callable[[], Proposer]] = {
    "eagle": lambda: EagleProposer(head=eagle_folder()),
    "eagle3": lambda: Eagle3Proposer(head=demo.head_folder()),
    "medusa": lambda: MedusaProposer(head=medusa_folder()),
}

OF_OTHER_MODELS = "dflash", "dspark", "mtp", "p_eagle"  # whose own tests bring a model

# Every registered strategy, with options that reach its corners beside its defaults.
PROPOSERS = [
    *(name for name in names_of("proposers") if name not in (*HEADS, *OF_OTHER_MODELS)),
    "jacobi:n=1",
    "jacobi:n=5,noise_aware=false",
    "lookahead:N=2,W=3,G=2",
    "lookahead:N=3,W=1,G=1",
    "lookahead:N=3,W=4,G=0",
    "lookahead:N=4,W=0,G=-1",
    "lookahead:N=4,W=5,G=3,pool_from_prompt=false,verify_window=false",
    "prompt_lookup:max_ngram=2,num_tokens=4,num_matches=3",
    "prompt_lookup:max_ngram=1,num_tokens=1,prefer=first",
    "suffix:depth=2,num_nodes=3",
    "token_recycling:k=2,num_pairs=4,min_probability=0",
    "suffix+token_recycling",
    "prompt_lookup+lookahead:N=3,W=0,G=2+suffix",
    *(
        name
        for name in ("datastore:depth=1,min_probability=0", "suffix+token_recycling+datastore")
        if "datastore" in names_of("proposers")
    ),
]


def proposer_of(name: str, vocab_size: int, law: TokenDistribution | None = None) -> Proposer:
    """The strategy behind a name; a draft model is a toy one of the same vocabulary, a head the built-in model's."""
    if name == "draft_model":
        drafter = ToyModel.random(vocab_size, order=1, seed=9) if law is None else ToyModel(law, vocab_size)
        return DraftModelProposer(model=drafter, num_tokens=3, width=2)
    if name in HEADS:
        return HEADS[name]()
    if "datastore" in name:
        name = re.sub("datastore:?", f"datastore:path={store_of(vocab_size)},", name)
    made: Proposer = REGISTRY.make("proposers", name)
    return made


@cache
def store_of(vocab_size: int) -> Path:
    """An index of texts with every token of a vocabulary, each of which repeats itself in one of them."""
    from specdec_datastore import build_index

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    drawn = np.random.default_rng(vocab_size).integers(vocab_size, size=(4, 60)).tolist()
    path = Path(folder) / "index"
    build_index(path, [*drawn, *([token] * 9 for token in range(vocab_size))])
    return path


VERIFIERS = [REGISTRY.name_of(rule) for rule in REGISTRY.of_kind("verifiers") if rule.cls.lossless]  # type: ignore[attr-defined]
MASKS = [*names_of("masks"), *(["split:least_prefix=1"] if "split" in names_of("masks") else [])]


@st.composite
def toy_models(draw: st.DrawFn) -> ToyModel:
    """Laws of different vocabularies, orders and sharpness."""
    return ToyModel.random(
        vocab_size=draw(st.integers(2, 9)),
        order=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 1000)),
        sharpness=draw(st.sampled_from([0.5, 2.0, 6.0])),
    )


def prompts(vocab_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=12)


budgets = st.builds(Budget, num_nodes=st.integers(0, 40), depth=st.integers(0, 12), num_tokens=st.integers(1, 30))


def law_of(model: ToyModel) -> Callable[[tuple[int, ...]], Sequence[float]]:
    return model.probs


def path_to(tree: DraftTree, node: int) -> list[int]:
    """The nodes from the root to ``node``."""
    path = [node]
    while path[0] != ROOT:
        path.insert(0, tree.parents[path[0]])
    return path


def random_tree(rng: np.random.Generator, vocab_size: int, num_nodes: int, root: int | None = None) -> DraftTree:
    """A tree of distinct tokens, so that no nodes merge, whose nodes hang below one of the last three."""
    tokens = rng.permutation(np.arange(1, vocab_size))[: num_nodes + 1].tolist()
    tree = DraftTree(tokens[0] if root is None else root)
    for index, token in enumerate(tokens[1:]):
        tree.add(int(rng.integers(max(0, index - 2), index + 1)), token)
    return tree


def open_row(target: Target, tokens: Sequence[int]) -> CacheRow:
    """A row with these committed tokens."""
    row = target.open(capacity=64)
    target.read_all(row, tokens)
    return row


def end_of_prompt(
    target: Target, row: CacheRow, prompt: Sequence[int], tree: DraftTree
) -> tuple[PlannedPass, OutputRow]:
    """The pass of a prompt's last tokens with a tree behind them, once its whole chunks are read; and its answers."""
    while chunk := target.chunk_after(row, [*prompt, tree.tokens[ROOT]]):
        target.read(row, chunk)
    planned = target.compile({row: tree}, {row: prompt[row.length :]})
    return planned, target.forward(planned).rows[row]
