"""A head begun by least squares, which is worth a hundred thousand tokens of training.

``fc`` maps the target's states onto its next final state, so that the head drafts before it has learnt anything. What
``fc`` leaves is regressed on the layer's inputs, at the rank that the values have; heads that look at themselves alone
bring it in. All else begins without effect.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, embedding, rms_norm

from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.logits_map import LogitsMap
from specdec.heads.training.losses import distribution

_PENALTY = 0.003  # of the mean square of an input
_SELF_ATTENTION = 1.3  # of each entry of equal queries and keys
_RANDOM = 0.8
_FEW = 2048  # samples by which the output is scaled
_NORM_FACTORS = 0.4, 0.5, 0.65, 0.8, 1.0, 1.25


@dataclass(frozen=True, slots=True)
class Samples:
    """Positions of the target's text.

    Attributes:
        read: (positions, states size), the target's states at i that the head reads, not scaled.
        tokens: (positions,) the tokens at i + 1.
        final: (positions, hidden) the target's final states at i + 1, after which it predicts what a draft's first step
            does.
    """

    read: torch.Tensor
    tokens: torch.Tensor
    final: torch.Tensor


def state_scales(read: torch.Tensor) -> torch.Tensor:
    """Return the factors, (states size,), that bring each entry of (positions, states size) to a mean square of 1."""
    return read.float().square().mean(0).sqrt().clamp_min(1e-6).reciprocal()


@torch.no_grad()
def least_squares_start(
    head: Eagle3Head,
    samples: Samples,
    scales: torch.Tensor,
    output_rows: torch.Tensor,
    logits_map: LogitsMap,
    norm_weight: torch.Tensor,
    generator: torch.Generator,
) -> float:
    """Set a head's weights from samples; return the share of the next states' energy that ``fc`` explains.

    Args:
        head: the head, in float32; the head's ``fc`` is set for scaled states.
        samples: positions of the target's text.
        scales: (num_states * hidden,) factors on the states.
        output_rows: (draft vocab, hidden), the target's output matrix at the draft vocabulary.
        logits_map: the target's map from products with it to its logits.
        norm_weight: (hidden,) the weight of the target's final norm; ones where it has none.
        generator: the source of randomness, on the head's device.
    """
    layer, config = head.midlayer, head.config
    inputs = samples.read.float() * scales
    wanted = samples.final.float() / norm_weight.float()
    head.fc.weight.copy_(ridge(inputs, wanted).T)
    features = head.fc(inputs)
    rest = wanted - features
    embedded = embedding(samples.tokens, head.embeddings).float()
    x = torch.cat([rms_norm(each, each.shape[-1:], None, config.rms_norm_eps) for each in (embedded, features)], -1)
    for parameter in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
        parameter.zero_()
    for projection in (layer.self_attn.q_proj, layer.mlp.gate_proj, layer.mlp.up_proj):
        projection.weight.normal_(std=_RANDOM * projection.in_features**-0.5, generator=generator)
    _look_at_self(head, x, generator)
    _bring_in(head, x, rest)
    head.lm_head.weight.copy_(output_rows * (logits_map.scale / head.logits_map.scale))
    few = Samples(*(each[:_FEW] for each in (samples.read, samples.tokens, samples.final.float())))
    _scale_output(head, few, features[:_FEW], norm_weight, distribution(few.final, output_rows, logits_map))
    return float(1 - rest.square().sum() / wanted.square().sum())


def ridge(inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the matrix (inputs, outputs) of least squares with a penalty."""
    gram = inputs.T @ inputs
    gram.diagonal().add_(_PENALTY * gram.diagonal().mean())
    solved: torch.Tensor = torch.linalg.solve(gram.double(), (inputs.T @ wanted).double())
    return solved.to(inputs.dtype)


def _look_at_self(head: Eagle3Head, x: torch.Tensor, generator: torch.Generator) -> None:
    """Give the first query head of each group its key's matrix, over whitened inputs."""
    config, attention = head.config, head.midlayer.self_attn
    values, vectors = torch.linalg.eigh((x.T @ x / len(x)).double())
    whitening = (vectors * values.clamp_min(values.max() * 1e-5).rsqrt()) @ vectors.T
    group = config.num_attention_heads // config.num_key_value_heads
    for pair in range(config.num_key_value_heads):
        drawn = torch.randn(x.shape[1], config.head_dim, generator=generator, device=x.device, dtype=torch.float64)
        directions = torch.linalg.qr(drawn).Q.T
        matrix = (_SELF_ATTENTION * directions @ whitening).to(x.dtype)
        attention.k_proj.weight[_block(pair, config.head_dim)] = matrix
        attention.q_proj.weight[_block(pair * group, config.head_dim)] = matrix


def _bring_in(head: Eagle3Head, x: torch.Tensor, rest: torch.Tensor) -> None:
    """Set values and their outputs to the best map of their rank from the layer's inputs to what ``fc`` leaves."""
    config, attention = head.config, head.midlayer.self_attn
    full = ridge(x, rest)
    rank = min(config.num_key_value_heads * config.head_dim, full.shape[1])
    _, vectors = torch.linalg.eigh((full.T @ (x.T @ x) @ full).double())
    basis = vectors[:, -rank:].to(x.dtype)
    attention.v_proj.weight.zero_()
    attention.v_proj.weight[:rank] = (full @ basis).T
    group = config.num_attention_heads // config.num_key_value_heads
    for pair in range(config.num_key_value_heads):
        part = basis[:, _block(pair, config.head_dim)]
        first = pair * group * config.head_dim
        attention.o_proj.weight[:, first : first + part.shape[1]] = part


def _scale_output(
    head: Eagle3Head, samples: Samples, features: torch.Tensor, norm_weight: torch.Tensor, teacher: torch.Tensor
) -> None:
    """Choose the norm's weight among multiples of the target's: the one of lowest loss."""
    ones = torch.ones_like(samples.tokens)[:, None]
    inputs = head.enter(samples.tokens[:, None], features[:, None], ones)
    group = head.config.num_attention_heads // head.config.num_key_value_heads
    out = head.leave(inputs.residual, inputs.value.repeat_interleave(group, 1))[:, 0]  # each attends to itself
    losses = []
    for factor in _NORM_FACTORS:
        head.norm.weight.copy_(norm_weight.float() * factor)
        losses.append(cross_entropy(head.logits(out), teacher).item())
    best = _NORM_FACTORS[losses.index(min(losses))]
    head.norm.weight.copy_(norm_weight.float() * best)


def _block(index: int, size: int) -> slice:
    return slice(index * size, (index + 1) * size)
