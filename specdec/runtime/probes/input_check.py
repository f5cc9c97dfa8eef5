"""Are prompts with images, audio or an encoder's states read as the model reads them? Asked at the first of each kind.

The self-test at load walks text, with random states of an encoder. What a model reads besides, no text shows: an input
that later passes need as well, tokens that see one another, positions by another rule, an argument that ``generate``
alone prepares. So the model's own ``generate`` continues the first such prompt by a few tokens, and the logits of
specdec's passes over the same tokens are compared.
"""

from itertools import takewhile
from typing import Any

import torch

from specdec.errors import RequestError
from specdec.inputs.prepared import PreparedPrompt
from specdec.models.rejected_inputs import rejects
from specdec.runtime.probes.findings import recalled
from specdec.runtime.probes.walk import distances
from specdec.target import Target
from specdec.tree import ROOT, DraftTree

_LEAST_BOUND, _ROUNDINGS = 2e-3, 12  # of the logits' spread; a cut image block was off by 0.09


class InputCheck:
    """Checks prompts with inputs, one of each kind."""

    def __init__(self, target: Target, model: Any) -> None:
        self._target, self._model = target, model
        self._faults: dict[str, str] = {}  # by kind

    def check(self, prompt: PreparedPrompt) -> None:
        """Raise RequestError if the model's own logits after a prompt of this kind aren't those of its passes."""
        call = prompt.call
        if call is None:
            return
        if call.names not in self._faults:
            question = f"inputs {type(self._target.backend).__qualname__} {self._target.compiler!r} {call.names}"
            self._faults[call.names] = recalled(self._model, question, str, lambda: self._fault(prompt))
        if fault := self._faults[call.names]:
            from specdec.models.architecture import name_of  # imports transformers, which takes seconds

            raise RequestError(
                f"prompts of {name_of(call.model)} with {call.names} {fault}: decode them with its own generate()"
            )

    def _fault(self, prompt: PreparedPrompt) -> str:
        assert prompt.call is not None, "prompts without a call aren't checked"
        with rejects(prompt.call.model):
            tokens, expected = prompt.call.continuation(prompt.row)
        if not expected.isfinite().all():  # of this prompt's inputs alone, so nothing is found about the model
            raise RequestError(
                f"{type(self._model).__name__} answers the prompt with logits that are NaN or infinite: check the "
                "images or recordings, and the model's dtype"
            )
        placeholders = frozenset[int]() if prompt.inputs is None else prompt.inputs.placeholders
        fed = [*takewhile(lambda token: token not in placeholders, tokens[:-1])]  # as of drafts
        logits = self._logits(prompt, fed)
        own = expected[: len(logits)].float()
        error = float(distances(logits.to(own.device), own).max() / own.std())
        bound = max(_LEAST_BOUND, _ROUNDINGS * torch.finfo(self._model.dtype).eps)
        return "" if error <= bound else f"are read with logits that are off by {error:.2g} of their spread"

    def _logits(self, prompt: PreparedPrompt, tokens: list[int]) -> torch.Tensor:
        """Return the logits of the target's passes at the prompt's last token and those that follow."""
        target, ids = self._target, [*prompt.ids]
        row = target.open(len(ids) + len(tokens) + 1)
        try:
            target.set_inputs(row, prompt.inputs)
            while chunk := target.chunk_after(row, ids):
                target.read(row, chunk)
            tree = DraftTree(ids[-1])
            tree.wanted = [ROOT, *tree.add_chain(ROOT, tokens)]
            planned = target.compile({row: tree}, {row: ids[row.length : -1]})
            output = target.forward(planned).rows[row]
            return torch.stack([output.logits(node).float() for node in tree.wanted])
        finally:
            target.release(row)
