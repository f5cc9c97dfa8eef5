"""Prompts that are read in the passes of others: the text has the same bits as alone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec import Drafter, DraftTree, Feedback, Generator, Nodes, PluginError, Request, ToyModel, What
from specdec.backends import supported_passes
from specdec.record import StepRecord
from specdec.strategies.base import Engine
from specdec.strategies.signals import Answers, Hidden, Signal, TopLogits
from specdec.tree import Budget
from tests.support import families
from tests.support.scripted import Scripted

SETTINGS: dict[str, Any] = {"max_new_tokens": 14, "temperature": 1.0, "seed": 5}
ABOUT = What.ARGMAX, TopLogits(2), Hidden((-1,))
PROMPTS = [[5, 9, 2], [3 + index * 7 % 40 for index in range(45)], [1, 2], [4 + index % 9 for index in range(30)]]


def packing(generator: Generator, chunk: int = 8) -> Generator:
    """The same generator with the passes of a backend that packs rows."""
    backend = generator._binding.target.backend
    backend.shapes = replace(backend.shapes, chunk=chunk, packs_rows=True)
    return generator


def is_mixed(record: StepRecord) -> bool:
    return len({outcome.is_chunk for outcome in record.outcomes}) == 2


def by_turns() -> Iterator[Any]:
    """Yield each family, strategy and dtype; by day each pair of a family and a strategy in one dtype."""
    for i, family in enumerate(["llama", "gpt2", "gemma3"]):
        for j, proposer in enumerate(["autoregressive", "lookahead:N=3,W=3,G=3", "suffix+token_recycling"]):
            for k, dtype in enumerate([torch.float32, torch.bfloat16]):
                marks = [pytest.mark.nightly] if (i + j + k) % 2 else []
                yield pytest.param(family, proposer, dtype, marks=marks)


@pytest.mark.parametrize(("family", "proposer", "dtype"), [*by_turns()])
def test_in_exact_numerics_a_chunk_in_the_pass_of_others_changes_no_bit(
    family: str, dtype: torch.dtype, proposer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are cut at positions of the text, so a prompt's keys and values don't depend on who shares its pass."""
    monkeypatch.setattr(supported_passes, "PREFILL_CHUNK", 8)
    model = families.make(*families.TREES[family]).to(dtype)
    plain, alone = Generator(model, proposer="autoregressive", numerics="exact"), list[Any]()
    for prompt in PROMPTS:
        alone += decoded(plain, [prompt])
    shared, records = packing(Generator(model, proposer=proposer, numerics="exact")), list[StepRecord]()
    for (tokens, logits), (own_tokens, own_logits) in zip(decoded(shared, PROMPTS, records), alone, strict=True):
        assert tokens == own_tokens
        assert torch.equal(logits, own_logits)
    assert any(map(is_mixed, records))


def decoded(
    generator: Generator, prompts: list[list[int]], records: list[StepRecord] | None = None
) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """The new tokens of each prompt with their logits."""
    records = [] if records is None else records
    results = generator.generate(prompts, on_step=records.append, keeps_logits=True, **SETTINGS)
    logits = [
        [each for record in records for one in record.outcomes if one.request.index == index for each in one.logits]
        for index in range(len(prompts))
    ]
    return [(result.token_ids, torch.stack(own)) for result, own in zip(results, logits, strict=True)]


class Curious(Scripted):
    """Wants to hear about prompts and trees, and notes both."""

    heard: Any

    def wants(self) -> frozenset[Signal]:
        return frozenset((nodes, what) for nodes in (Nodes.PROMPT, Nodes.PATH) for what in ABOUT)

    def bind(self, host: Any) -> Engine:
        return Engine(lambda request: _Curious(request, self.heard))


class _Curious(Drafter):
    def __init__(self, request: Request, heard: dict[int, list[Any]]) -> None:
        super().__init__(request)
        self.heard = heard.setdefault(len(request.tokens), [])

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        self.heard.append((num_tokens, {signal: dict(answers) for signal, answers in signals.items()}))

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        tree.add_chain(0, [1, 2][: budget.depth])
        return tree

    def observe(self, feedback: Feedback) -> None:
        signals = {signal: dict(answers) for signal, answers in feedback.signals.items()}
        self.heard.append((feedback.path, feedback.tokens, signals))


