"""An audit tells rounding from defects: planted ones are found, and nothing else is."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from pydantic import Field

from specdec import Generator, RequestError, ToyModel
from specdec.apps.auditing import audit
from specdec.backends.cache import RaggedCache
from specdec.layout import Layout, Shapes
from specdec.masks.base import MaskCompiler
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.tree import DraftTree
from specdec.verifiers.base import Verdict
from specdec.verifiers.match import MatchVerifier
from tests.support import families

PROMPTS = [[5, 9, 2, 7, 1, 8, 3] * 6, [4, 4, 11, 60, 4, 4], [7, 8, 9] * 5]
PROPOSER = "lookahead:N=4,W=5,G=5"
SETTINGS: dict[str, Any] = {"max_new_tokens": 24}


class WrongBit(DenseCompiler):
    """Once armed, the last node of every tree doesn't see the first token."""

    armed: list[bool] = Field(default_factory=list)

    def masks(self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: Any, shapes: Shapes) -> Any:
        masks = super().masks(trees, lengths, positions, shapes)
        if self.armed:
            for mask in masks.values():
                for row, tree in enumerate(trees):
                    mask[row, 0, len(tree) - 1, 0] = torch.finfo(shapes.dtype).min
        return masks


class WrongBitExactly(ExactCompiler):
    """The same for exact numerics: what attention reads are the regions."""

    armed: list[bool] = Field(default_factory=list)

    def masks(self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: Any, shapes: Shapes) -> Any:
        masks = super().masks(trees, lengths, positions, shapes)
        if self.armed:
            for mask in masks.values():
                for region in mask.regions:
                    region.hidden[-1, 0] = -torch.inf
        return masks


class _Shifted(MaskCompiler):
    """Once armed, nodes at depth two and beyond are one position off."""

    armed: list[bool] = Field(default_factory=list)

    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        layout = super().compile(trees, lengths, shapes)
        if self.armed:
            for row, tree in enumerate(trees):
                for node, depth in enumerate(tree.depths):
                    layout.positions[row, node] += depth >= 2
        return layout


class WrongPosition(_Shifted, DenseCompiler):
    pass


class WrongPositionExactly(_Shifted, ExactCompiler):
    pass


class NotTheModels(MatchVerifier):
    """Every now and then it emits a token that the model didn't choose."""

    def verify(self, tree: DraftTree, target: Any, chances: Any) -> Verdict:
        verdict = super().verify(tree, target, chances)
        if target.position(0) % 11 == 0:
            return Verdict(verdict.path, (*verdict.tokens[:-1], (verdict.tokens[-1] + 1) % families.VOCAB))
        return verdict


def llama(dtype: torch.dtype = torch.float32) -> Any:
    return families.make(*families.TREES["llama"]).to(dtype)


def by_turns() -> Iterator[Any]:
    """Yield each strategy in exact numerics, drawn, and in fast ones, greedy: one of the two for the night."""
    for i, proposer in enumerate([PROPOSER, "prompt_lookup", "jacobi", "draft_model:layers=1"]):
        for j, (numerics, temperature) in enumerate([("exact", 0.9), ("fast", 0.0)]):
            marks = [pytest.mark.nightly] if (i + j) % 2 else []
            yield pytest.param(proposer, numerics, temperature, marks=marks)


@pytest.mark.parametrize(("proposer", "numerics", "temperature"), [*by_turns()])
def test_a_strategy_without_defects_has_none(proposer: str, numerics: Any, temperature: float) -> None:
    generator = Generator(llama(), proposer=proposer, numerics=numerics)
    found = audit(generator, PROMPTS, temperature=temperature, **SETTINGS)
    assert found.numerics == str(generator.numerics)
    assert not found.defects
    assert [finding.num_tokens for finding in found.findings] == [24, 24, 24]
    if numerics == "exact":
        assert found.count("identical") == 3
        assert [finding.deviation for finding in found.findings] == [0.0, 0.0, 0.0]
    else:
        assert all(0.0 <= finding.deviation < 1e-3 for finding in found.findings if finding.deviation is not None)


