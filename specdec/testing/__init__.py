"""Tests for your own strategies, acceptance rules and backends: contract checks, exact enumeration, random cases.

- ``check_verifier``, ``check_drafting``, ``check_proposer``, ``check_backend``, ``check_mask`` and ``check_constraint``
  raise AssertionError if a law of the contract is broken: by a rule, by a strategy that samples its candidates together
  with a rule, by any strategy, by a backend, by a mask compiler with its attention, and by a constraint.
- ``outcomes`` runs a function once for each combination of its random choices, and returns its exact distribution.
- ``shapes``, ``distributions`` and ``trees`` are hypothesis strategies for draft shapes, distributions over a
  vocabulary, and trees.
- ``first_drafts`` returns the trees that a strategy drafts in its first steps, for worked examples.
- ``TableConstraint`` and ``FixedTokens`` are constraints on token ids.
- ``toy_tokenizer`` is a tokenizer for a ``ToyModel``, for strategies that read or write text.

hypothesis comes with the extra ``specdec[testing]``; enumeration works without it.
"""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.testing.backends import check_backend as check_backend
    from specdec.testing.cases import Shape as Shape
    from specdec.testing.cases import TableConstraint as TableConstraint
    from specdec.testing.cases import TableDistribution as TableDistribution
    from specdec.testing.cases import distributions as distributions
    from specdec.testing.cases import draw_tree as draw_tree
    from specdec.testing.cases import shapes as shapes
    from specdec.testing.cases import trees as trees
    from specdec.testing.checks import check_drafting as check_drafting
    from specdec.testing.checks import check_proposer as check_proposer
    from specdec.testing.checks import check_verifier as check_verifier
    from specdec.testing.checks import toy_host as toy_host
    from specdec.testing.constraints import FixedTokens as FixedTokens
    from specdec.testing.constraints import check_constraint as check_constraint
    from specdec.testing.drafting import first_drafts as first_drafts
    from specdec.testing.emission import emitted_distribution as emitted_distribution
    from specdec.testing.emission import expected_length as expected_length
    from specdec.testing.emission import plain_distribution as plain_distribution
    from specdec.testing.emission import target_of as target_of
    from specdec.testing.enumeration import EXACT as EXACT
    from specdec.testing.enumeration import outcomes as outcomes
    from specdec.testing.enumeration import total_variation as total_variation
    from specdec.testing.masks import check_mask as check_mask
    from specdec.testing.tokenizer import toy_tokenizer as toy_tokenizer
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
