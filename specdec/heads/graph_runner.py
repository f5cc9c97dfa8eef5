"""A head's drafts with a few fixed shapes, so that on CUDA all levels of a draft are one graph replay.

Each level's candidates are chosen on the device, as ``TreeGrowth`` chooses them on the host. Requests, pairs and slots
are padded to a few sizes, and drafts are made in memory of the runner, which graphs read at fixed addresses. A draft
sends its numbers in one copy, and its candidates come back in another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.functional import pad

from specdec.heads.base import HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.block_head import BlockHead
from specdec.heads.block_runner import BlockRunner
from specdec.heads.drafting import DraftedTrees, DraftSize, WholeDrafts
from specdec.heads.first_pass import append_written, write_cached
from specdec.heads.layers import LayerInputs
from specdec.heads.pair_cache import PairCache
from specdec.heads.pair_head import PairHead
from specdec.heads.torch_runner import TorchRunner, masked_attention, noisy
from specdec.machine.cuda_graphs import GraphInputs, Graphs, Outputs, power_of_two, slot_bucket
from specdec.machine.number_block import NumberBlock

_LEAST_SLOTS = 1024  # of the memory, which moves rarely then
_LEAST_PAIRS = 8  # of a draft: one shape, and so one capture, for the usual numbers


@dataclass(frozen=True, slots=True)
class DraftShape:
    """The sizes of a draft; drafts of one shape share a graph.

    Attributes:
        rows: requests, with those of padding.
        pairs: of each request, with those of padding.
        slots: that are read.
        size: of the levels.
        has_noise: logits get noise.
    """

    rows: int
    pairs: int
    slots: int
    size: DraftSize
    has_noise: bool

    @classmethod
    def of(cls, pairs: Pairs, size: DraftSize, noise: Noise | None) -> "DraftShape":
        """Return the shape of a draft."""
        requests, count = pairs.tokens.shape
        stop = int(pairs.starts.max()) + count + (size.num_levels - 1) * size.width
        num_pairs = max(_LEAST_PAIRS, power_of_two(count))
        return cls(power_of_two(requests), num_pairs, slot_bucket(stop), size, noise is not None)


def inputs_of(pairs: Pairs, shape: DraftShape, noise: Noise | None) -> GraphInputs:
    """Return a draft's inputs, padded to its shape.

    Those of ``Pairs`` are "tokens" and "positions", (rows, pairs), "starts" and "last", (rows, 1), and "features";
    those of ``Noise`` are "scale" and "noise", of each level.
    """
    assert pairs.last is not None, "a draft begins after a last pair"
    (requests, count), device = pairs.tokens.shape, pairs.features.device
    of_pairs, of_rows = np.zeros((2, shape.rows, shape.pairs), np.int64), np.zeros((2, shape.rows, 1), np.int64)
    of_pairs[:, :requests, :count] = pairs.tokens, pairs.positions
    of_rows[:, :requests, 0] = pairs.starts, pairs.last
    numbers = {"tokens": of_pairs[0], "positions": of_pairs[1], "starts": of_rows[0], "last": of_rows[1]}
    num_rows = shape.rows - requests
    tensors = {"features": pad(pairs.features, (0, 0, 0, shape.pairs - count, 0, num_rows))}
    if noise is not None:
        tensors |= {name: pad(each, (0, 0, 0, 0, 0, num_rows)) for name, each in noise._asdict().items()}
    return GraphInputs(NumberBlock.of(numbers, device.type == "cuda"), tensors, device)


class GraphRunner(TorchRunner, WholeDrafts):
    """Runs a head by torch in drafts of fixed shapes, which are those of ``TorchRunner`` up to rounding.

    Graphs are dropped when the memory of drafts has to grow or the head's weights move.
    """

    def __init__(self, head: PairHead, num_tokens: int) -> None:
        super().__init__(head, num_tokens)
        self._graphs = Graphs(head.fc.weight.device)
        self._weights = [*head.parameters(), *head.buffers()]
        self._places: list[int] = []  # of the weights
        self._memory = head.no_key_values()
        self._is_finite = True  # what was written to the memory

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"the head drafts without CUDA graphs: {self._graphs.fault}",) if self._graphs.fault else ()

    @torch.inference_mode()
    def draft(self, pairs: Pairs, caches: Sequence[PairCache], size: DraftSize, noise: Noise | None) -> DraftedTrees:
        shape = DraftShape.of(pairs, size, noise)
        self._make_room(shape.rows, max(shape.slots, int(pairs.starts.max()) + shape.pairs))  # padding is written, too
        write_cached(caches, self._memory)
        draft, inputs = partial(self._draft, shape=shape), inputs_of(pairs, shape, noise)
        (candidates,) = self._graphs.run(draft, inputs, shape, self._memory.keys)
        append_written(caches, self._memory, pairs)
        ids, parents, log_probs = candidates.cpu().numpy()[:, : len(caches)]
        # Padding and hidden slots have what earlier drafts left there, from which NaN would spread.
        self._is_finite &= bool(np.isfinite(log_probs).all())
        return DraftedTrees(ids.astype(np.int64), parents.astype(np.int64), log_probs)

    def _make_room(self, num_rows: int, num_slots: int) -> None:
        """Make room for drafts, whose slots are finite."""
        if (places := [each.data_ptr() for each in self._weights]) != self._places:
            self._graphs.forget()
            self._places = places
        needed, held = (num_rows, power_of_two(max(num_slots, _LEAST_SLOTS))), self._memory.keys.shape[::2]
        if not self._is_finite or any(size < least for size, least in zip(held, needed, strict=True)):
            rows, slots = map(max, held, needed)
            with torch.inference_mode(False):  # or it couldn't be written to outside
                self._memory = KeyValues(
                    *(each.new_zeros((rows, each.shape[1], slots, each.shape[3])) for each in self._memory)
                )
            self._is_finite = True

    @torch.inference_mode()
    def _draft(self, inputs: GraphInputs, shape: DraftShape) -> Outputs:
        """Return each candidate's token, parent and log-probability, (3, rows, candidates), by the device alone."""
        head, (width, num_children, num_levels) = self._head, shape.size
        starts, last = inputs["starts"], inputs["last"]
        lengths = starts + last + 1
        device = lengths.device
        rows, slots = torch.arange(shape.rows, device=device)[:, None], torch.arange(shape.slots, device=device)
        nodes, noise = torch.arange(width, device=device), list[Noise | None]([None] * num_levels)
        if shape.has_noise:
            noise[:] = [Noise(inputs["scale"], each[:, None]) for each in inputs["noise"].unbind(1)]
        window = head.config.sliding_window or shape.slots
        visible = ((slots < lengths) & (slots >= lengths - window))[:, None]
        entered = head.enter(inputs["tokens"], head.fuse(inputs["features"]), inputs["positions"])
        self._write(entered, starts + torch.arange(shape.pairs, device=device))
        residual, query = entered.residual[rows, last], entered.query[rows, :, last].transpose(1, 2)
        out, tokens, log_probs = self._continued(residual, query, visible, num_children, noise[0])
        levels = [(tokens, torch.full_like(tokens, -1), log_probs)]
        for level in range(1, num_levels):
            # A stable sort, as the host's.
            fed = log_probs.sort(dim=-1, descending=True, stable=True).indices[:, :width]
            parents, own = fed // num_children, lengths + (level - 1) * width + nodes
            positions = (lengths + level - 1).expand(-1, width)
            visible = visible[rows, parents] & (slots > positions[..., None] - window) | (slots == own[..., None])
            entered = head.enter(tokens[rows, fed], head.next_features(out)[rows, parents], positions)
            self._write(entered, own)
            num_earlier, above = sum(each[0].shape[1] for each in levels[:-1]), log_probs[rows, fed]
            out, tokens, log_probs = self._continued(*entered[:2], visible, num_children, noise[level])
            log_probs += above.repeat_interleave(num_children, 1)
            levels.append((tokens, (num_earlier + fed).repeat_interleave(num_children, 1), log_probs))
        # A float32 represents any token id.
        return (torch.stack([torch.cat(each, 1).float() for each in zip(*levels, strict=True)]),)

    def _write(self, entered: LayerInputs, slots: torch.Tensor) -> None:
        """Write the keys and values of pairs to their slots, (rows, pairs)."""
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        for into, new in zip(self._memory, (entered.key, entered.value), strict=True):
            into[rows, :, slots] = new.transpose(1, 2)

    def _continued(
        self, residual: torch.Tensor, query: torch.Tensor, visible: torch.Tensor, num_children: int, noise: Noise | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the layer's output after pairs, and the tokens and log-probabilities, (rows, children), after them."""
        rows, _, slots = visible.shape
        cache = KeyValues(*(each[:rows, :, :slots] for each in self._memory))
        out = self._head.leave(residual, masked_attention(query, cache, visible))
        log_probs, draft_ids = noisy(self._head.logits(out), noise).log_softmax(-1).topk(num_children)
        return out, self._head.target_ids[draft_ids].flatten(1), log_probs.flatten(1)


def runner_by_torch(head: PairHead | BlockHead, num_tokens: int | None) -> HeadRunner:
    """Return torch's runner of a head: with graphs on CUDA, unless it returns the whole draft vocabulary.

    Those drafts are drawn, so the text depends on them: they must not depend on which passes were captured.
    """
    if isinstance(head, BlockHead):
        return BlockRunner(head, num_tokens)
    if num_tokens is None or head.fc.weight.device.type != "cuda":
        return TorchRunner(head, num_tokens)
    return GraphRunner(head, num_tokens)
