"""Candidates across the border: the same drafts on either side, and the text that greedy decoding writes."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator, PromptLookupCandidateGenerator

from specdec import (
    ROOT,
    Budget,
    Drafter,
    DraftTree,
    Feedback,
    Generator,
    JacobiProposer,
    PluginError,
    PromptLookupProposer,
    Request,
    RequestError,
)
from specdec.apps.in_transformers.candidates import CandidatesProposer, ProposerCandidates
from tests.support import families
from tests.support.scripted import Scripted

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
NUM_NEW = 40


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return families.make(*families.TREES["llama"])


def lookup(**options: Any) -> PromptLookupCandidateGenerator:
    return PromptLookupCandidateGenerator(num_output_tokens=4, max_matching_ngram_size=2, max_length=200, **options)


def test_transformers_candidates_are_a_strategy(llama: PreTrainedModel) -> None:
    told = list[int]()

    class Told(PromptLookupCandidateGenerator):
        def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
            told.append(num_matches)

    def make(_: Any) -> CandidateGenerator:
        return Told(num_output_tokens=4, max_matching_ngram_size=2, max_length=200)

    generator = Generator(llama, proposer=CandidatesProposer(make=make), numerics="fast")
    result = generator.generate(PROMPT, max_new_tokens=NUM_NEW)
    plain = generator.generate(PROMPT, proposer="autoregressive", max_new_tokens=NUM_NEW)
    assert result.token_ids == plain.token_ids
    assert result.stats.num_nodes > result.stats.steps
    assert told == [length - 1 for length in result.stats.accepted_lengths][: len(told)]
    assert sum(told) > 0


def test_what_reads_the_targets_outputs_is_refused(llama: PreTrainedModel) -> None:
    class Reads(CandidateGenerator):
        requires_model_outputs = True

    for made, fault in ((Reads(), "Reads reads the target's outputs"), (3, "make returned a int")):
        generator = Generator(llama, proposer=CandidatesProposer(make=lambda _, made=made: made), numerics="fast")
        with pytest.raises(PluginError, match=fault):
            generator.generate(PROMPT, max_new_tokens=4)


def test_a_proposer_is_assisted_generations_candidates(llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    class Counted(ProposerCandidates):
        def get_candidates(self, input_ids: torch.Tensor, **given: Any) -> Any:
            found = super().get_candidates(input_ids, **given)
            asked.append(found[0].shape[1] - input_ids.shape[1])
            return found

    call = {"max_new_tokens": NUM_NEW, "do_sample": False, "pad_token_id": 0}
    ids = torch.tensor([PROMPT])
    plain = llama.generate(ids, attention_mask=torch.ones_like(ids), **call)
    candidates = Counted(PromptLookupProposer(num_tokens=4, max_ngram=2), families.VOCAB)
    monkeypatch.setattr(llama, "_get_candidate_generator", lambda **_: candidates)
    assisted = llama.generate(ids, attention_mask=torch.ones_like(ids), prompt_lookup_num_tokens=4, **call)
    assert assisted.tolist() == plain.tolist()
    assert sum(asked) > 0
    assert len(asked) < NUM_NEW  # some came together


def test_drafts_are_the_proposers_own(llama: PreTrainedModel) -> None:
    found, _ = ProposerCandidates(PromptLookupProposer(num_tokens=3), 96).get_candidates(torch.tensor([PROMPT]))
    assert found.tolist() == [[*PROMPT, 7, 8, 5]]
    again, _ = ProposerCandidates(PromptLookupProposer(num_tokens=9), 96, num_tokens=2).get_candidates(
        torch.tensor([PROMPT])
    )
    assert again.tolist() == [[*PROMPT, 7, 8]]


def test_a_drafter_receives_the_path_and_the_tokens_that_followed_its_chain() -> None:
    received = list[Feedback]()

    class Noted(Scripted):
        def start(self, request: Request) -> Drafter:
            drafter = super().start(request)
            drafter.observe = received.append  # type: ignore[method-assign]
            return drafter

    def chain(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(ROOT, [7, 8, 9])
        return tree

    candidates = ProposerCandidates(Noted(script=chain), 96)
    for text in ([5, 6], [5, 6, 7, 8, 3], [5, 6, 7, 8, 3, 1]):
        candidates.get_candidates(torch.tensor([text]))
    assert [(each.path, each.tokens) for each in received] == [((0, 1, 2), (7, 8, 3)), ((0,), (1,))]


def test_a_proposer_that_listens_is_refused() -> None:
    with pytest.raises(
        RequestError,
        match=r"JacobiProposer needs signals of the target \(What\.DRAW\), which assisted generation doesn't report",
    ):
        ProposerCandidates(JacobiProposer(), 96)
