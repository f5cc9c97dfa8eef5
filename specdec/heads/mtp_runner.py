"""Passes of a multi-token-prediction module, by torch."""

import numpy as np
import torch

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.mtp import MtpHead
from specdec.heads.torch_runner import most_probable, visible_slots, write_slots
from specdec.models.fused_attention import without_cudnn


class MtpRunner(HeadRunner):
    """Runs a module on the device of its weights.

    The layer is run for all pairs of a pass, since its own code computes keys, values and the rest together.
    """

    head: MtpHead

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        device, stop = cache.keys.device, int(pairs.starts.max()) + pairs.tokens.shape[1]

        def update(keys: torch.Tensor, values: torch.Tensor) -> KeyValues:
            write_slots(cache, keys, values, pairs.starts)
            return KeyValues(cache.keys[:, :, :stop], cache.values[:, :, :stop])

        ids = torch.from_numpy(np.stack((pairs.tokens, pairs.positions))).to(device)
        every = Pairs(pairs.tokens, pairs.positions, pairs.starts, pairs.features, visible=pairs.visible)
        visible = torch.from_numpy(visible_slots(every, stop)).to(device)[:, None]
        with without_cudnn(device):
            out = self.head(ids[0], pairs.features, ids[1], visible, update)
        if pairs.last is not None:
            rows, last = torch.arange(len(pairs.last), device=device), torch.from_numpy(pairs.last).to(device)
            out = out[rows, last][:, None]
        draft_ids, log_probs = most_probable(self.head.logits(out), self.num_tokens, noise)
        return Continuations(draft_ids, log_probs, out)
