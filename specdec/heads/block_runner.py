"""A block drafter's pass, and the trees that grow from it: DSpark's candidates depend on the token before them.

The pass gives each slot's logits. Of a slot, the most probable tokens are kept, and the Markov head's part is added for
those alone, so a level of a tree costs a product of a few vectors, and no pass.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import linear

from specdec.heads.base import Continuations, KeyValues, Noise, Pairs
from specdec.heads.block_head import BlockHead
from specdec.heads.drafting import GrowingRunner, TreeGrowth
from specdec.heads.first_pass import first_pass
from specdec.heads.layers import LayerInputs
from specdec.heads.pair_cache import PairCache
from specdec.heads.torch_runner import masked_attention, most_probable, noisy, product_of, write_slots

_NUM_KEPT = 64  # of a slot, for the Markov head


class BlockGrowth(TreeGrowth):
    """Draft trees from one pass of a block drafter; ``feed`` runs none."""

    runs_passes = False
    _runner: "BlockRunner"

    def _begin(
        self, caches: Sequence[PairCache], states: Sequence[torch.Tensor], tokens: Sequence[Sequence[int]]
    ) -> Continuations:
        runner = self._runner
        self._noises = [self._noise(level) for level in range(runner.num_drafted)]
        self._slots, *_ = first_pass(runner, caches, states, tokens, Noise.joined(self._noises), runner.block_size)
        anchors = np.array([each[-1] for each in tokens])[:, None]
        self._visible = None
        return runner.after(self._slots, 0, anchors, runner.no_states(len(caches)), self._noises[0])

    def _continue(self, tokens: np.ndarray, features: torch.Tensor) -> Continuations:
        level = len(self._levels)
        return self._runner.after(self._slots, level, tokens, features, self._noises[level])


class BlockRunner(GrowingRunner):
    """Runs a block drafter by torch, on the device of its weights.

    Args:
        head: the drafter.
        num_tokens: as for ``HeadRunner``.

    Attributes:
        num_drafted: the number of levels of a tree at most.
        block_size: the number of slots that a pass needs after a text's.
    """

    growth = BlockGrowth
    head: BlockHead

    def __init__(self, head: BlockHead, num_tokens: int | None) -> None:
        super().__init__(head, num_tokens)
        self.head = self._prepared(head)
        self.num_drafted, self.block_size = head.config.num_drafted, head.config.block_size
        self._target_ids = head.target_ids.cpu().numpy()
        self._num_kept = self.num_tokens
        if head.markov_head is not None:
            self._num_kept = min(max(_NUM_KEPT, self.num_tokens), len(self._target_ids))

    def _prepared(self, head: BlockHead) -> BlockHead:
        return head.fused(product_of(head.fc.weight))

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        """Write the context's keys and values, and run a block for each request after its last pair.

        Args:
            pairs: with ``fuses`` and ``last``.
            cache: with room for ``block_size`` more slots.
            noise: (requests, drafted, draft vocab), of each slot that predicts.

        Returns:
            The draft ids of each slot that predicts, (requests, drafted, kept), with their log-probabilities without
            the Markov head's part; and the slots' final states.
        """
        assert pairs.fuses, "the head reads no features of its own"
        assert pairs.last is not None, "a block lies after a last pair"
        head, device = self.head, cache.keys.device
        context = head.context(pairs.features, torch.from_numpy(pairs.positions).to(device))
        write_slots(cache, context.keys, context.values, pairs.starts)
        block = self._block_of(pairs, pairs.last)
        seen = {
            limits: torch.from_numpy(self._visible(block, *limits)).to(device).expand(-1, self.block_size, -1)
            for limits in head.config.limits
        }

        def attend(number: int, inputs: LayerInputs) -> torch.Tensor:
            own, visible = head.layer_of(cache, number), seen[head.config.limits[number]]
            write_slots(own, inputs.key, inputs.value, block.starts)
            stop = visible.shape[-1]
            return masked_attention(inputs.query, KeyValues(own.keys[:, :, :stop], own.values[:, :, :stop]), visible)

        ids = torch.from_numpy(np.stack((block.tokens, block.positions))).to(device)
        final = head(ids[0], ids[1], attend)[:, self.block_size - self.num_drafted :]
        return Continuations(*self._ranked(head.logits(final), self._num_kept, noise), final)

    @torch.inference_mode()
    def after(
        self, slots: Continuations, level: int, tokens: np.ndarray, states: torch.Tensor, noise: Noise | None
    ) -> Continuations:
        """Return the continuations of a level's nodes.

        Args:
            slots: what ``run`` returned.
            level: of the nodes, 0 for the anchors.
            tokens: (requests, m), the nodes'.
            states: (requests, m, rank), the features of the level before; at first ``no_states``.
            noise: of the level; its scale is that of the Markov head's part, too.
        """
        kept, base = (np.repeat(each[:, level, None], tokens.shape[1], 1) for each in slots[:2])
        if (markov := self.head.markov_head) is None:
            return Continuations(self._target_ids[kept], base, states)
        device, w2 = states.device, markov.markov_w2.weight
        hidden = slots.features[:, level, None].expand(-1, tokens.shape[1], -1)
        latent, states = markov(torch.from_numpy(tokens).to(device), hidden, states)
        if self.returns_all:
            part = linear(latent, w2).float()
        else:
            part = latent.float() @ w2[torch.from_numpy(kept[:, 0]).to(device)].float().transpose(1, 2)
        scale = 1.0 if noise is None else noise.scale
        ranks, log_probs = self._ranked(torch.from_numpy(base).to(device) + part * scale, self.num_tokens, None)
        return Continuations(self._target_ids[np.take_along_axis(kept, ranks, -1)], log_probs, states)

    def _ranked(self, logits: torch.Tensor, num_tokens: int, noise: Noise | None) -> tuple[np.ndarray, np.ndarray]:
        """Return places and log-probabilities, (requests, m, num_tokens) each; all of them in their own order."""
        if not self.returns_all:
            return most_probable(logits, num_tokens, noise)
        log_probs = noisy(logits, noise).log_softmax(-1).cpu().numpy()
        return np.broadcast_to(np.arange(log_probs.shape[-1]), log_probs.shape), log_probs

    def no_states(self, num_requests: int) -> torch.Tensor:
        """Return the Markov head's states at the anchors, (requests, 1, rank)."""
        return self.head.fc.weight.new_zeros(num_requests, 1, self.head.config.markov_rank)

    def _block_of(self, pairs: Pairs, last: np.ndarray) -> Pairs:
        """Return the slots of each request's block, of which the first has its last token."""
        starts = pairs.starts + last + 1
        positions = starts[:, None] + np.arange(self.block_size)
        tokens = np.full(positions.shape, self.head.config.mask_token_id)
        tokens[:, 0] = pairs.tokens[np.arange(len(last)), last]
        return Pairs(tokens, positions, starts, pairs.features)

    def _visible(self, block: Pairs, is_causal: bool, window: int | None) -> np.ndarray:
        """Return the slots that each slot of a block attends to, (requests, 1 or block size, all slots)."""
        own, starts = block.positions[..., None], block.starts[:, None, None]
        slots = np.arange(int(block.positions.max()) + 1)
        visible: np.ndarray = slots <= own if is_causal else slots < starts + self.block_size
        if window is None:
            return visible
        if self.head.config.has_anchors_window:  # of the context's part alone
            return visible & (slots >= starts - window)
        return visible & (np.abs(own - slots) < window)
