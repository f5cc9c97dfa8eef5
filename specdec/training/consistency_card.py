"""The card of a model that was tuned by consistency training."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from specdec.training.consistency_settings import ConsistencySettings
from specdec.training.tuned_model import ConsistencyRun, JacobiEvaluation


@dataclass(frozen=True, slots=True)
class ConsistencyCard:
    """The facts of a tuned model.

    Attributes:
        original: the original model's name.
        digest: of the original model.
        num_answer_tokens: of the text.
        run: the training up to this model.
        after: the model's evaluation.
        settings: of the training.
    """

    original: str
    digest: str
    num_answer_tokens: int
    run: ConsistencyRun
    after: JacobiEvaluation
    settings: ConsistencySettings

    def text(self, folder: Path) -> str:
        """Return the card as Markdown."""
        run, after, settings, before = self.run, self.after, self.settings, self.run.evaluations[0][1]
        return f"""# Another model than {self.original}

Tuned from {self.original} by `specdec train consistency` (Consistency LLM, arXiv 2403.00835), so that Jacobi decoding
takes fewer steps. Its weights are others, and so are its texts: compare their quality with the original's on your own
tasks. specdec decodes it losslessly, which means the text that this model writes by plain decoding.

| | original | this model |
|---|---|---|
| tokens per step, Jacobi decoding with {settings.block_size} guesses | {before.tokens_per_step:.2f} \
| {after.tokens_per_step:.2f} |
| loss on held-out text of the original, nats per token | {before.loss:.3f} | {after.loss:.3f} |

| | |
|---|---|
| original | {self.original}, digest `{self.digest or "unknown"}` |
| text | {self.num_answer_tokens:,} tokens, written greedily by the original |
| training | {run.num_answer_tokens:,} tokens with repetitions, {run.num_updates:,} updates, {run.seconds / 60:.3g} \
minutes, seed {settings.seed} |
| settings | blocks of {settings.block_size}, learning rate {settings.learning_rate:g}, weight of the autoregressive \
loss {settings.ar_weight:g} |

```sh
specdec generate --model {shlex.quote(str(folder))} --proposer jacobi:n={settings.block_size} "…"
```
"""
