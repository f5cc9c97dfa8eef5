"""A comparison tells a numeric tie from a defect, as an audit does, in words, figures and exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from specdec import Generator
from specdec.apps.auditing import audit
from specdec.apps.cli.evaluate import _leave
from specdec.apps.cli.tables import identity_lines, speed_table
from specdec.apps.comparison import Comparison, ComparisonSession, compare
from specdec.apps.comparison.report import write_report
from specdec.apps.comparison.sentences import identity
from specdec.tree import DraftTree
from specdec.verifiers.base import Verdict
from specdec.verifiers.match import MatchVerifier
from tests.apps.comparison.reported import build, letters
from tests.support import families

PROMPTS = [[seed, 3 * seed % 90, 7, 1] for seed in range(1, 13)]
LOOKAHEAD = "lookahead:N=4,W=5,G=5"
SETTINGS: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.0, "seed": 0}


class NotTheModels(MatchVerifier):
    """Every now and then it emits a token that the model didn't choose."""

    def verify(self, tree: DraftTree, target: Any, randomness: Any) -> Verdict:
        verdict = super().verify(tree, target, randomness)
        if target.position(0) % 11 == 0:
            return Verdict(verdict.path, (*verdict.tokens[:-1], (verdict.tokens[-1] + 1) % families.VOCAB))
        return verdict


@pytest.fixture(scope="module", name="model")
def _model() -> Any:
    return families.make(*families.TREES["llama"]).to(torch.bfloat16)


@pytest.fixture(scope="module", name="tied")
def _tied(model: Any) -> Comparison:
    return compare(model, {"a": LOOKAHEAD}, PROMPTS, numerics="fast", repeats=1, **SETTINGS)


def test_texts_that_rounding_parts_are_the_audits_numeric_ties(model: Any, tied: Comparison) -> None:
    findings = audit(Generator(model, proposer=LOOKAHEAD, numerics="fast"), PROMPTS, **SETTINGS).findings
    told = {prompt: finding for prompt, finding in enumerate(findings) if finding.position is not None}
    assert [found.prompt for found in tied.differences] == list(told)
    for found in tied.differences:
        same = told[found.prompt]
        assert (found.position, found.token, found.expected) == (same.position, same.token, same.expected)
        assert found.verdict == same.verdict == "numeric tie"
        assert found.margin == pytest.approx(same.margin)
    assert not tied.defects
    figures = [(row.num_different, row.num_ties, row.num_defects) for row in tied.rows]
    assert figures == [(len(told), len(told), 0), (0, 0, 0)]
    assert told


def test_a_token_that_was_not_the_models_is_a_defect(model: Any) -> None:
    with Generator(model, proposer=LOOKAHEAD, numerics="fast", verifier=NotTheModels()) as wrong:
        comparison = compare(model, {"a": wrong}, PROMPTS, numerics="fast", repeats=1, **SETTINGS)
    assert len(comparison.differences) == len(PROMPTS)
    off = [found for found in comparison.differences if (4 + found.position) % 11 in (0, 1)]
    assert comparison.defects
    for found in comparison.defects:
        assert found.margin is not None
        assert found.margin > 0
        assert found.reason.startswith("the model scores the token")
    assert len(comparison.defects) >= len(off) - 2  # by chance the wrong token may be one as good


def test_greedy_repeats_are_examined_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Generator(model, proposer="prompt_lookup", numerics="fast", verifier=NotTheModels())
    asked: list[str] = []
    generate = Generator.generate

    def noting(generator: Generator, *given: Any, **settings: Any) -> Any:
        if settings.get("keeps_scores"):
            asked.append(type(generator.proposer).__name__)
        return generate(generator, *given, **settings)

    monkeypatch.setattr(Generator, "generate", noting)
    comparison = compare(model, {"a": wrong}, PROMPTS[:2], numerics="fast", repeats=3, max_new_tokens=20)
    assert len(comparison.differences) == 6
    assert asked == ["AutoregressiveProposer"] * 2
    assert len({(found.prompt, found.verdict, found.reason) for found in comparison.differences}) == 2


def test_where_bits_are_promised_every_difference_is_a_defect_without_a_model() -> None:
    exact = {"numerics": {"autoregressive": "fast", "a": "exact"}, "inexact": {"autoregressive": "fast", "a": ""}}
    (found,) = build({"a": 2.0}, wrong=["a"], **exact).differences
    assert (found.verdict, found.reason) == ("defect", "numerics are bit-exact")
    (open_case,) = build({"a": 2.0}, wrong=["a"]).differences
    assert open_case.verdict is None


def test_an_interrupt_leaves_the_figures_and_says_that_ties_were_not_distinguished(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec.apps.comparison.ties._examined", interrupt)
    comparison = ComparisonSession(model, {"a": LOOKAHEAD}, PROMPTS, numerics="fast", repeats=1, **SETTINGS).run()
    assert comparison.is_complete
    assert len(comparison.defects) == len(comparison.differences) > 0
    assert "were not distinguished here" in identity(comparison)


def styles(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """By strategy, the last cell of the terminal's table and its colour."""
    cells = [figures[-1] for _, figures in speed_table(comparison).rows]
    return {row.strategy: (str(cell), str(cell.style)) for row, cell in zip(comparison.rows, cells, strict=True)}


def test_a_tie_has_its_own_word_and_colour_and_leaves_with_0(tied: Comparison, tmp_path: Path) -> None:
    count = len(tied.differences)
    assert styles(tied)["a"] == (f"{count} tie{'s' if count > 1 else ''} of 12", "yellow")
    lines = list(identity_lines(tied, None))
    assert {str(line.style) for line in lines} == {"yellow"}
    assert f"Of 12 texts, {12 - count} " in lines[0].plain
    assert "rounding, no defect." in lines[0].plain
    assert "; numeric tie: the two scores are " in lines[1].plain
    _leave([tied], is_interrupted=False)
    told = json.loads(json.dumps(tied.to_json()))
    assert (told["strategies"][0]["num_ties"], told["strategies"][0]["num_different"]) == (count, count)
    assert {found["verdict"] for found in told["differences"]} == {"numeric tie"}
    write_report(tmp_path / "report.html", [tied], letters)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'class="bad"' not in page
    assert page.count('class="text tie"') == count
    assert '<p class="tie">Of 12 texts' in page


def test_a_defect_is_red_and_leaves_with_1(tmp_path: Path) -> None:
    comparison = build({"good": 2.0, "bad": 2.0}, wrong=["bad"])
    assert styles(comparison) == {"autoregressive": ("–", ""), "good": ("yes", ""), "bad": ("NO: 1 of 6", "bold red")}
    assert {str(line.style) for line in identity_lines(comparison, None)} == {"bold red"}
    with pytest.raises(typer.Exit) as left:
        _leave([comparison], is_interrupted=False)
    assert left.value.exit_code == 1
    write_report(tmp_path / "report.html", [comparison], letters)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<p class="bad">1 of 12 texts is NOT' in page
