"""The command that audits: a line per prompt, JSON, and the exit code of a defect."""

import json
from typing import Any

import pytest

from specdec import hookimpl
from specdec.verifiers.base import Verdict, Verifier
from specdec.verifiers.match import MatchVerifier
from tests.support.entry_points import FakeEntryPoint

FEW = ("--category", "code", "--per-category", "2", "--max-new-tokens", "10", "--proposer", "prompt_lookup")


class _OffByOne(MatchVerifier):
    """Emits another token than the model's as its last."""

    def verify(self, tree: Any, target: Any, chances: Any) -> Verdict:
        verdict = super().verify(tree, target, chances)
        return Verdict(verdict.path, (*verdict.tokens[:-1], verdict.tokens[-1] ^ 1))


class _Plugin:
    @staticmethod
    @hookimpl
    def specdec_verifiers() -> dict[str, type[Verifier]]:
        return {"off_by_one": _OffByOne}


def test_audit_says_of_each_prompt_that_it_is_identical(run: Any) -> None:
    code, out, _ = run("audit", *FEW)
    assert code == 0
    first, *prompts, last = out.splitlines()
    assert first == "numerics: exact, bit-exact"
    assert [line.split(": ")[1] for line in prompts] == ["identical, 10 tokens"] * 2
    assert last == "2 texts: 2 identical, 0 numeric ties, 0 defects"


def test_a_defect_is_told_with_both_tokens_and_ends_with_1(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [FakeEntryPoint("odd", lambda: _Plugin)])
    code, out, _ = run("audit", *FEW, "--verifier", "off_by_one")
    assert code == 1
    assert ": defect at new token 0: '" in out
    assert "for plain decoding's '" in out
    assert "the model scores the token" in out
    assert out.endswith("2 texts: 0 identical, 0 numeric ties, 2 defects\n")


def test_audit_as_json(run: Any) -> None:
    code, out, _ = run("audit", *FEW, "--json", "--numerics", "fast", "--temperature", "0.5")
    assert code == 0
    told = json.loads(out)
    assert told["numerics"].startswith("fast, not bit-exact: ")
    assert {finding["verdict"] for finding in told["findings"]} <= {"identical", "numeric tie"}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (("--category", "poetry"), "category 'poetry' is unknown"),
        (("--verifier", "rejection", "--temperature", "1"), "RejectionVerifier doesn't promise plain decoding's text"),
    ],
)
def test_what_can_not_be_audited_is_refused_in_a_line(run: Any, given: tuple[str, ...], fault: str) -> None:
    code, _, err = run("audit", "--max-new-tokens", "4", *given)
    assert code == 2
    assert fault in err
    assert err.count("\n") == 1
