"""A user's code, as the README and the guides write it. It isn't run: mypy and pyright read it, without plug-ins."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, assert_type

import torch
from pydantic import Field

import specdec
from specdec import (
    ROOT,
    Budget,
    Drafter,
    DraftModelProposer,
    DraftTree,
    Engine,
    Feedback,
    Generator,
    Host,
    JacobiProposer,
    LookaheadProposer,
    Nodes,
    PromptLookupProposer,
    Proposer,
    Request,
    Result,
    SpecdecError,
    ToyModel,
    Verifier,
    What,
    demo,
    hookimpl,
)
from specdec.backends import NO_OPTIONS, BackendOptions, ToyBackend
from specdec.decoding import Chunk
from specdec.layout import Compiler
from specdec.masks import DenseCompiler, MaskCompiler
from specdec.settings import Settings
from specdec.strategies import MergedProposer, SuffixProposer
from specdec.target import Target
from specdec.testing import check_backend, check_proposer, toy_tokenizer
from specdec.verifiers import MatchVerifier, TypicalVerifier


def generators() -> Iterator[Generator]:
    model, tokenizer = demo.load()
    yield Generator("HuggingFaceTB/SmolLM2-135M-Instruct")
    yield Generator(model, tokenizer, proposer="lookahead:N=5,W=7,G=7", numerics="fast", weights="stock")
    yield Generator(model, tokenizer, proposer=LookaheadProposer(N=5, W=15, G=15), max_batch_size=4)
    yield Generator(model, proposer=PromptLookupProposer(num_tokens=4), verifier=MatchVerifier())
    yield Generator(model, proposer=DraftModelProposer(layers=2), verifier=TypicalVerifier(epsilon=0.1))
    yield Generator(model, proposer=DraftModelProposer(model="drafter", siblings="without_replacement", width=2))
    yield Generator(model, proposer=MergedProposer([SuffixProposer(depth=8), JacobiProposer(n=4)]))
    yield Generator(ToyModel.random(), proposer=LookaheadProposer())


def use(generator: Generator) -> str:
    result = generator.generate("The seven wonders", max_new_tokens=64, temperature=0.7, top_p=0.9, seed=1)
    assert_type(result, Result)
    several = generator.generate(["One prompt", "another"], max_new_tokens=16, seed=[1, 2])
    assert_type(several, list[Result])
    assert_type(generator.generate([1, 2, 3]).token_ids, tuple[int, ...])
    chat = generator.generate([{"role": "user", "content": "What is the capital of France?"}], max_new_tokens=8)
    print(chat.text, result.finish_reason, result.stats.tokens_per_step, result.stats.seconds["verify"])
    settings: dict[str, Any] = {"max_new_tokens": 64, "temperature": 1.0}
    for chunk in generator.stream("The seven wonders", stop=["\n"], **settings):
        assert_type(chunk, Chunk)
        print(chunk.text, end="")
    encoded = generator.tokenizer("The seven wonders", return_tensors="pt")
    generator.model.generate(**encoded, custom_generate=specdec.custom_generate("prompt_lookup", numerics="fast"))
    with generator.context() as context:
        generator.generate("# heapq", context=context)
    with generator, generator.open_batch(max_batch_size=2) as batch:
        batch.advance()
    return result.text or ""


def configure(verifier: Verifier) -> Settings:
    try:
        print(verifier.lossless, LookaheadProposer(N=5).model_copy(update={"W": 3}).W + 1)
        return Settings(max_new_tokens=8, temperature=0.7, top_k=40)
    except SpecdecError as error:
        print(error)
        return Settings()


class SuccessorProposer(Proposer):
    """The strategy of the guide."""

    length: int = Field(default=4, ge=1, description="tokens proposed per step")
    learns_across_requests = True

    def wants(self) -> frozenset[tuple[Nodes, What]]:
        return frozenset({(Nodes.CANDIDATE, What.ARGMAX)})

    def bind(self, host: Host) -> Engine:
        shared = dict[int, int]()
        return Engine(lambda request: SuccessorDrafter(request, self.length, shared))


class PlainProposer(Proposer):
    """A strategy without an engine of its own."""

    length: int = 4

    def start(self, request: Request) -> Drafter:
        return SuccessorDrafter(request, self.length, {})


class SuccessorDrafter(Drafter):
    """One request's state."""

    def __init__(self, request: Request, length: int, shared: dict[int, int]) -> None:
        super().__init__(request)
        self.length, self.successor = length, shared
        self.successor.update(pairwise(request.tokens))

    def propose(self, budget: Budget) -> DraftTree:
        tree, node, token = DraftTree(self.request.root), ROOT, self.request.root
        for _ in range(min(self.length, budget.depth, budget.num_nodes)):
            if token not in self.successor:
                break
            token = self.successor[token]
            node = tree.add(node, token)
        return tree

    def observe(self, feedback: Feedback) -> None:
        self.successor.update(pairwise(self.request.tokens[-len(feedback.tokens) - 1 :]))
        for node, token in feedback.predictions.items():
            self.successor[feedback.tree.tokens[node]] = token


class OwnCompiler(DenseCompiler):
    """A mask compiler with an attention function of its own."""

    attention = "own"
    bit_exact = True


class OwnBackend(ToyBackend):
    """An engine that passes its mask compiler on."""

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: BackendOptions = NO_OPTIONS) -> ToyBackend:
        return super().load(model, compiler, options)


def drive(model: ToyModel) -> list[Target]:
    compilers: list[MaskCompiler] = [DenseCompiler(), OwnCompiler()]
    check_backend(OwnBackend.load(model, DenseCompiler()), lambda text: torch.zeros(len(text)), compiler=OwnCompiler())
    return [Target(OwnBackend.load(model, compiler), compiler) for compiler in compilers]


@hookimpl
def specdec_masks() -> dict[str, type[MaskCompiler]]:
    """Name the mask compiler."""
    return {"own": OwnCompiler}


@hookimpl
def specdec_proposers() -> dict[str, type[Proposer]]:
    """Name the strategy."""
    return {"successor": SuccessorProposer}


def test_the_strategy_keeps_its_contract() -> None:
    check_proposer(SuccessorProposer(length=6), ToyModel.random(), [[0, 1], [3]], tokenizer=toy_tokenizer(8))
