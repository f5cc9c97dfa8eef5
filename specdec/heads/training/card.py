"""The cards of trained heads, as Markdown."""

import shlex

from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.place import Place
from specdec.heads.training.run import Run
from specdec.heads.training.text import Text
from specdec.models.architecture import name_of


def head_card(training: Eagle3Training, text: Text, run: Run, found: Acceptance, place: Place, seed: int) -> str:
    """Return the card of a head.

    Args:
        training: has the head.
        text: all that the target wrote.
        run: the training up to this head.
        found: the head's acceptance on held-out text.
        place: the head's folder.
        seed: of all randomness.
    """
    model = training.model
    name = str(getattr(model, "name_or_path", "") or name_of(model))
    accuracy = ", ".join(f"{share:.3f}" for share in found.accuracy)
    chain = ", ".join(f"{share:.3f}" for share in found.chain)
    steps = f"{found.tokens_per_step:.2f} ({found.num_positions:,} positions)"
    return f"""# An EAGLE-3 head for {name}

Trained by `specdec train head` on text that the model wrote itself, in the published layout (bfloat16).

| | |
|---|---|
| model | {name}, digest `{place.digest or "unknown"}` |
| text | {text.num_answer_tokens:,} answer tokens in {len(text):,} documents |
| training | {run.num_answer_tokens:,} answer tokens with repetitions, {run.seconds / 60:.3g} minutes, seed {seed} |
| draft vocabulary | {len(training.head.target_ids):,} tokens |
| held-out text, right after the true text, by depth | {accuracy} |
| held-out text, accepted with all before, by depth | {chain} |
| tokens per step, chain of {len(found.chain)}, held-out text | {steps} |

```sh
specdec generate --model MODEL --proposer {shlex.quote(f"eagle3:head={place.folder}")} "…"
```

Held-out text is the model's own, on which heads are right more often than on prompts of users.
"""
