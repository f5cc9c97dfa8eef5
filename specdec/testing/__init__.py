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

from specdec.testing.backends import check_backend
from specdec.testing.cases import Shape, TableConstraint, TableDistribution, distributions, draw_tree, shapes, trees
from specdec.testing.checks import check_drafting, check_proposer, check_verifier, toy_host
from specdec.testing.constraints import FixedTokens, check_constraint
from specdec.testing.drafting import first_drafts
from specdec.testing.emission import emitted_distribution, expected_length, plain_distribution, target_of
from specdec.testing.enumeration import EXACT, outcomes, total_variation
from specdec.testing.masks import check_mask
from specdec.testing.tokenizer import toy_tokenizer

__all__ = [
    "EXACT",
    "FixedTokens",
    "Shape",
    "TableConstraint",
    "TableDistribution",
    "check_backend",
    "check_constraint",
    "check_drafting",
    "check_mask",
    "check_proposer",
    "check_verifier",
    "distributions",
    "draw_tree",
    "emitted_distribution",
    "expected_length",
    "first_drafts",
    "outcomes",
    "plain_distribution",
    "shapes",
    "target_of",
    "total_variation",
    "toy_host",
    "toy_tokenizer",
    "trees",
]
