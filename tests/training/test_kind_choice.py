"""The kind that a run trains: its predicted speed under given costs, and the costs themselves under a planted clock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specdec.errors import ModelError
from specdec.heads.medusa import MedusaRunner
from specdec.heads.p_eagle import PEagleRunner
from specdec.heads.torch_runner import TorchRunner
from specdec.machine.timing import Timer
from specdec.training import Plan
from specdec.training.acceptance_curves import CURVES, expected_acceptance
from specdec.training.base import DEPTH
from specdec.training.draft_costs import DraftCosts, measure_draft_costs
from specdec.training.eagle3_training import Eagle3Training
from specdec.training.head_plan import HeadPlan
from specdec.training.kind_choice import KindChoice, predict_speeds
from specdec.training.kinds import KINDS
from tests.support.random_heads import reference_of
from tests.support.target_of_heads import KEPT, target_of_heads

ROOT = Path(__file__).parents[2]
TICK = 0.01  # seconds


@pytest.fixture(scope="module", name="model")
def _model() -> LlamaForCausalLM:
    return target_of_heads()


def costs(eagle3: float, medusa: float) -> DraftCosts:
    """Drafts of EAGLE-3 cost a pass per token, Medusa's one pass; a step costs a tenth more with each draft token."""
    lengths = range(1, 6)
    return DraftCosts([1 + length / 10 for length in lengths], {"eagle3": [eagle3 * length for length in lengths],
                                                                "medusa": [medusa] * 5})  # fmt: skip


def test_the_fastest_kind_is_that_of_the_costs() -> None:
    """At 2.5 million tokens, EAGLE-3 is accepted at .53 .52 .56 …, Medusa's heads at .32 .31 …"""
    cheap, dear = (predict_speeds(costs(each, medusa=0.05), 2_500_000) for each in (0.05, 0.5))
    assert [(each.kind, each.num_draft_tokens) for each in cheap] == [("eagle3", 2), ("medusa", 1)]
    assert cheap[0].tokens_per_step == pytest.approx(1.8056)  # 1 + .53 + .53 * .52
    assert cheap[0].speed == pytest.approx(1.8056 / 1.3)  # 1.960 / 1.45 with three draft tokens, 1.53 / 1.15 with one
    assert [each.kind for each in dear] == ["medusa", "eagle3"]
    assert dear[0].speed == pytest.approx(1.32 / 1.15)
    assert dear[1].speed == pytest.approx(1.53 / 1.6)


def test_acceptance_follows_the_measured_curves() -> None:
    assert expected_acceptance("eagle3", 5_000_000) == pytest.approx((0.57, 0.58, 0.60, 0.58, 0.52))
    between = expected_acceptance("eagle3", round((500_000 * 1_000_000) ** 0.5))
    assert between == pytest.approx((0.405, 0.415, 0.415, 0.335, 0.31), abs=1e-6)
    assert expected_acceptance("eagle3", 1) == expected_acceptance("eagle3", 500_000)
    assert expected_acceptance("medusa", 500_000)[0] == pytest.approx(0.32 * 0.37 / 0.53)
    assert max(expected_acceptance("medusa", 10**9)) < 1


@pytest.mark.parametrize(("kind", "run"), [("eagle3", "head_smollm2_h100"), ("medusa", "head_medusa_h200")])
def test_the_curves_are_those_of_the_runs(kind: str, run: str) -> None:
    points = json.loads((ROOT / "benchmarks" / "results" / f"{run}.json").read_text())["points"]
    runs = {int(point["name"].split()[0]): point["prompts"] for point in points}  # the rate of 4 is the last of three
    held_out = {int(point["name"].split()[0]): point["evaluations"][-1][1] for point in points}
    curve = {point.num_answer_tokens: point for point in CURVES[kind]}
    assert curve.keys() == runs.keys()
    for size, point in curve.items():
        assert point.chain == pytest.approx(runs[size]["acceptance_given_all_before"], abs=0.0051)
        assert point.held_out == pytest.approx(1 + sum(held_out[size]["chain"]), abs=0.0051)


def test_the_kind_is_chosen_once_and_the_plan_says_why() -> None:
    choice = KindChoice(None, costs=costs(eagle3=0.5, medusa=0.05))
    plans = [
        Plan(size, 0, 400.0, 24.0, 36.0, "answers", choice.plan(size)) for size in (2_500_000, 10_000_000)
    ]  # fmt: skip
    assert choice.kind(1) is KINDS["medusa"]
    assert [each.lines()[1:5] for each in plans] == 2 * [[
        "kind: Medusa heads: 1.15 times as fast as plain decoding, 1.32 tokens per step on prompts (chain of 1), "
        "drafted in 5% of a step",
        "not an EAGLE-3 head: 0.96 times as fast as plain decoding, 1.53 tokens per step on prompts (chain of 1), "
        "drafted in 50% of a step",
        "predicted from SmolLM2's acceptance after as much text, with steps and drafts timed on this machine; --kind "
        "overrides it",
        "training: Medusa heads for 36 minutes; the head with the most tokens per step on held-out text is kept",
    ]]  # fmt: skip
    least = KindChoice(None, costs=costs(eagle3=0.5, medusa=0.05)).plan(30_000).reasons
    assert "acceptance after 500,000 answer tokens, the nearest measured, with steps" in least[-1]


def test_a_model_that_cant_be_driven_gets_an_eagle3_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> DraftCosts:
        raise ModelError("it has no layers")

    monkeypatch.setattr("specdec.training.kind_choice.measure_draft_costs", fail)
    choice = KindChoice.measured(None, 8192)
    assert choice.kind(1) is Eagle3Training
    reasons = ("kind: an EAGLE-3 head, as no speed can be predicted: it has no layers",)
    assert choice.plan(1) == HeadPlan("eagle3", "an EAGLE-3 head", reasons)


def test_costs_are_those_of_the_passes(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on by a tick in each pass of the model, and by a tenth in each pass of a head."""
    now = [0.0]

    def counted(run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any, **named: Any) -> Any:
            now[0] += TICK / 10
            return run(*given, **named)

        return wrapper

    def forward(*_: Any) -> None:
        now[0] += TICK

    for runner in (TorchRunner, MedusaRunner, PEagleRunner):
        monkeypatch.setattr(runner, "run", counted(runner.run))
    hook = model.model.layers[0].register_forward_pre_hook(forward)
    timer = Timer(lambda: now[0], dict)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    found = measure_draft_costs(model, list(KINDS.values()), 8192, timer)
    hook.remove()
    assert found.steps == pytest.approx([1.0] * DEPTH)
    expected = {"eagle3": [0.1, 0.2, 0.3, 0.4, 0.5], "medusa": [0.1] * DEPTH, "p_eagle": [0.1] * DEPTH}
    assert found.drafts == {kind: pytest.approx(each) for kind, each in expected.items()}
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@torch.no_grad()
def test_timed_drafts_are_the_references(model: LlamaForCausalLM) -> None:
    """Those of EAGLE-3; ``test_kinds`` compares the others."""
    draw, training = torch.Generator().manual_seed(2), Eagle3Training.untrained(model, KEPT)
    for parameter in training.head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) / parameter.shape[-1] ** 0.5
    reference, tokens = reference_of(training.head), list[int]()
    last = reference.extend(torch.zeros(8, training.states_size), torch.zeros(8).long())
    while len(tokens) < 3:
        found = reference.chain(last, torch.tensor(tokens, dtype=torch.long))[-1]
        tokens.append(int(KEPT[found.argmax()]))
    assert [training.drafter(6)(length).tolist() for length in (1, 3)] == [tokens[:1], tokens]