def plain_of(heard: Any) -> Any:
    """Answers with lists in place of tensors, which compare."""
    if isinstance(heard, torch.Tensor):
        return heard.tolist()
    if isinstance(heard, dict):
        return {key: plain_of(value) for key, value in heard.items()}
    return [plain_of(each) for each in heard] if isinstance(heard, list | tuple) else heard


def test_drafters_hear_of_prompts_and_trees_as_they_do_alone() -> None:
    model = ToyModel.random(vocab_size=50, order=2, seed=4)
    alone, together = dict[int, list[Any]](), dict[int, list[Any]]()
    for prompt in PROMPTS:
        packing(Generator(model, proposer=Curious(heard=alone))).generate(prompt, **SETTINGS)
    records = list[StepRecord]()
    packing(Generator(model, proposer=Curious(heard=together))).generate(PROMPTS, on_step=records.append, **SETTINGS)
    assert any(map(is_mixed, records))
    ends = [8, 16, 24, 32, 40, 44]
    assert [heard[0] for heard in alone[45][:6]] == ends
    for start, (stop, signals) in zip([0, *ends], alone[45][:6], strict=False):
        assert signals.keys() == {(Nodes.PROMPT, what) for what in ABOUT}
        assert all(list(answers) == [*range(start, stop)] for answers in signals.values())
    assert plain_of(together) == plain_of(alone)


class Failing(Curious):
    def bind(self, host: Any) -> Engine:
        return Engine(lambda request: _Failing(request, self.heard))


class _Failing(_Curious):
    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        if num_tokens == 24 and len(self.request.tokens) == 45:
            raise ZeroDivisionError("by nought")


def test_a_drafter_that_fails_to_read_a_chunk_fails_its_own_request() -> None:
    model = ToyModel.random(vocab_size=50, order=2, seed=4)
    plain = Generator(model, proposer="autoregressive").generate(PROMPTS, **SETTINGS)
    generator, records = packing(Generator(model, proposer=Failing(heard={}))), list[StepRecord]()
    results = generator.generate(PROMPTS, on_step=records.append, **SETTINGS)
    assert [result.finish_reason for result in results] == ["length", "error", "length", "length"]
    assert isinstance(results[1].error, PluginError)
    assert "proposer Failing failed with ZeroDivisionError: by nought" in str(results[1].error)
    assert [result.token_ids for result in results if result.error is None] == [
        result.token_ids for index, result in enumerate(plain) if index != 1
    ]
    (last,) = [outcome for record in records for outcome in record.outcomes if outcome.error is not None]
    assert last.is_chunk
    assert not last.tokens


def test_a_mixed_pass_whose_draft_is_spoiled_is_run_again_with_its_chunk() -> None:
    bad = 7

    def law(context: tuple[int, ...]) -> list[float]:
        return [float("nan")] * 8 if bad in context[3:] else [0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.0]

    def chain(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(0, [bad][: budget.depth])
        return tree

    model, prompts = ToyModel(law, 8), [[1, 2, 3], [2, 3, 4] * 10]
    results = packing(Generator(model, proposer=Scripted(script=chain))).generate(prompts, **SETTINGS)
    plain = Generator(model, proposer="autoregressive").generate(prompts, **SETTINGS)
    assert [(result.token_ids, result.error) for result in results] == [(result.token_ids, None) for result in plain]


def test_a_stream_has_no_empty_chunks_for_parts_of_its_prompt() -> None:
    model = ToyModel.random(vocab_size=50, order=2, seed=4)
    chunks = list(packing(Generator(model, proposer="autoregressive")).stream(PROMPTS, **SETTINGS))
    assert all(chunk.token_ids for chunk in chunks)
    assert {chunk.index for chunk in chunks if chunk.result is not None} == {0, 1, 2, 3}


def test_a_request_that_joins_reads_its_prompt_in_the_passes_of_those_that_decode() -> None:
    generator = packing(Generator(ToyModel.random(vocab_size=50, order=2, seed=4), proposer="autoregressive"))
    with generator.open_batch() as batch:
        (first,) = batch.add(PROMPTS[0], max_new_tokens=40)
        batch.advance()
        (second,) = batch.add(PROMPTS[1], **SETTINGS)
        kinds = list[str]()
        while (record := batch.advance()) is not None and len(record.outcomes) == 2:
            kinds.append(record.kind)
            assert {outcome.request for outcome in record.outcomes} == {first, second}
            assert all(outcome.tokens or outcome.is_chunk for outcome in record.outcomes)
    assert kinds == ["prompt"] * 6 + ["step"] * 13
