"""The card of a trained head."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from specdec.training.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class Card:
    """The facts of a head and its training.

    Attributes:
        strategy: the name of the strategy that drafts with the head.
        label: the head's kind in words, with its article.
        target: the model's name.
        digest: of the model.
        num_answer_tokens: of the text.
        num_documents: of the text.
        num_trained_on: answer tokens trained on, repetitions included.
        minutes: of training, up to this head.
        draft_vocab_size: size of the draft vocabulary.
        acceptance: on held-out text.
        seed: of all randomness.
    """

    strategy: str
    label: str
    target: str
    digest: str
    num_answer_tokens: int
    num_documents: int
    num_trained_on: int
    minutes: float
    draft_vocab_size: int
    acceptance: Acceptance
    seed: int


def card(facts: Card, folder: Path) -> str:
    """Return the card as Markdown."""
    shown = facts.acceptance
    accuracy = ", ".join(f"{share:.3f}" for share in shown.accuracy)
    chain = ", ".join(f"{share:.3f}" for share in shown.chain)
    steps = f"{shown.tokens_per_step:.2f} ({shown.num_positions:,} positions)"
    return f"""# {facts.label[0].upper()}{facts.label[1:]} for {facts.target}

Trained by `specdec train head` on text that the model wrote itself, in the published layout (bfloat16).

| | |
|---|---|
| model | {facts.target}, digest `{facts.digest or "unknown"}` |
| text | {facts.num_answer_tokens:,} answer tokens in {facts.num_documents:,} documents |
| training | {facts.num_trained_on:,} answer tokens with repetitions, {facts.minutes:.3g} minutes, seed {facts.seed} |
| draft vocabulary | {facts.draft_vocab_size:,} tokens |
| held-out text, right after the true text, by depth | {accuracy} |
| held-out text, accepted with all before, by depth | {chain} |
| tokens per step, chain of {len(shown.chain)}, held-out text | {steps} |

```sh
specdec generate --model MODEL --proposer {shlex.quote(f"{facts.strategy}:head={folder}")} "…"
```

Held-out text is the model's own, on which heads are right more often than on prompts of users.
"""
