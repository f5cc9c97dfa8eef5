"""A head's passes with a few fixed shapes, so that on CUDA a pass is one graph replay.

Requests, pairs and slots are padded to a few sizes, and drafts are made in memory of the runner, which graphs read at
fixed addresses. A pass sends its numbers in one copy and its results in another one.
"""

from dataclasses import dataclass

import numpy as np
import torch

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.pair_head import PairHead
from specdec.heads.torch_runner import TorchRunner, masked_attention, noisy
from specdec.machine.cuda_graphs import Graphs, Outputs, power_of_two, slot_bucket
from specdec.machine.number_block import NumberBlock

_LEAST_SLOTS = 1024  # of the memory, which moves rarely then
_LEAST_PAIRS = 8  # of a draft's first pass: one shape, and so one capture, for the usual numbers
_SPARE_SLOTS = 64  # for the levels of a draft; larger drafts move to other memory, and go on without graphs


@dataclass(frozen=True, slots=True)
class PassShape:
    """The sizes and parts of a pass; passes of one shape share a graph.

    Attributes:
        rows: requests, with those of padding.
        pairs: of each request, with those of padding.
        slots: that are read.
        fuses: features are the target's states.
        wants_last: the continuation of one pair of each request is wanted, otherwise those of all.
        is_tree: pairs attend to slots that are listed, otherwise to all up to their own.
        has_noise: logits get noise.
    """

    rows: int
    pairs: int
    slots: int
    fuses: bool
    wants_last: bool
    is_tree: bool
    has_noise: bool

    @classmethod
    def of(cls, pairs: Pairs, noise: Noise | None) -> "PassShape":
        """Return the shape of a pass."""
        requests, count = pairs.tokens.shape
        return cls(
            rows=power_of_two(requests),
            pairs=count if pairs.last is None else max(_LEAST_PAIRS, power_of_two(count)),
            slots=slot_bucket(int(pairs.starts.max()) + count),
            fuses=pairs.fuses,
            wants_last=pairs.last is not None,
            is_tree=pairs.visible is not None,
            has_noise=noise is not None,
        )


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """The inputs of a pass.

    Attributes:
        shape: the pass's.
        numbers: as of ``Pairs``: "tokens" and "positions", (rows, pairs); "starts" and "last", (rows,); in a tree
            "visible", (rows, pairs, slots).
        features: as of ``Pairs``, without padding until the inputs are owned.
        noise: without padding until the inputs are owned.
    """

    shape: PassShape
    numbers: NumberBlock
    features: torch.Tensor
    noise: Noise | None

    def owned(self) -> "HeadInputs":
        shape, features = self.shape, self.features
        made = HeadInputs(
            shape,
            self.numbers.on(features.device),
            features.new_zeros((shape.rows, shape.pairs, features.shape[-1])),
            None
            if self.noise is None
            else Noise(*(each.new_zeros((shape.rows, *each.shape[1:])) for each in self.noise)),
        )
        made._copy_features(self)
        return made

    def copy_(self, other: "HeadInputs") -> None:
        self.numbers.copy_(other.numbers)
        self._copy_features(other)

    def _copy_features(self, other: "HeadInputs") -> None:
        requests, count, _ = other.features.shape
        self.features[:requests, :count].copy_(other.features)
        if self.noise is not None and other.noise is not None:
            for into, each in zip(self.noise, other.noise, strict=True):
                into[:requests].copy_(each)


def numbers_of(pairs: Pairs, shape: PassShape, is_pinned: bool) -> NumberBlock:
    """Return a pass's numbers, padded to its shape, as ``HeadInputs`` has them."""
    requests, count = pairs.tokens.shape
    of_pairs, of_rows = np.zeros((2, shape.rows, shape.pairs), np.int64), np.zeros((2, shape.rows), np.int64)
    of_pairs[:, :requests, :count] = pairs.tokens, pairs.positions
    of_rows[0, :requests] = pairs.starts
    if pairs.last is not None:
        of_rows[1, :requests] = pairs.last
    numbers = {"tokens": of_pairs[0], "positions": of_pairs[1], "starts": of_rows[0], "last": of_rows[1]}
    if pairs.visible is not None:
        visible = np.zeros((shape.rows, shape.pairs, shape.slots), np.bool_)
        visible[:, :, 0] = True  # pairs of padding attend to something, so that they stay finite
        visible[:requests, :count] = pairs.visible[:, :, : shape.slots]
        numbers["visible"] = visible
    return NumberBlock.of(numbers, is_pinned)


