"""Block drafters for one text in float32, written from the reports without specdec, masks or caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from tests.support.eagle3_reference import rms, rope
from tests.support.mtp_reference import Weights, heads

EPS = 1e-6


@dataclass(frozen=True)
class Layout:
    """What the reference needs to know of a folder."""

    settings: dict[str, Any]
    is_shifted: bool = False  # slot j predicts the token at j + 1
    causal: tuple[bool, ...] = (False, False)
    windows: tuple[int | None, ...] = (None, None)
    by_anchor: bool = False  # the window reaches as far back for every slot
    layer_ids: tuple[int, ...] = (1, 2, 4)  # of transformers' hidden states
    markov: str = ""
    scale: float = 1.0
    softcap: float | None = None
    embedding_scale: float = 1.0
    block: int = 4
    mask: int = 7
    head_dim: int = 8
    theta: float = 500.0
    draft_ids: Sequence[int] | None = None
    has_output: bool = False


class BlockReference:
    """A drafter with a folder's tensors.

    Args:
        embeddings, output: the target's.
    """

    def __init__(
        self, layout: Layout, tensors: dict[str, torch.Tensor], embeddings: torch.Tensor, output: torch.Tensor
    ) -> None:
        self.layout, self.tensors, self.embeddings = layout, tensors, embeddings
        self.output = tensors["lm_head.weight"] if layout.has_output else output
        self.draft_ids = torch.tensor(layout.draft_ids if layout.draft_ids else range(len(self.output)))

    def final_states(self, states: torch.Tensor, anchor: int) -> torch.Tensor:
        """Those of all slots, (block, H), behind the target's states (s, m * H)."""
        own, s = self.layout, len(states)
        context = rms(linear(states, self.tensors["fc.weight"]), self.tensors["hidden_norm.weight"], EPS)
        x = self.embeddings[torch.tensor([anchor, *[own.mask] * (own.block - 1)])] * own.embedding_scale
        for number, (is_causal, window) in enumerate(zip(own.causal, own.windows, strict=True)):
            weights = Weights(self.tensors, f"layers.{number}.")
            y = rms(x, weights("input_layernorm"), EPS)
            rows = torch.cat((context, y))
            q = heads(weights.project(y, "self_attn.q_proj"), own.head_dim)
            k = heads(weights.project(rows, "self_attn.k_proj"), own.head_dim)
            v = heads(weights.project(rows, "self_attn.v_proj"), own.head_dim)
            if "layers.0.self_attn.q_norm.weight" in self.tensors:
                q, k = rms(q, weights("self_attn.q_norm"), EPS), rms(k, weights("self_attn.k_norm"), EPS)
            places = torch.arange(s + own.block)
            q, k = rope(q, places[s:], own.theta), rope(k, places, own.theta)
            group, attended = len(q) // len(k), []
            for slot in range(own.block):
                seen = torch.tensor(
                    [key for key in range(s + own.block) if self._sees(s, slot, key, is_causal, window)]
                )
                keys, values = (each[:, seen].repeat_interleave(group, 0) for each in (k, v))
                weight = (q[:, slot, None] @ keys.transpose(1, 2) / own.head_dim**0.5).softmax(-1)
                attended.append((weight @ values).flatten())
            x = x + weights.project(torch.stack(attended), "self_attn.o_proj")
            x = x + weights.mlp(rms(x, weights("post_attention_layernorm"), EPS))
        return rms(x, self.tensors["norm.weight"], EPS)

    def _sees(self, s: int, slot: int, key: int, is_causal: bool, window: int | None) -> bool:
        place = s + slot
        if key >= s and is_causal and key > place:
            return False
        if window is None:
            return True
        if self.layout.by_anchor:
            return key >= s or key >= s - window
        return abs(place - key) < window

    def base_logits(self, final: torch.Tensor) -> torch.Tensor:
        """(drafted, Vd) of those slots that predict."""
        own = self.layout
        logits = linear(final if own.is_shifted else final[1:], self.output) * own.scale
        return logits if own.softcap is None else own.softcap * torch.tanh(logits / own.softcap)

    def log_probs(
        self, states: torch.Tensor, anchor: int, path: Sequence[int] = (), num_kept: int | None = None
    ) -> torch.Tensor:
        """(Vd,) of the token after a path of drafted tokens, all of the target's vocabulary.

        Args:
            num_kept: tokens that are probable without the Markov head; the others have none behind it.
        """
        final, level = self.final_states(states, anchor), len(path)
        logits = self.base_logits(final)[level]
        if self.layout.markov:
            slots = final if self.layout.is_shifted else final[1:]
            kept = logits.topk(min(num_kept or len(logits), len(logits))).indices
            others = torch.ones(len(logits), dtype=torch.bool).index_fill(0, kept, False)
            logits = (logits + self._bias(slots, [anchor, *path])).masked_fill(others, -torch.inf)
        return logits.log_softmax(-1)

    def _bias(self, slots: torch.Tensor, before: Sequence[int]) -> torch.Tensor:
        t, kind = self.tensors, self.layout.markov
        w1, w2 = t["markov_head.markov_w1.weight"], t["markov_head.markov_w2.weight"]
        state = torch.zeros(w1.shape[1])
        for slot, token in zip(slots, before, strict=False):
            vector = w1[token]
            if kind == "gated":
                joined = torch.cat((slot, vector))
                gate = linear(joined, t["markov_head.gate_proj.weight"], t["markov_head.gate_proj.bias"])
                vector = gate.sigmoid() * vector
            elif kind == "rnn":
                joined = torch.cat((state, vector, slot))
                g, c, o = linear(joined, t["markov_head.joint_proj.weight"], t["markov_head.joint_proj.bias"]).chunk(3)
                state, vector = g.sigmoid() * state + (1 - g.sigmoid()) * c.tanh(), o.tanh()
        return linear(vector, w2)
