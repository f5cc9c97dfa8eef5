"""A static cache for rows that each decode one token per pass, and attention over it."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from specdec.errors import ModelError, plural
from specdec.models.architecture import name_of

_TRIALS = 3

# (rows, pairs, group, dim), (rows, pairs, slots, dim) twice, (rows, 1, 1, slots), scale -> (rows, pairs, group, dim)
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float | None], torch.Tensor]


def fused(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Torch's fused attention."""
    return scaled_dot_product_attention(query, keys, values, mask, scale=scale)


def by_products(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Attention by two batched products, which read keys and values once, for a few queries each."""
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ keys.transpose(-1, -2)
    return (scores + mask).softmax(-1, dtype=torch.float32).to(values.dtype) @ values


class StaticCache:
    """Keys and values of all layers; every row is at a length of its own.

    The kernel of attention is the faster one on this device for these shapes.

    Args:
        model: the target.
        num_rows: number of rows.
        num_slots: most tokens of a row.

    Attributes:
        lengths: (rows,) tokens cached in each row, which the caller updates.
    """

    def __init__(self, model: PreTrainedModel, num_rows: int, num_slots: int) -> None:
        config = model.config.get_text_config()
        pairs = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = config.num_hidden_layers, 2, num_rows, pairs, num_slots, dim
        self.name = name_of(model)
        self.layers = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.rows = torch.arange(num_rows, device=model.device)
        self.slots = torch.arange(num_slots, device=model.device)
        self.lengths = torch.zeros(num_rows, dtype=torch.long, device=model.device)
        self.place()
        self.kernel = self._fastest(config.num_attention_heads // pairs)

    def place(self) -> None:
        """Prepare a pass in which each row's token goes to the slot after its last."""
        hidden = self.slots > self.lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.layers.dtype, device=hidden.device)
        self.mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None]

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **rest: Any
    ) -> tuple[torch.Tensor, None]:
        """Write a layer's new keys and values, and attend; an attention function of transformers.

        Query heads of a group are queries of the same keys.

        Raises:
            ModelError: for attention with more than a softmax over all keys.
        """
        self._refuse(rest)
        keys, values = self.layers[module.layer_idx]  # type: ignore[index]  # an int in transformers' attention
        keys[self.rows, :, self.lengths] = key[:, :, 0]
        values[self.rows, :, self.lengths] = value[:, :, 0]
        grouped = query.reshape(len(query), key.shape[1], -1, query.shape[-1])
        attended = self.kernel(grouped, keys, values, self.mask, rest.get("scaling"))
        return attended.flatten(1, 2)[:, None], None

    def _refuse(self, options: dict[str, Any]) -> None:
        """Refuse what the kernels don't compute."""
        used = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
        if used:
            raise ModelError(f"{self.name} can't write many texts at once: its attention uses {' and '.join(used)}")
        window = options.get("sliding_window")
        if window is not None and window < len(self.slots):
            raise ModelError(
                f"{self.name} can't write rows of {plural(len(self.slots), 'token')}: some layers have a window of "
                f"{window}; set fewer answer_tokens or opening_tokens"
            )

    def _fastest(self, group: int) -> Kernel:
        keys, values = self.layers[0]
        query = keys[:, :, :1].expand(-1, -1, group, -1).contiguous()
        candidates: tuple[Kernel, ...] = (fused, by_products)
        return min(candidates, key=lambda kernel: self._seconds(kernel, query, keys, values))

    def _seconds(self, kernel: Kernel, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> float:
        found = []
        for _ in range(_TRIALS):
            began = time.perf_counter()
            kernel(query, keys, values, self.mask, None)[0, 0, 0, 0].item()  # waits for the device
            found.append(time.perf_counter() - began)
        return min(found)
