"""Every strategy that a merge accepts drafts in it, is right at times, and observes what became of its trees."""

from typing import Any

import pytest

from specdec import Generator, PluginError, Proposer, Request, ToyModel
from specdec.constraints import Choice
from specdec.costs import NOMINAL_COSTS
from specdec.record import StepRecord
from specdec.strategies import (
    AutoregressiveProposer,
    Drafter,
    Engine,
    Feedback,
    JacobiProposer,
    LookaheadProposer,
    MergedProposer,
    Nodes,
    Signal,
    Source,
    SuffixProposer,
    TopK,
)
from tests.support.built_in_model import built_in
from tests.support.byte_tokenizer import trained
from tests.support.fitted_heads import prompts
from tests.support.generators import HEADS, OF_OTHER_MODELS, proposer_of
from tests.support.proposers import our_proposers
from tests.support.scripted import Scripted

REFUSED = {"jacobi": JacobiProposer(), "lookahead": LookaheadProposer()}
ACCEPTED = [
    name
    for name in (*our_proposers(), "lookahead:N=4,W=0")
    if name not in ("auto", "autoregressive", *REFUSED, *OF_OTHER_MODELS)  # the last have own tests of merges
]


class WantingProbes(Scripted):
    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROBE, TopK(2))})


@pytest.mark.parametrize("proposer", [*REFUSED.values(), WantingProbes()], ids=lambda each: type(each).__name__)
def test_a_merge_refuses_a_strategy_whose_probes_it_would_drop_and_names_another_way(proposer: Proposer) -> None:
    name = {JacobiProposer: "jacobi", LookaheadProposer: "lookahead", WantingProbes: "wanting_probes"}[type(proposer)]
    with pytest.raises(PluginError, match=f"{name} .*use {name} alone, or merge suffix or prompt_lookup") as refused:
        MergedProposer([SuffixProposer(), proposer])
    assert "\n" not in str(refused.value)
    if name in REFUSED:
        with pytest.raises(PluginError, match=f"use {name} alone"):
            Generator(ToyModel.random(6), proposer=f"auto+{name}")


def generator_of(name: str) -> tuple[Generator, list[Any], dict[str, Any]]:
    """A merge of a strategy with plain decoding, a prompt, and options of the request."""
    if name in HEADS:
        model, tokenizer = built_in()
        parts = [HEADS[name](), AutoregressiveProposer()]
        generator = Generator(model, tokenizer, proposer=MergedProposer(parts, loss=0.9, clock=False))
        return generator, list(prompts()[0]), {"max_new_tokens": 24}
    tokenizer = trained()
    model = ToyModel.random(len(tokenizer) if name == "grammar" else 5, order=2, sharpness=9.0, seed=3)
    parts = [proposer_of(name, model.vocab_size, model.probs), AutoregressiveProposer()]
    proposer = MergedProposer(parts, loss=0.9, clock=False)
    if name == "grammar":
        return Generator(model, tokenizer, proposer=proposer), [1, 2], {"constraint": Choice(["call me", "call you"])}
    options: dict[str, Any] = {"max_new_tokens": 100}
    if name == "reference":
        options["reference"] = Generator(model).generate([1, 2, 3, 1], **options).token_ids
    return Generator(model, proposer=proposer), [1, 2, 3, 1], options


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_merge_accepts_drafts_in_it_is_right_at_times_and_observes_its_trees(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed, started, records = list[Feedback](), list[Drafter](), list[StepRecord]()

    def watched(engine: Engine, request: Request) -> Drafter:
        made = engine.start(request)
        if not isinstance(made, Source):
            monkeypatch.setattr(made, "observe", observed.append)
        started.append(made)
        return made

    monkeypatch.setattr("specdec.strategies.auto.drafter.started", watched)
    monkeypatch.setattr("specdec.runtime.binding.costs_of", lambda *_: NOMINAL_COSTS)  # on a busy machine nothing pays
    generator, prompt, options = generator_of(name)
    generator.generate(prompt, on_step=records.append, **options)
    trees = [(outcome.tree, outcome.path) for record in records for outcome in record.outcomes if outcome.tree]
    part = name.partition(":")[0]
    own = [{node for node, names in tree.proposed_by.items() if part in names} for tree, _ in trees]
    assert any(own), "nothing of it is drafted"
    assert any(nodes & {*path} for nodes, (_, path) in zip(own, trees, strict=True)), "nothing of it is accepted"
    drafts = [feedback.tree for feedback in observed if len(feedback.tree) > 1]
    if not isinstance(started[0], Source):
        assert len(drafts) >= sum(map(bool, own[:-1])), "it doesn't learn what became of its trees"
