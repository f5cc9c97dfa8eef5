"""EAGLE-3 and EAGLE for one request in float32, written from the paper without specdec: the tests' reference."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import embedding, linear, silu

Tensors = dict[str, torch.Tensor]
Rotate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rope(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate the halves of (heads, n, head_dim), Llama's convention."""
    dim = x.shape[-1]
    angles = positions[:, None].float() * theta ** (-torch.arange(0, dim, 2).float() / dim)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    low, high = x[..., : dim // 2], x[..., dim // 2 :]
    return x * cos + torch.cat((-high, low), -1) * sin


class ReferenceHead:
    """A head from a folder's tensors, with the target's embeddings under ``embed_tokens.weight``.

    Args:
        window: positions that a pair attends to, its own included; all before it if it is 0.
        norms_residual: the residual is the feature after its norm.
        norms_output: so is the feature of the next pair after the last norm.
        rotate: turns (heads, n, head_dim) at positions (n,); None for the usual rotation by ``theta``.
    """

    def __init__(  # noqa: PLR0917 - as in a configuration
        self,
        tensors: Tensors,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
        theta: float,
        window: int = 0,
        norms_residual: bool = False,
        norms_output: bool = False,
        rotate: Rotate | None = None,
    ) -> None:
        self.t, self.num_heads, self.num_kv_heads = tensors, num_heads, num_kv_heads
        self.eps, self.theta, self.window = eps, theta, window
        self.norms_residual, self.norms_output = norms_residual, norms_output
        self.rotate = rotate or (lambda x, positions: rope(x, positions, theta))
        self.dim = tensors["midlayer.self_attn.q_proj.weight"].shape[0] // num_heads
        self.k = self.v = torch.empty(num_kv_heads, 0, self.dim)
        num_ids = len(tensors["lm_head.weight"])
        self.target_ids = tensors.get("d2t", torch.zeros(num_ids).long()) + torch.arange(num_ids)

    def inputs(self, tokens: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What queries, keys and values are of, and the residual."""
        t, m = self.t, "midlayer."
        embedded = embedding(tokens, t["embed_tokens.weight"])
        norms = t[m + "input_layernorm.weight"], t[m + "hidden_norm.weight"]
        normed = rms(g, norms[1], self.eps)
        return torch.cat((rms(embedded, norms[0], self.eps), normed), -1), normed if self.norms_residual else g

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        if (weight := self.t.get("input_norm.weight")) is not None:
            states = rms(states, weight, self.eps)
        if "fc_norm.0.weight" in self.t:
            weights = [each for name, each in sorted(self.t.items()) if name.startswith("fc_norm.")]
            parts = states.chunk(len(weights), -1)
            states = torch.cat([rms(part, each, self.eps) for part, each in zip(parts, weights, strict=True)], -1)
        return linear(states, self.t["fc.weight"])

    def following(self, out: torch.Tensor) -> torch.Tensor:
        """The features of the pairs after outputs."""
        return rms(out, self.t["norm.weight"], self.eps) if self.norms_output else out

    def layer(
        self, tokens: torch.Tensor, g: torch.Tensor, positions: torch.Tensor, cache: Any, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One pass; g: (n, H), cache: keys and values before, mask: (n, before + n), True where visible."""
        t, m, n = self.t, "midlayer.", len(tokens)
        x, residual = self.inputs(tokens, g)
        q, k, v = (
            linear(x, t[f"{m}self_attn.{name}_proj.weight"], t.get(f"{m}self_attn.{name}_proj.bias"))
            .view(n, heads, self.dim)
            .transpose(0, 1)
            for name, heads in (("q", self.num_heads), ("k", self.num_kv_heads), ("v", self.num_kv_heads))
        )
        if (weight := t.get(m + "self_attn.q_norm.weight")) is not None:
            q, k = rms(q, weight, self.eps), rms(k, t[m + "self_attn.k_norm.weight"], self.eps)
        k = torch.cat((cache[0], self.rotate(k, positions)), 1)
        v = torch.cat((cache[1], v), 1)
        group = self.num_heads // self.num_kv_heads
        scores = self.rotate(q, positions) @ k.repeat_interleave(group, 0).transpose(1, 2) / self.dim**0.5
        attended = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v.repeat_interleave(group, 0)
        rows, bias = attended.transpose(0, 1).flatten(1), t.get(m + "self_attn.o_proj.bias")
        a = residual + linear(rows, t[m + "self_attn.o_proj.weight"], bias)
        y = rms(a, t[m + "post_attention_layernorm.weight"], self.eps)
        inner = silu(linear(y, t[m + "mlp.gate_proj.weight"])) * linear(y, t[m + "mlp.up_proj.weight"])
        return a + linear(inner, t[m + "mlp.down_proj.weight"]), k, v

    def log_probs(self, out: torch.Tensor) -> torch.Tensor:
        return linear(rms(out, self.t["norm.weight"], self.eps), self.t["lm_head.weight"]).log_softmax(-1)

    def extend(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Append pairs of states (n, 3H) at positions i and tokens i + 1; the output of the last."""
        n, before = len(tokens), self.k.shape[1]
        positions = torch.arange(before, before + n)
        distances = positions[:, None] - torch.arange(before + n)
        mask = (distances >= 0) & (distances < (self.window or before + n))
        out, self.k, self.v = self.layer(tokens, self.fuse(states), positions, (self.k, self.v), mask)
        return out[-1]

    def chain(self, last: torch.Tensor, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Log-probabilities after the last pair, and after each of ``tokens`` fed as drafted ones."""
        base, g, found = (self.k, self.v), last[None], [self.log_probs(last)]
        for step, token in enumerate(tokens):
            count = base[0].shape[1] + 1
            visible = torch.arange(count)[None] >= count - (self.window or count)
            position = torch.tensor([self.k.shape[1] + step])
            g, *base = self.layer(token[None], self.following(g), position, base, visible)  # type: ignore[assignment]
            found.append(self.log_probs(g[0]))
        return found

    def grow(self, last: torch.Tensor, width: int, depth: int, total: int) -> tuple[list[int], list[int], list[float]]:
        """EAGLE-2's tree: tokens, parents (-1: the root) and path log-probabilities of its ``total`` best nodes."""
        base = self.k.shape[1]
        values, ids = self.log_probs(last[None])[0].topk(width)
        tokens, parents, scores = self.target_ids[ids].tolist(), [-1] * width, values.tolist()
        level, g, k, v = list(range(width)), self.following(last[None]).repeat(width, 1), self.k, self.v
        column: dict[int, int] = {}
        window = self.window or base + depth + 1
        for d in range(depth):
            columns = k.shape[1]
            mask = torch.zeros(width, columns + width, dtype=torch.bool)
            mask[:, :base] = torch.arange(base) > base + d - window
            for row, fed in enumerate(level):
                column[fed] = columns + row
                node, distance = fed, 0
                while node >= 0:
                    mask[row, column[node]] = distance < window
                    node, distance = parents[node], distance + 1
            fed_tokens = torch.tensor([tokens[node] for node in level])
            out, k, v = self.layer(fed_tokens, g, torch.full((width,), base + d), (k, v), mask)
            values, ids = self.log_probs(out).topk(width)
            paths = values + torch.tensor([scores[node] for node in level])[:, None]
            first = len(tokens)
            tokens += self.target_ids[ids].flatten().tolist()
            scores += paths.flatten().tolist()
            parents += [node for node in level for _ in range(width)]
            best = paths.flatten().topk(width).indices
            level, g = [first + index for index in best.tolist()], self.following(out[best // width])
        kept = sorted(torch.tensor(scores).topk(total).indices.tolist())
        place = {-1: -1, **{node: index for index, node in enumerate(kept)}}
        return (
            [tokens[node] for node in kept],
            [place[parents[node]] for node in kept],
            [scores[node] for node in kept],
        )


class EagleReference(ReferenceHead):
    """A head of EAGLE and EAGLE-2: the states are the features, nothing before attention or the output has a norm."""

    def inputs(self, tokens: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat((embedding(tokens, self.t["embed_tokens.weight"]), g), -1)
        u = linear(joined, self.t["fc.weight"], self.t.get("fc.bias"))
        return u, u

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def log_probs(self, out: torch.Tensor) -> torch.Tensor:
        return linear(out, self.t["lm_head.weight"]).log_softmax(-1)
