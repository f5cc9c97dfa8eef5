"""A reference never changes a text, whatever it is, nor the drafts of requests without one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Generator, ToyModel
from specdec.costs import NOMINAL_COSTS
from specdec.record import StepRecord
from specdec.strategies import (
    AutoProposer,
    GrammarProposer,
    MergedProposer,
    ReferenceProposer,
    SuffixProposer,
    TokenRecyclingProposer,
)
from tests.support.examples import examples
from tests.support.generators import prompts, toy_models
from tests.support.plain import decode_law

NUM_NEW = 16
READERS = "auto", "reference", "reference:num_nodes=3,min_probability=0", "prompt_lookup+reference", "suffix+reference"


@st.composite
def references(draw: st.DrawFn, text: Sequence[int], vocab_size: int) -> list[int] | None:
    """The text itself, parts of it in another order, one with edits, repetition, any tokens, or nothing."""
    any_tokens = st.lists(st.integers(0, vocab_size - 1), max_size=80)
    start, stop = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    edited = [*text[:start], *draw(any_tokens), *text[stop:]]
    return draw(
        st.one_of(
            st.sampled_from([None, [], list(text), [*text[stop:], *text[:start]], edited]),
            st.builds(lambda token, count: [token] * count, st.integers(0, vocab_size - 1), st.integers(1, 300)),
            any_tokens,
        )
    )


@pytest.mark.parametrize("proposer", READERS)
@examples(8)
@given(data=st.data(), model=toy_models(), seed=st.integers(0, 2**63 - 1))
def test_the_text_is_plain_decodings_with_any_reference(
    proposer: str, data: st.DataObject, model: ToyModel, seed: int
) -> None:
    batch = data.draw(st.lists(prompts(model.vocab_size), min_size=1, max_size=3))
    generator = Generator(model, proposer=proposer, max_batch_size=2)
    for temperature, key in ((0.0, None), (1.0, seed)):
        expected = [decode_law(model.probs, prompt, NUM_NEW, key) for prompt in batch]
        given_ = [data.draw(references(text, model.vocab_size)) for text in expected]
        results = generator.generate(
            batch, max_new_tokens=NUM_NEW, temperature=temperature, seed=seed, reference=given_
        )
        assert [list(result.token_ids) for result in results] == expected


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
@examples(10)
@given(data=st.data(), model=toy_models(), seed=st.integers(0, 2**63 - 1))
def test_greedy_texts_are_the_same_under_rules_that_read_q(
    verifier: str, data: st.DataObject, model: ToyModel, seed: int
) -> None:
    prompt = data.draw(prompts(model.vocab_size))
    expected = decode_law(model.probs, prompt, NUM_NEW, None)
    reference = data.draw(references(expected, model.vocab_size))
    generator = Generator(model, proposer="reference", verifier=verifier)
    assert list(generator.generate(prompt, max_new_tokens=NUM_NEW, reference=reference).token_ids) == expected
    drawn = [
        generator.generate(prompt, max_new_tokens=NUM_NEW, temperature=1.0, seed=seed, reference=reference).token_ids
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1], "what was learnt from one request has changed the next one's text"


@examples(10)
@given(data=st.data(), model=toy_models())
def test_without_a_reference_auto_drafts_what_it_drafts_without_the_source(
    data: st.DataObject, model: ToyModel
) -> None:
    batch = data.draw(st.lists(prompts(model.vocab_size), min_size=1, max_size=3))
    options = {"num_nodes": 9, "loss": 0.5, "clock": False}
    sources = [SuffixProposer(), TokenRecyclingProposer(), GrammarProposer()]
    drafts = list[list[tuple[list[int], list[int]]]]()
    for proposer in (AutoProposer(**options), MergedProposer(sources, **options)):
        trees = list[tuple[list[int], list[int]]]()

        def collect(record: StepRecord, trees: list[tuple[list[int], list[int]]] = trees) -> None:
            trees += [(each.tree.tokens, each.tree.parents) for each in record.outcomes if each.tree is not None]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("specdec.runtime.binding.costs_of", lambda *_: NOMINAL_COSTS)
            Generator(model, proposer=proposer).generate(batch, max_new_tokens=NUM_NEW, on_step=collect)
        drafts.append(trees)
    assert drafts[0] == drafts[1]
    assert ReferenceProposer() in AutoProposer().merged().proposers