class GraphRunner(TorchRunner):
    """Runs a head by torch in passes of fixed shapes, with results as of ``TorchRunner`` up to rounding.

    Passes use the memory of ``buffers``. Graphs are dropped when it has to grow or the head's weights move. A pass in
    other memory is ``TorchRunner``'s own.
    """

    def __init__(self, head: PairHead, num_tokens: int) -> None:
        super().__init__(head, num_tokens)
        self._graphs = Graphs[HeadInputs](head.fc.weight.device)
        self._weights = [*head.parameters(), *head.buffers()]
        self._places: list[int] = []  # of the weights
        self._memory = head.no_key_values()
        self._lent: KeyValues | None = None
        self._is_finite = True  # what was written to the memory

    def buffers(self, requests: int, num_slots: int) -> KeyValues:
        if (places := [each.data_ptr() for each in self._weights]) != self._places:
            self._graphs.forget()
            self._places = places
        num_slots = slot_bucket(num_slots + _SPARE_SLOTS)
        needed = power_of_two(requests), power_of_two(max(num_slots, _LEAST_SLOTS))
        held = len(self._memory.keys), self._memory.keys.shape[2]
        if not self._is_finite or any(size < least for size, least in zip(held, needed, strict=True)):
            rows, slots = map(max, held, needed)
            with torch.inference_mode(False):  # or it couldn't be written to outside
                self._memory = KeyValues(
                    *(each.new_zeros((rows, each.shape[1], slots, each.shape[3])) for each in self._memory)
                )
            self._is_finite = True
        self._lent = KeyValues(*(each[:requests, :, :num_slots] for each in self._memory))
        return self._lent

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        if cache is not self._lent or (noise is not None and noise.noise.shape[1] != 1):
            return super().run(pairs, cache, noise)
        shape = PassShape.of(pairs, noise)
        assert int(pairs.starts.max()) + shape.pairs <= cache.keys.shape[2], "padding is written, too"
        is_pinned = cache.keys.is_cuda
        inputs = HeadInputs(shape, numbers_of(pairs, shape, is_pinned), pairs.features, noise)
        scores, features = self._graphs.run(self._pass, inputs, shape, self._memory.keys)
        requests, count = pairs.wanted.shape
        features = features[:requests, :count].clone()  # while the device is at work
        draft_ids, log_probs = scores.cpu().numpy()[:, :requests, :count]
        # Padding and hidden slots have what earlier passes left there, from which NaN would spread.
        self._is_finite &= bool(np.isfinite(log_probs).all())
        return Continuations(self._target_ids[draft_ids.astype(np.int64)], log_probs, features)

    @torch.inference_mode()
    def _pass(self, inputs: HeadInputs) -> Outputs:
        """Return ids and log-probabilities, (2, rows, m, k), and features, (rows, m, hidden), by the device alone."""
        head, shape, numbers = self._head, inputs.shape, inputs.numbers
        starts = numbers["starts"][:, None]
        pair = torch.arange(shape.pairs, device=inputs.features.device)
        rows = torch.arange(shape.rows, device=pair.device)[:, None]
        features = head.fuse(inputs.features) if shape.fuses else inputs.features
        entered = head.enter(numbers["tokens"], features, numbers["positions"])
        slots = starts + pair
        for into, new in zip(self._memory, (entered.key, entered.value), strict=True):
            into[rows, :, slots] = new.transpose(1, 2)
        residual, query, wanted = entered.residual, entered.query, pair[None]
        if shape.wants_last:
            wanted = numbers["last"][:, None]
            residual, query = residual[rows, wanted], query[rows, :, wanted].transpose(1, 2)
        if shape.is_tree:
            visible = numbers["visible"]
        else:
            read = torch.arange(shape.slots, device=pair.device)
            visible = read <= (starts + wanted)[..., None]
        cache = KeyValues(*(each[: shape.rows, :, : shape.slots] for each in self._memory))
        out = head.leave(residual, masked_attention(query, cache, visible))
        log_probs, draft_ids = noisy(head.logits(out), inputs.noise).log_softmax(-1).topk(self.num_tokens)
        # A float32 represents any token id.
        return torch.stack((draft_ids.float(), log_probs)), head.next_features(out)


def runner_by_torch(head: PairHead, num_tokens: int | None) -> HeadRunner:
    """Return torch's runner of a head: with graphs on CUDA, unless it returns the whole draft vocabulary.

    Those drafts are drawn, so the text depends on them: they must not depend on which passes were captured.
    """
    if num_tokens is None or head.fc.weight.device.type != "cuda":
        return TorchRunner(head, num_tokens)
    return GraphRunner(head, num_tokens)
