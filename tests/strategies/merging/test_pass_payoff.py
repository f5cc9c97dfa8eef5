"""Passes of a merge's part run while their share of the tokens is above their share of the time."""

from collections.abc import Callable
from typing import Any

import pytest

from specdec import DraftTree, Generator, demo
from specdec.costs import Costs
from specdec.record import Outcome, StepRecord
from specdec.strategies.eagle3.engine import Eagle3Engine
from specdec.strategies.eagle3.proposer import Eagle3Proposer
from specdec.strategies.merging.merged import MergedProposer
from specdec.strategies.merging.pass_payoff import PassPayoff
from specdec.strategies.sources.suffix import SuffixProposer


def outcome(*proposed_by: tuple[str, ...]) -> Outcome:
    """A step whose accepted draft tokens were proposed by these strategies."""
    tree = DraftTree(0)
    nodes = tree.add_chain(0, range(1, 1 + len(proposed_by)))
    tree.proposed_by = dict(zip(nodes, proposed_by, strict=True))
    return Outcome(request=object(), tree=tree, path=(0, *nodes), tokens=(7,) * (len(nodes) + 1))  # type: ignore[arg-type]


def run(payoff: PassPayoff, num_steps: int, seconds: float, *outcomes: Outcome, **fields: Any) -> list[bool]:
    """Whether passes ran in steps of a second, of which a pass takes some."""
    ran = []
    for _ in range(num_steps):
        ran.append(payoff.begin())
        if ran[-1]:
            payoff.add_pass(seconds)
        record = {"kind": "step", "outcomes": outcomes, "seconds": {"forward": 1.0 - seconds, "propose": seconds}}
        payoff.learn(StepRecord(**(record | fields)), outcomes)
    return ran


def test_passes_run_while_their_tokens_are_worth_their_time() -> None:
    won = outcome(("suffix",), ("eagle3",), ("suffix", "eagle3"))  # two of four tokens by way of the head
    assert all(run(PassPayoff("eagle3"), 200, 0.45, won))
    assert not all(run(PassPayoff("eagle3"), 200, 0.55, won))


def test_a_token_that_another_strategy_proposes_too_is_not_won() -> None:
    both = outcome(("eagle3", "suffix"), ("eagle3", "suffix"))
    assert run(PassPayoff("eagle3"), 20, 0.01, both).count(True) == 16


def test_after_a_pause_passes_are_tried_again_and_each_trial_doubles_the_pause() -> None:
    payoff = PassPayoff("eagle3")
    ran = run(payoff, 1000, 0.5, outcome(("suffix",)))
    starts = [step for step in range(1, len(ran)) if ran[step] and not ran[step - 1]]
    assert starts == [16 + 63, 16 + 63 + 16 + 127, 16 + 63 + 16 + 127 + 16 + 255]
    assert all(run(payoff, 600, 0.1, outcome(("eagle3",)))[-50:]), "in the end they pay"


@pytest.mark.parametrize(
    "fields", [{"kind": "prompt"}, {"is_warm": False}, {"outcomes": (outcome(), outcome())}], ids=str
)
def test_steps_that_say_nothing_about_time_do_not_count(fields: dict[str, Any]) -> None:
    assert all(run(PassPayoff("eagle3"), 50, 0.9, outcome(("suffix",)), **fields))


def test_of_two_requests_in_a_step_the_tokens_add_up() -> None:
    two = outcome(("eagle3",)), outcome(("suffix",))  # one of four tokens
    assert all(run(PassPayoff("eagle3"), 100, 0.2, *two))
    assert not all(run(PassPayoff("eagle3"), 100, 0.3, *two))


@pytest.mark.parametrize("is_dear", [False, True])
def test_a_merge_leaves_out_passes_that_do_not_pay(
    built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, is_dear: bool
) -> None:
    prepared, original = list[int](), Eagle3Engine.prepare_drafts

    def counted(self: Eagle3Engine, drafters: Any, budgets: Any) -> None:
        prepared.append(len(drafters))
        original(self, drafters, budgets)

    add_pass: Callable[..., None] = PassPayoff.add_pass
    monkeypatch.setattr(Eagle3Engine, "prepare_drafts", counted)
    monkeypatch.setattr(PassPayoff, "add_pass", lambda self, _: add_pass(self, 1e6 if is_dear else 1e-9))
    # Costs are given and not learnt, so that the machine's speed decides nothing.
    monkeypatch.setattr("specdec.runtime.binding.costs_of", lambda *_: Costs((1, 65), (1.0, 1.8), 1.0))
    merged = MergedProposer([SuffixProposer(), Eagle3Proposer(head=demo.head_folder(), depth=2)], loss=0.9)
    generator = Generator(*built_in, proposer=merged)
    engine: Any = generator._binding.strategies.own.engine
    engine._sizer._costs.learns = False
    result = generator.generate(demo.prompts()[0].text, max_new_tokens=200)
    generator.close()
    assert (len(prepared) < result.stats.steps - 10) == is_dear  # the steps of a pause, which ends with the text
    assert not [note for note in result.notes if "eagle3" in note]
