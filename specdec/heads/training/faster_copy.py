"""The model that text is written with and heads are trained on: the target, or a faster copy of it."""

from copy import deepcopy
from typing import Any

import torch
from torch.nn import Parameter

from specdec.machine.facts import computes_in_bfloat16


def faster_copy(target: Any) -> Any:
    """Return what stands for a target while text is written and heads are trained.

    On a CPU with bfloat16 instructions that is a copy in bfloat16 of a target in float32: it writes text and computes
    states two and a half times as fast. Heads trained with it draft for the target.
    """
    if target.dtype != torch.float32 or not computes_in_bfloat16(target.device):
        return target
    # Buffers keep their dtype: rotary frequencies need it.
    rounded = {id(each): _rounded(each) for each in target.parameters()}
    return deepcopy(target, memo=rounded)


def _rounded(parameter: Parameter) -> Parameter:
    is_float32 = parameter.dtype == torch.float32
    return Parameter(parameter.detach().bfloat16(), requires_grad=False) if is_float32 else parameter
