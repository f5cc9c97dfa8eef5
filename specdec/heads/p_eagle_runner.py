"""P-EAGLE's passes, by torch."""

import numpy as np
import torch

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.p_eagle import PEagleHead
from specdec.heads.pair_head import LayerInputs
from specdec.heads.torch_runner import attention, most_probable, write_slots


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
            return attention(inputs.query, own, every)

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
