"""Training-time test (EAGLE-3, section 3.2): a head's drafting steps, for all positions of a text at once.

Step 0 feeds every position i with the target's states F_i and the token x_{i+1}. Step s continues each position by s
drafted pairs, with the true tokens and the head's own features: it attends to what step 0 fed up to i, and to its own
s pairs since, as a chain drafted at i does.
"""

import torch

from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.pair_head import LayerInputs
from specdec.heads.training.packing import PackedRows


def unroll(
    head: Eagle3Head, states: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int
) -> list[torch.Tensor]:
    """Return the layer's outputs of each step, (rows, length, hidden); step s at i predicts x_{i+2+s}.

    Outputs whose token x_{i+1+s} is not in the row's document are meaningless.

    Args:
        head: the head.
        states: (rows, length, num_states * target hidden).
        rows: the text.
        visible: (rows, length, length), True where a position sees another.
        num_steps: number of steps.
    """
    features = head.fuse(states)
    outs: list[torch.Tensor] = []
    fed: list[LayerInputs] = []
    for step in range(num_steps):
        following = rows.tokens.roll(-1 - step, 1)
        inputs = head.enter(following, features, rows.positions + step)
        fed.append(inputs)
        out = head.leave(inputs.residual, _chain_attention(inputs.query, fed, visible))
        outs.append(out)
        features = head.next_features(out)
    return outs


def _chain_attention(query: torch.Tensor, fed: list[LayerInputs], visible: torch.Tensor) -> torch.Tensor:
    """Attend to the first step's visible pairs, and to the same position's pairs of all later steps.

    Args:
        query: (rows, heads, length, head_dim), of the last step.
        fed: attention's inputs of each step.
        visible: (rows, length, length), True where a position sees a pair of the first step.
    """
    first, later = fed[0], fed[1:]
    rows, num_heads, n, dim = query.shape
    grouped = query.reshape(rows, first.key.shape[1], -1, n, dim) * dim**-0.5
    scores = grouped @ first.key.unsqueeze(2).transpose(-1, -2)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    own = [(grouped * inputs.key.unsqueeze(2)).sum(-1, keepdim=True) for inputs in later]
    length = scores.shape[-1]
    weights = torch.cat((scores, *own), -1).softmax(-1, dtype=torch.float32).to(first.value.dtype)
    attended = weights[..., :length] @ first.value.unsqueeze(2)
    for index, inputs in enumerate(later):
        attended = attended + weights[..., length + index, None] * inputs.value.unsqueeze(2)
    return attended.reshape(rows, num_heads, n, dim)
