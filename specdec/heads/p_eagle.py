"""P-EAGLE's draft head ("P-EAGLE", arXiv 2602.01469): EAGLE-3's layer and further ones, which draft in one pass.

The pairs of the text are EAGLE-3's. A token that isn't drafted yet has a mask pair: the embedding of ``mask_token_id``
and ``mask_hidden`` in place of the target's states. With K - 1 mask pairs after the text's last pair, one causal pass
predicts K tokens, of which none depends on the draw of another.

A cache's key-value heads are those of all layers, one layer after another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.config import PEagleConfig
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.layers import DecoderLayer, LayerInputs
from specdec.heads.torch_runner import attention, most_probable, write_slots

# Returns attention, (batch, heads, n, head_dim), in a layer by its number.
Attend = Callable[[int, LayerInputs], torch.Tensor]


class PEagleHead(Eagle3Head):
    """A P-EAGLE head; its parameters have the names of ``speculators``' folders, except the first layer's, EAGLE-3's.

    Args:
        config: sizes and variants.
        others: as for ``Eagle3Head``.
    """

    config: PEagleConfig

    def __init__(self, config: PEagleConfig, *others: Any, **named: Any) -> None:
        super().__init__(config, *others, **named)
        where: dict[str, Any] = {"device": self.fc.weight.device, "dtype": self.fc.weight.dtype}
        self.layers = nn.ModuleDict(
            {str(number): DecoderLayer(config, **where) for number in range(1, config.num_layers)}
        )
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, config.states_size, **where))

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the last layer's output, (batch, n, hidden), for pairs.

        Args:
            tokens: (batch, n).
            states: (batch, n, states size), the target's or ``mask_hidden``.
            positions: (batch, n).
            attend: called once for each layer, in order.
        """
        inputs = self.enter(tokens, self.fuse(states), positions)
        out = self.leave(inputs.residual, attend(0, inputs))
        cos, sin = self.rotary.at(positions, out.dtype)
        for number, layer in enumerate(self.layers.values(), 1):
            assert isinstance(layer, DecoderLayer), "all layers but the first are alike"
            inputs = layer.enter(out, cos, sin)
            out = layer.leave(inputs.residual, attend(number, inputs))
        return out

    def no_key_values(self) -> KeyValues:
        one = super().no_key_values()
        return KeyValues(*(each.repeat(1, self.config.num_layers, 1, 1) for each in one))

    def layer_of(self, cache: KeyValues, number: int) -> KeyValues:
        """Return a layer's keys and values of a cache."""
        heads = self.config.num_key_value_heads
        return KeyValues(*(each[:, number * heads : (number + 1) * heads] for each in cache))

    def key_values(self, states: torch.Tensor, tokens: torch.Tensor, before: KeyValues) -> KeyValues:
        window, found = self.config.sliding_window, list[KeyValues]()
        positions, visible = before.next_pairs(tokens.shape[1], window)

        def attend(number: int, inputs: LayerInputs) -> torch.Tensor:
            found.append(KeyValues(inputs.key, inputs.value))
            keys, values = self.layer_of(before, number).followed_by(found[-1])
            return scaled_dot_product_attention(inputs.query, keys, values, visible, enable_gqa=True)

        self(tokens, states, positions, attend)
        return KeyValues(*(torch.cat(each, 1) for each in zip(*found, strict=True)))


class PEagleRunner(HeadRunner):
    """Runs a head on the device of its weights; a pass drafts ``depth`` tokens after the last pair of each request.

    Args:
        head: the head.
        num_tokens: number of tokens that a pass returns for each of the drafted positions.
        depth: number of drafted positions.
    """

    head: PEagleHead

    def __init__(self, head: PEagleHead, num_tokens: int, depth: int) -> None:
        super().__init__(head, num_tokens)
        self.depth, self._target_ids = depth, head.target_ids.cpu().numpy()

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        """Run a pass with mask pairs after each request's last pair, and write all keys and values to their slots.

        Args:
            pairs: with ``fuses`` and ``last``.
            cache: with room for ``depth - 1`` more pairs than there are.
            noise: (requests, depth, draft vocab), of each drafted position.

        Returns:
            The continuations of the last pair and of the mask pairs, (requests, depth, k).
        """
        assert pairs.fuses, "the head doesn't read features of its own"
        assert pairs.last is not None, "mask pairs come after a last pair"
        head, device, every = self.head, cache.keys.device, self._with_masks(pairs, pairs.last)
        ids = torch.from_numpy(np.stack((every.tokens, every.positions))).to(device)

        def attend(number: int, inputs: LayerInputs) -> torch.Tensor:
            own = head.layer_of(cache, number)
            write_slots(own, inputs.key, inputs.value, every.starts)
            return attention(inputs.query, own, every, head.config.sliding_window)

        out = head(ids[0], every.features, ids[1], attend)
        wanted = torch.from_numpy(pairs.last[:, None] + np.arange(self.depth)).to(device)
        out = out.gather(1, wanted[..., None].expand(-1, -1, out.shape[-1]))
        draft_ids, log_probs = most_probable(head.logits(out), self.num_tokens, noise)
        return Continuations(self._target_ids[draft_ids], log_probs, out)

    def _with_masks(self, pairs: Pairs, last: np.ndarray) -> Pairs:
        """Return the pairs with mask pairs from each request's last pair on."""
        requests, count = len(last), int(last.max()) + self.depth
        slots = np.arange(count)
        tokens = np.full((requests, count), self.head.config.mask_token_id)
        states = self.head.mask_hidden.repeat(requests, count, 1)
        for row, stop in enumerate((last + 1).tolist()):
            tokens[row, :stop], states[row, :stop] = pairs.tokens[row, :stop], pairs.features[row, :stop]
        return Pairs(tokens, pairs.starts[:, None] + slots, pairs.starts, states, fuses=True)
