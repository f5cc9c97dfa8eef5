"""Prove a strategy, a rule or a backend of your own: exact enumeration, random cases, and the laws as functions.

- ``outcomes`` runs a function once for every way its random choices can fall, and returns its exact distribution.
- ``shapes``, ``laws`` and ``trees`` are hypothesis strategies for draft shapes, laws over a vocabulary, and trees.
- ``check_verifier``, ``check_drafting``, ``check_proposer`` and ``check_backend`` raise AssertionError where a
  contract's law is broken: that of a rule, of a strategy that samples its candidates together with a rule, of any
  strategy, and of a backend.
- ``first_drafts`` returns the trees that a strategy drafts in its first steps, for worked examples.
- ``toy_tokenizer`` is a tokenizer for a ``ToyModel``, for strategies that read or write text.

hypothesis comes with the extra ``specdec[testing]``; enumeration works without it.
"""

from specdec.testing.backends import check_backend
from specdec.testing.cases import Shape, TableLaw, draw_tree, laws, shapes, trees
from specdec.testing.checks import check_drafting, check_proposer, check_verifier, toy_host
from specdec.testing.drafting import first_drafts
from specdec.testing.emission import emitted_law, expected_length, plain_law, target_of
from specdec.testing.enumeration import EXACT, outcomes, total_variation
from specdec.testing.tokenizer import toy_tokenizer

__all__ = [
    "EXACT",
    "Shape",
    "TableLaw",
    "check_backend",
    "check_drafting",
    "check_proposer",
    "check_verifier",
    "draw_tree",
    "emitted_law",
    "expected_length",
    "first_drafts",
    "laws",
    "outcomes",
    "plain_law",
    "shapes",
    "target_of",
    "total_variation",
    "toy_host",
    "toy_tokenizer",
    "trees",
]
