"""The size of a strategy: 1 with default options, more with larger numbers, and a merge's is the sum of its parts'."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.plugins.registry import load_plugins
from specdec.strategies.base import Proposer
from specdec.strategies.size import size_of
from tests.support.proposers import our_proposers


def made(text: str) -> Proposer:
    proposer: Proposer = load_plugins().make("proposers", text)
    return proposer


def test_default_options_have_size_1() -> None:
    whole = [cls for cls in our_proposers().values() if not any(f.is_required() for f in cls.model_fields.values())]
    assert len(whole) > 8
    made_of = {cls.__name__: size_of(cls.model_construct()) for cls in whole}
    assert {*made_of.values()} == {1.0}, made_of


@given(st.integers(2, 10**400), st.integers(0, 10**400), st.integers(-1, 10**400))
def test_the_product_of_all_numbers_counts(n: int, w: int, g: int) -> None:
    expected = max(1.0, min(n, 10**12) / 5) * max(1.0, min(w, 10**12) / 15) * max(1.0, min(g, 10**12) / 15)
    assert size_of(made("lookahead").model_copy(update={"N": n, "W": w, "G": g})) == expected


def test_parts_add_up() -> None:
    assert size_of(made("suffix+prompt_lookup:num_tokens=20+token_recycling:k=24")) == 1 + 2 + 4
    assert size_of(made("+".join(["suffix"] * 100))) == 100
    assert size_of(made("token_recycling:num_nodes=1024,min_probability=0.0,k=1000")) > 10_000
    assert size_of(made("draft_model:layers=1024")) == 8
