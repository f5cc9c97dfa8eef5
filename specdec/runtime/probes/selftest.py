"""The self-test at load: do draft passes return the same logits as the model's own forward?

Layouts are checked when they are compiled (``walk.py``). Logits show what layouts can't: cache slots, and how the
modelling code uses masks and positions. The reference is the model's own forward without a cache and without specdec.

No fixed tolerance fits all models. The bound on a pass's error is a few times the change of the model's own logits when
the last bit of its embeddings changes: this is how far rounding propagates through the layers, including a mixture of
experts whose choice is nearly a tie. The measured errors of correct passes are smaller.

In half precision, rounding in a deep model is as large as the effect of mistakes. There the first layers are tested as
well, as a model of their own, which has each kind of layer and little rounding.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median_high, median_low

import torch
from transformers import PreTrainedModel

from specdec.errors import ModelError, in_one_line, is_out_of_memory, memory_ran_out
from specdec.models.architecture import name_of
from specdec.models.gradients import own_logits
from specdec.models.weights.layers import rounds_rows
from specdec.runtime.probes.walk import SelfTestResult, Walk, WrongLayout, distances, walk
from specdec.target import Target

_REFERENCE = 12  # tokens
_ROUNDINGS = 4  # ids tested
_SEED = 2402
_MOST_NOISE = 2.0  # correct passes were seen to reach 1.2 of it, mistakes at least 1.4
_COMMON = 0.75
_LEAST_BOUND = 1e-3  # float32 products may be computed in lower precision, and mistakes cause more
_FIRST_LAYERS = 2
_FEW = 2  # positions, of which rounding may turn every second one

_Error = tuple[float, float, float]  # over its bound, over the logits' spread, and the bound


def probe(
    target: Target, model: PreTrainedModel, tries_first_layers: bool = True, is_timed: bool = True
) -> SelfTestResult:
    """Decode a text in passes of every kind, and compare their logits with the model's own forward; called at load.

    Args:
        tries_first_layers: test the model's first layers as well; the target's passes must follow such a change.
        is_timed: leave out large trees if the other passes have taken long.

    Raises:
        ModelError: if memory runs out.
    """
    try:
        fault = ""
        # The first layers come first, since the whole model's passes are recorded.
        if tries_first_layers and torch.finfo(model.dtype).bits < 32:
            with _first_layers(model) as is_shallow:
                fault = _judge(model, _walk(target, model, is_timed)) if is_shallow else ""
        walked = _walk(target, model, is_timed)
        return walked.result(_judge(model, walked) or fault)
    except WrongLayout as fault:
        return SelfTestResult(str(fault))
    except Exception as error:  # third-party modelling code: after any error the model can't be driven in this way
        if is_out_of_memory(error):  # says nothing about the model, and mustn't be remembered
            raise ModelError(f"{name_of(model)} can't be tested: {memory_ran_out(error)}") from error
        return SelfTestResult(f"its forward raised {in_one_line(error)}")


def _walk(target: Target, model: PreTrainedModel, is_timed: bool) -> Walk:
    # A model may have unused ids with arbitrary vectors: NaN was seen.
    return walk(target, lambda ids: _vectors(model, ids).isfinite().all(-1).tolist(), is_timed)


@torch.inference_mode()
def _vectors(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    vectors: torch.Tensor = model.get_input_embeddings()(torch.tensor(ids, device=model.device))
    return vectors


@contextmanager
def _first_layers(model: PreTrainedModel) -> Iterator[bool]:
    """Temporarily reduce the model to its first layers, one of each kind; yields True if it had more and runs."""
    config = model.config.get_text_config()
    kinds = list(getattr(config, "layer_types", None) or ())
    count = max(_FIRST_LAYERS, *(1 + kinds.index(kind) for kind in kinds), 0)
    depth = config.num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth > count]
    modules = [layers._modules for layers in lists]
    for layers in lists:
        layers._modules = dict(list(layers._modules.items())[:count])
    try:
        yield bool(lists) and _runs(model)
    finally:
        for layers, all_of_them in zip(lists, modules, strict=True):
            layers._modules = all_of_them


@torch.inference_mode()
def _runs(model: PreTrainedModel) -> bool:
    try:
        return bool(own_logits(model, [[0, 1]]).isfinite().all())
    except Exception:  # third-party modelling code that depends on the number of layers
        return False


@torch.inference_mode()
def _judge(model: PreTrainedModel, walked: Walk) -> str:
    """Return which kind of pass is wrong, and how, or ""."""
    tokens = walked.tokens[:_REFERENCE]
    reference = own_logits(model, [tokens])[0]
    bounds = _bounds(model, tokens, reference).tolist()
    far = min((position for position in walked.plain if position >= len(reference)), default=len(walked.tokens))
    far_logits = own_logits(model, [walked.tokens], len(walked.tokens) - far)[0]
    fault = _fault(walked, reference, bounds, far_logits, max(bounds))
    if fault and any(map(rounds_rows, model.modules())):
        # Layers that round their input may round a number differently, with large effects; a few tokens may show none.
        bound = max(*bounds, *_bounds(model, walked.tokens, far_logits).tolist())
        fault = _fault(walked, reference, bounds, far_logits, bound)
    return fault


def _fault(
    walked: Walk, reference: torch.Tensor, bounds: Sequence[float], far_logits: torch.Tensor, far_bound: float
) -> str:
    """Return the first kind of pass whose logits deviate from the model's, at the first or the last tokens, or ""."""
    errors: dict[str, list[_Error]] = {}
    far, spread = len(walked.tokens) - len(far_logits), _spread(reference)
    for kind, position, logits in walked.passes():
        is_near = position < len(reference)
        expected = reference[position] if is_near else far_logits[position - far]
        bound = bounds[position] if is_near else far_bound
        error = float(distances(logits.float(), expected)) / spread
        where = kind if is_near else f"{kind} after a long context"
        errors.setdefault(where, []).append((error / bound if math.isfinite(error) else math.inf, error, bound))
    for where, found in errors.items():
        # A mistake affects at least half of the positions; rounding may change the choice of experts at one or two.
        below = max(found) if max(found)[0] == math.inf else median_low(found)
        above = max(below, median_high(found)) if len(found) > _FEW else below
        if math.sqrt(below[0] * above[0]) > 1.0:
            _, error, bound = above
            return f"{where} is off from plain forward passes by {error:.2g} of the logits' spread; allowed {bound:.2g}"
    return ""


def _bounds(model: PreTrainedModel, tokens: Sequence[int], reference: torch.Tensor) -> torch.Tensor:
    """Return the largest error of a correct pass at the last ``len(reference)`` positions.

    It is relative to the logits' spread.
    """
    with _rounded_otherwise(model):
        logits = own_logits(model, [tokens] * _ROUNDINGS, len(reference))
    noise = distances(logits, reference).amax(0) / _spread(reference)
    # Every position may deviate as much as a quarter of the positions do; larger deviations are allowed in place.
    return (_MOST_NOISE * noise.clamp_min(float(noise.quantile(_COMMON)))).clamp_min(_LEAST_BOUND)


@contextmanager
def _rounded_otherwise(model: PreTrainedModel) -> Iterator[None]:
    """Temporarily change the last bit of embeddings, up or down."""

    def shift(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(_SEED)
        signs = torch.randint(2, output.shape, generator=generator).to(output.device, output.dtype) * 2 - 1
        return output + output * signs * torch.finfo(output.dtype).eps

    handle = model.get_input_embeddings().register_forward_hook(shift)
    try:
        yield
    finally:
        handle.remove()


def _spread(logits: torch.Tensor) -> float:
    return float(logits.std().clamp_min(1e-6))
