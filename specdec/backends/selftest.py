"""Find out in a few tokens whether a model can be driven: does a draft forward equal forwarding each path alone?

The reference is the model's own forward without a cache, so nothing of specdec takes part in it.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec.errors import in_one_line
from specdec.tree import ROOT, DraftTree, Role

if TYPE_CHECKING:
    from specdec.backends.base import Backend
    from specdec.layout import Compiler

_SEED = 2402
_PREFIX = 6
# Rounding of another shape, relative to the spread of the logits; a wrong mask or position moves them by far more.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 3e-2, torch.bfloat16: 1.5e-1}


def probe(backend: "Backend", model: PreTrainedModel, compiler: "Compiler", branching: bool) -> str:
    """Why the model can't be driven so, or "" where it can."""
    try:
        error = _largest_error(backend, model, compiler, branching)
    except Exception as fault:  # third-party modelling code: whatever it raises means that it can't be driven so
        return f"its forward raised {in_one_line(fault)}"
    finally:
        while backend.num_rows:
            backend.release(backend.num_rows - 1)
    if not error <= _TOLERANCE.get(model.dtype, 1.5e-1):
        return f"the logits differ from plain forward passes by {error:.2g} of their spread"
    return ""


def _largest_error(backend: "Backend", model: PreTrainedModel, compiler: "Compiler", branching: bool) -> float:
    """Over all nodes of two steps, the second behind a kept path: the greatest difference over the logits' spread.

    The first step's tree goes along with the prompt.
    """
    rng = np.random.default_rng(_SEED)
    tokens = rng.integers(backend.shapes.vocab_size, size=_PREFIX + 12).tolist()
    committed, fresh = tokens[:_PREFIX], tokens[_PREFIX:]
    worst = 0.0
    for is_prefill in (True, False):
        tree = DraftTree(fresh.pop())
        first = tree.add(ROOT, fresh.pop())
        path = [ROOT, first]
        if branching:  # the kept branch lies behind the other in the cache
            tree.add(first, fresh.pop(), Role.SUPPORT)  # so that some rows of logits are left out
            path = [ROOT, tree.add(ROOT, fresh.pop())]
        tree.add(path[-1], fresh.pop())
        layout = compiler.compile([tree], [len(committed)], backend.shapes)
        prompt = [*committed, tree.tokens[ROOT]]
        output = backend.prefill(prompt, tree, 2 * len(tokens)) if is_prefill else backend.forward(layout)
        for node in layout.columns:
            plain = _plain(model, [*committed, tree.tokens[ROOT], *tree.path(node)])
            spread = float(plain.float().std().clamp_min(1e-6))
            worst = max(worst, float((output.row(0).logits(node).float() - plain.float()).abs().max()) / spread)
        backend.keep([path])
        committed += [tree.tokens[node] for node in path]
    return worst


@torch.inference_mode()
def _plain(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens], device=model.device), use_cache=False).logits
    return logits[0, -1]
