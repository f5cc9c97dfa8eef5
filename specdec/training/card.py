"""The cards of trained heads and of tuned models, as Markdown."""

import shlex
from typing import Any

from specdec.models.architecture import name_of
from specdec.training.acceptance import Acceptance
from specdec.training.base import HeadTraining
from specdec.training.place import Place
from specdec.training.run import Run
from specdec.training.settings import ConsistencySettings
from specdec.training.text import Text
from specdec.training.tuned_model import ConsistencyRun, JacobiEvaluation


def _known_as(model: Any) -> str:
    """Return the folder or hub name that a model was loaded by, else its class and family."""
    return str(getattr(model, "name_or_path", "") or name_of(model))


def head_card(training: HeadTraining, text: Text, run: Run, found: Acceptance, place: Place, seed: int) -> str:
    """Return the card of a head.

    Args:
        training: has the head.
        text: all that the target wrote.
        run: the training up to this head.
        found: the head's acceptance on held-out text.
        place: the head's folder.
        seed: of all randomness.
    """
    accuracy = ", ".join(f"{share:.3f}" for share in found.accuracy)
    chain = ", ".join(f"{share:.3f}" for share in found.chain)
    steps = f"{found.tokens_per_step:.2f} ({found.num_positions:,} positions)"
    return f"""# {training.label[0].upper()}{training.label[1:]} for {_known_as(training.model)}

Trained by `specdec train head` on text that the model wrote itself, in the published layout (bfloat16).

| | |
|---|---|
| model | {_known_as(training.model)}, digest `{place.digest or "unknown"}` |
| text | {text.num_answer_tokens:,} answer tokens in {len(text):,} documents |
| training | {run.num_answer_tokens:,} answer tokens with repetitions, {run.seconds / 60:.3g} minutes, seed {seed} |
| draft vocabulary | {len(training.target_ids):,} tokens |
| held-out text, right after the true text, by depth | {accuracy} |
| held-out text, accepted with all before, by depth | {chain} |
| tokens per step, chain of {len(found.chain)}, held-out text | {steps} |

```sh
specdec generate --model MODEL --proposer {shlex.quote(f"{training.strategy}:head={place.folder}")} "…"
```

Held-out text is the model's own, on which heads are right more often than on prompts of users.
"""


def tuned_model_card(
    original: Any,
    place: Place,
    num_answer_tokens: int,
    run: ConsistencyRun,
    after: JacobiEvaluation,
    settings: ConsistencySettings,
) -> str:
    """Return the card of a tuned model.

    Args:
        original: the model that was tuned.
        place: the new model's folder, and the digest of the original.
        num_answer_tokens: of the text.
        run: the training up to this model.
        after: the model's evaluation.
        settings: of the training.
    """
    name, digest, before = _known_as(original), place.digest, run.evaluations[0][1]
    return f"""# Another model than {name}

Tuned from {name} by `specdec train consistency` (Consistency LLM, arXiv 2403.00835), so that Jacobi decoding
takes fewer steps. Its weights are others, and so are its texts: compare their quality with the original's on your own
tasks. specdec decodes it losslessly, which means the text that this model writes by plain decoding.

| | original | this model |
|---|---|---|
| tokens per step, Jacobi decoding with {settings.block_size} guesses | {before.tokens_per_step:.2f} \
| {after.tokens_per_step:.2f} |
| loss on held-out text of the original, nats per token | {before.loss:.3f} | {after.loss:.3f} |

| | |
|---|---|
| original | {name}, digest `{digest or "unknown"}` |
| text | {num_answer_tokens:,} tokens, written greedily by the original |
| training | {run.num_answer_tokens:,} tokens with repetitions, {run.num_updates:,} updates, {run.seconds / 60:.3g} \
minutes, seed {settings.seed} |
| settings | blocks of {settings.block_size}, learning rate {settings.learning_rate:g}, weight of the autoregressive \
loss {settings.ar_weight:g} |

```sh
specdec generate --model {shlex.quote(str(place.folder))} --proposer jacobi:n={settings.block_size} "…"
```
"""