@pytest.mark.parametrize("mask", [WrongBit, WrongPosition, WrongBitExactly, WrongPositionExactly])
def test_a_wrong_bit_of_a_mask_and_a_position_off_by_one_are_defects(mask: type[MaskCompiler]) -> None:
    compiler: Any = mask()
    generator = Generator(llama(), proposer=PROPOSER, mask=compiler)
    assert not audit(generator, PROMPTS, **SETTINGS).defects
    compiler.armed.append(True)
    found = audit(generator, PROMPTS, **SETTINGS)
    assert found.defects
    assert all("the strategy's scores differ by" in finding.reason for finding in found.defects)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_cache_slot_off_by_one_is_a_defect(numerics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(llama(), proposer=PROPOSER, numerics=numerics)

    cache: RaggedCache = generator._binding.target.backend._cache  # type: ignore[attr-defined]  # after it was loaded and tried

    def shifted(row: int, path: Sequence[int]) -> None:
        RaggedCache.commit(cache, row, [*path[:1], *(node - 1 for node in path[1:])])

    monkeypatch.setattr(cache, "commit", shifted)
    assert audit(generator, [[1, 2, 3, 4] * 12], max_new_tokens=60).defects


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_token_that_was_not_the_models_is_a_defect(numerics: Any) -> None:
    generator = Generator(llama(), proposer=PROPOSER, verifier=NotTheModels(), numerics=numerics)
    found = audit(generator, PROMPTS, **SETTINGS)
    assert found.defects
    for finding in found.defects:
        assert finding.reason.startswith("the model scores the token")
        assert finding.token != finding.expected
        assert finding.margin is not None
        assert finding.margin > 0
        assert finding.scores is not None
        assert finding.scores[1] - finding.scores[0] == pytest.approx(finding.margin)


@pytest.mark.nightly  # tests of comparisons have ties by day
def test_texts_that_rounding_parts_are_numeric_ties() -> None:
    model, prompts = llama(torch.bfloat16), [[seed, 3 * seed % 90, 7, 1] for seed in range(1, 13)]
    generator = Generator(model, proposer=PROPOSER, numerics="fast")
    found = audit(generator, prompts, max_new_tokens=40, temperature=1.0)
    ties = [finding for finding in found.findings if finding.verdict == "numeric tie"]
    assert ties
    for finding in ties:
        assert finding.margin is not None
        assert finding.noise is not None
        assert 0 <= finding.margin <= 8 * finding.noise
    assert not found.defects
    exact = audit(Generator(model, proposer=PROPOSER), prompts, max_new_tokens=40, temperature=1.0)
    assert exact.count("identical") == len(prompts)


def test_toy_models_have_no_noise() -> None:
    heard: list[Any] = []
    generator = Generator(ToyModel.random(seed=2), proposer="jacobi")
    found = audit(generator, [[1, 2, 3]], max_new_tokens=12, on_finding=heard.append)
    assert tuple(heard) == found.findings
    assert [(finding.verdict, finding.noise) for finding in found.findings] == [("identical", 0.0)]
    assert found.to_json()["findings"][0]["verdict"] == "identical"


@pytest.mark.filterwarnings("ignore:.* is lossy")  # it is meant to be
@pytest.mark.parametrize(
    ("verifier", "settings", "fault"),
    [
        ("typical", {}, "TypicalVerifier doesn't promise plain decoding's text at any temperature"),
        (
            "rejection",
            {"temperature": 1.0},
            "RejectionVerifier doesn't promise plain decoding's text above temperature 0",
        ),
    ],
)
def test_rules_that_promise_no_text_are_refused(verifier: str, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        audit(Generator(ToyModel.random(), verifier=verifier), [[1, 2]], **settings)


def test_a_single_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="pass a list"):
        audit(Generator(ToyModel.random()), [1, 2, 3])


@pytest.mark.parametrize("verifier", ["traversal", "rejection"])
def test_other_rules_are_audited_at_temperature_0(verifier: str) -> None:
    found = audit(Generator(llama(), proposer=PROPOSER, verifier=verifier), PROMPTS, **SETTINGS)
    assert found.count("identical") == 3
