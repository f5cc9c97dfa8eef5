"""Drafts that the model makes NaN of, and passes that fail: plain decoding's text, or one named error."""

from typing import Any

import pytest
import torch

from specdec import ROOT, Budget, DraftTree, Generator, PluginError, Request, ToyModel
from tests.support import families
from tests.support.scripted import Scripted

BAD = 7  # the token whose embedding is NaN
SETTINGS: dict[str, Any] = {"max_new_tokens": 12, "suppress_tokens": [BAD], "eos_token_id": ()}


def with_a_bad_branch(request: Request, budget: Budget) -> DraftTree:
    """A token that the model makes NaN of, beside an ordinary chain."""
    tree = DraftTree(request.root)
    if budget.depth:
        tree.add_chain(ROOT, [3, 4, 5][: budget.depth])
        tree.add(ROOT, BAD)
    return tree


def poisoned_model(dtype: torch.dtype) -> Any:
    model = families.make(*families.TREES["llama"]).to(dtype)
    with torch.no_grad():
        model.get_input_embeddings().weight[BAD] = torch.nan
    return model


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_that_the_model_makes_nan_of_changes_no_text_alone_or_in_ragged_batches(
    dtype: torch.dtype, numerics: Any
) -> None:
    model = poisoned_model(dtype)
    plain = Generator(model, proposer="autoregressive", numerics=numerics)
    drafted = Generator(model, proposer=Scripted(script=with_a_bad_branch), numerics=numerics)
    prompts = [[5, 9, 2], [1, 2, 3, 4, 5, 6, 8, 9, 10, 11] * 5, [4]]
    expected = [plain.generate(prompt, **SETTINGS) for prompt in prompts]
    assert [result.finish_reason for result in expected] == ["length"] * 3
    alone = [drafted.generate(prompt, **SETTINGS) for prompt in prompts]
    assert [result.token_ids for result in alone] == [result.token_ids for result in expected]
    batch = drafted.generate(prompts, **SETTINGS)
    assert [result.finish_reason for result in batch] == ["length"] * 3
    if numerics == "exact":
        assert [result.token_ids for result in batch] == [result.token_ids for result in expected]


def test_a_draft_of_nan_behind_an_accepted_one_changes_no_text() -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        bad = len(context) > 3 and context[-1] == 0  # never written by the law itself
        return [float("nan")] * 4 if bad else [0.0, 0.1, 0.8, 0.1]

    def chain(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(ROOT, [2, 2, 0, 2][: budget.depth])
        return tree

    model = ToyModel(law, 4)
    proposers = "autoregressive", Scripted(script=chain)
    texts = [Generator(model, proposer=p).generate([1], max_new_tokens=9).token_ids for p in proposers]
    assert texts[0] == texts[1] == (2,) * 9


def test_a_backend_that_fails_in_a_step_is_one_named_failure_and_those_that_wait_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive", max_batch_size=2)
    expected = [result.token_ids for result in generator.generate([[1], [2], [3]], max_new_tokens=6)]
    forward, num_calls = type(generator._binding.target.backend).forward, []

    def failing(backend: Any, layout: Any) -> Any:
        num_calls.append(1)
        if len(num_calls) == 3:
            raise RuntimeError("out of memory")
        return forward(backend, layout)

    monkeypatch.setattr(type(generator._binding.target.backend), "forward", failing)
    results = generator.generate([[1], [2], [3]], max_new_tokens=6)
    assert [result.finish_reason for result in results] == ["error", "error", "length"]
    for result, text in zip(results[:2], expected, strict=False):
        assert isinstance(result.error, PluginError)
        assert str(result.error).startswith(
            "backend ToyBackend with ExactCompiler failed: memory ran out (RuntimeError: out of memory)"
        )
        assert result.token_ids == text[: len(result.token_ids)], "what was written before is kept"
    assert results[2].token_ids == expected[2]
    assert generator._binding.target.backend.num_rows == 0
    assert [result.token_ids for result in generator.generate([[1], [2], [3]], max_new_tokens=6)] == expected
