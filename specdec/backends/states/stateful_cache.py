"""The cache of models with recurrent or convolutional layers: states at checkpoints, keys and values."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

from specdec.backends.base import KVBlock
from specdec.backends.cache import RaggedCache, RaggedLayer
from specdec.backends.placement import RowTokens
from specdec.backends.states.layer_states import RaggedStateLayer, Snapshot, StateBlock, StateLayer
from specdec.backends.states.row_states import MOST_CHECKPOINTS, Reading, RowStates
from specdec.backends.states.state_costs import MOST_PENDING, shared_passes
from specdec.backends.wide_passes import MOST_SINGLE, WidePasses
from specdec.models.architecture import RECURRENT, STATES

_CHUNK = 256  # tokens of a pass that rereads a text
_MOST_BYTES = 1 << 30  # of the states after each token, in all passes of a step
_CHEAPER = 8  # at least: a token of a wide pass costs this much less than a pass over one
_NONE: Mapping[int, StateLayer] = {}


class StatefulCache(RaggedCache):
    """Keys and values of attention layers, and states of the others, of rows of different lengths.

    The states of a row are kept at checkpoints. Each pass starts from the last one and leaves it unchanged. Tokens that
    were committed since, the *pending* ones, are read again in front of the pass's own; attention layers overwrite
    their keys and values. A pass whose tokens are all committed moves the checkpoint: a plain step, a chunk of a
    prompt, a draft that was accepted as a whole. If ``MOST_PENDING`` tokens are pending, the draft's root included, or
    a long rest of a prompt, a pass over these alone moves the checkpoint first. Models without recurrence have no
    pending tokens, except right after a rollback, because the states of convolutions can be cut. So can those of
    Mamba-2 on a CPU, after passes over few tokens (``layer_states.after_each``). Finding them takes time, so it is not
    done while drafts are accepted as a whole.

    A row can be rolled back to any length, and filled with copies of another's tokens: it continues from the last
    checkpoint before.

    If a model limits the time steps of prompts alone (``WidePasses``), the prompt has passes of its own, and a rollback
    goes back to a checkpoint in a prompt, because the tokens that stay are then those of a longer prompt.

    Rows share passes (``_joined``). A row that is padded in one, on the right, keeps its checkpoint whatever is
    accepted, because its state after the pass has seen padding tokens, unless it can be cut.

    If only the beginning of a text can be read in a wide pass, each later token has a pass of its own.

    Args:
        kinds: the kind of each layer, as in transformers' ``layer_types``.
        num_states: the number of states of a layer.
        wide: what the model's passes over several tokens need.
        own: layers to use instead of ordinary ones, by number.
    """

    def __init__(
        self, kinds: Sequence[str], num_states: int, wide: WidePasses, own: Mapping[int, StateLayer] = _NONE
    ) -> None:
        super().__init__(0)
        self.layers = [own.get(number) or self._layer(kind, num_states) for number, kind in enumerate(kinds)]
        self._state_layers = [layer for layer in self.layers if isinstance(layer, StateLayer)]
        self._wide = wide
        self._is_prompt = self._finds_each = False  # of the pass being run, as is the following
        self._width = 0
        self._has_room = True  # for the states after each token of the step's short passes
        self._rows: list[RowStates] = []
        self._checkpoint_bytes = 0  # of one; not known before the first pass
        self._is_recurrent = bool(set(kinds) & RECURRENT)
        self._most_pending = MOST_PENDING if self._is_recurrent else _CHUNK
        # Tokens of a pass whose states after each of them are found, and of one such that any of them is known.
        self._most_single = MOST_SINGLE if wide.chunked else 0
        self._most_cuttable = self._most_single if self._is_recurrent else math.inf

    def _layer(self, kind: str, num_states: int) -> RaggedLayer | StateLayer:
        if kind not in STATES:
            return RaggedLayer(self.placement)
        return RaggedStateLayer(self.placement, num_states) if STATES[kind] else StateLayer(num_states)

    def passes(self, chains: Sequence[RowTokens]) -> Iterator[Sequence[RowTokens]]:
        readings = [self._begin(chain) for chain in chains]
        self._has_room = self._bytes_of_each(readings) <= _MOST_BYTES
        # Rows with more passes begin earlier, so that all rows' last ones, over the drafts, come together.
        for num_left in range(max(len(reading.stops) for reading in readings), 0, -1):
            due = [reading for reading in readings if len(reading.stops) == num_left]
            for joined in self._joined(due):
                yield from self._pass(joined)

    def _begin(self, chain: RowTokens) -> Reading:
        """Decide where the passes over a row's chain start and stop."""
        own, tokens, end = self._rows[chain.row], chain.tokens, chain.stop
        own.fed, own.new = tokens, []
        # The root is committed whatever its logits are.
        certain = min(chain.start + chain.num_prefix + 1, end)
        own.has_draft = end > certain
        if own.is_reading:
            own.num_prompt = certain
            own.is_reading = chain.num_prefix == len(tokens)
        has_own_prompt = bool(self._wide.limited) and own.num_prompt == certain
        # A pass over one token after others has no limit.
        usable = [each for each in own.checkpoints if not (has_own_prompt and certain - 1 == each.length > 0)]
        before = self._cheapest(usable, certain, has_own_prompt)
        begin = before.length
        fed = [*own.tokens[begin:], *tokens]
        stops = [*self._stops(begin, certain, end, has_own_prompt)]
        return Reading(chain.row, before, fed, stops, certain, own.num_prompt)

    def _cheapest(self, checkpoints: Sequence[Snapshot], certain: int, has_own_prompt: bool) -> Snapshot:
        """Return the checkpoint to continue from: the last one, or the empty text if one wide pass costs less.

        A prompt whose time steps are limited is read in wide passes alone.
        """
        last = checkpoints[-1]
        is_far = _CHEAPER * (certain - last.length) > certain
        return checkpoints[0] if self._wide.begin_only and (is_far or has_own_prompt) else last

    def _stops(self, begin: int, certain: int, end: int, has_own_prompt: bool) -> Iterable[int]:
        """Return where each pass from ``begin`` to ``end`` stops."""
        if self._wide.begin_only:
            return range(begin + 1 if begin else certain, end + 1)
        is_long = certain - begin >= self._most_pending
        stops = [*range(begin + _CHUNK, certain - 1, _CHUNK), certain] if is_long or has_own_prompt else []
        return dict.fromkeys([*stops, end])

    def _bytes_of_each(self, readings: Sequence[Reading]) -> int:
        """Return the bytes that the states before and after each token of all short passes take at most."""
        bounds = [pair for each in readings for pair in pairwise([each.before.length, *each.stops])]
        short = [stop - start for start, stop in bounds if stop - start <= self._most_single]
        return len(short) * (1 + max(short, default=0)) * self._checkpoint_bytes

    def _joined(self, readings: Sequence[Reading]) -> Iterator[Sequence[Reading]]:
        """Yield the rows that share a pass: all start from a state or none does, and padding costs less than a pass.

        The state after padding tokens is of no use, unless it can be cut. So other rows whose next state is certain to
        become a checkpoint aren't padded.
        """
        groups = defaultdict[Hashable, list[Reading]](list)
        for reading in sorted(readings, key=lambda each: -each.num_next):
            is_cuttable = reading.num_next <= self._most_cuttable
            is_unpadded = reading.stops[0] <= reading.certain and not (is_cuttable and self._has_room)
            unpadded = reading.num_next if is_unpadded else None
            groups[bool(reading.before.layers), reading.is_prompt, is_cuttable, unpadded].append(reading)
        for group in groups.values():
            for places in shared_passes([each.num_next for each in group], not self._wide.one_row):
                yield sorted((group[place] for place in places), key=lambda each: each.row)

    def _pass(self, readings: Sequence[Reading]) -> Iterator[Sequence[RowTokens]]:
        """Yield one pass; the layers' states are set before it and read after it."""
        parts, width = [reading.next_part() for reading in readings], max(reading.num_next for reading in readings)
        self.place([part.row for part in parts], [part.start for part in parts], width)
        self._finds_each = 1 < width <= self._most_single and self._may_be_cut(readings, width)
        for number, layer in enumerate(self._state_layers):
            rows = [each.before.layers[number] for each in readings if each.before.layers]
            layer.enter(rows, width if self._finds_each else 0)
        self._is_prompt, self._width = readings[0].is_prompt, width
        yield parts
        after = [layer.leave() for layer in self._state_layers]
        is_cuttable = all(state.is_cuttable for states in after for state in states)
        for index, (reading, part) in enumerate(zip(readings, parts, strict=True)):
            num_padding = width - len(part.tokens)
            if is_cuttable or not num_padding:
                layers = tuple(tuple(state.of_row(index, num_padding) for state in states) for states in after)
                self._rows[part.row].new.append(Snapshot(part.stop, part.start, layers))
                reading.advance(self._rows[part.row].new[-1])
            else:
                del reading.stops[0]

    def _may_be_cut(self, readings: Sequence[Reading], width: int) -> bool:
        """Return True if a row is padded, or if a draft will probably be rejected as the row's last one was.

        False if the states after each token would take too much memory.
        """
        return self._has_room and any(
            each.num_next < width or (each.stops[0] > each.certain and self._rows[each.row].expects_rejection)
            for each in readings
        )

    def pass_context(self) -> AbstractContextManager[None]:
        return self._wide.prepared(self._is_prompt, self._width, self._finds_each)

    def commit(self, row: int, path: Sequence[int]) -> None:
        assert list(path) == [*range(len(path))], "a model with states is given chains"
        own = self._rows[row]
        own.tokens += own.fed[: len(path)]
        if own.has_draft:
            own.expects_rejection = len(path) < len(own.fed)
        self.lengths[row] += len(path)
        for snapshot in own.new:
            checkpoint = snapshot.at(self.lengths[row])
            if checkpoint is not None:
                if self._wide.limited and own.checkpoints[-1].length > own.num_prompt:
                    own.checkpoints.pop()  # after a prompt only the last one is used, see ``rollback``
                own.add(checkpoint)
                self._checkpoint_bytes = checkpoint.num_bytes
        own.fed, own.new = (), []

    def num_pending(self, row: int) -> int:
        return self.lengths[row] - self._rows[row].checkpoints[-1].length

    def rollback(self, row: int, length: int) -> None:
        super().rollback(row, length)
        own = self._rows[row]
        del own.tokens[length:]
        most = min(length, own.num_prompt) if self._wide.limited else length
        own.checkpoints = [checkpoint for checkpoint in own.checkpoints if checkpoint.length <= most]
        own.fed, own.new, own.is_reading = (), [], True

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        own = self._rows[row]
        most = min(stop, own.num_prompt) if self._wide.limited else stop
        within = tuple(each for each in own.checkpoints if start < each.length <= most)
        parts = super().copy_block(row, start, stop).parts
        return StateBlock(parts, tuple(own.tokens[start:stop]), within, max(most - start, 0))

    def append_blocks(self, row: int, held: Sequence[KVBlock]) -> None:
        copies, own = [each for each in held if isinstance(each, StateBlock)], self._rows[row]
        self._put(row, held, sum(len(each.tokens) for each in copies))
        for each in copies:
            own.tokens += each.tokens
            for checkpoint in each.checkpoints:
                own.add(checkpoint)

    def open(self, capacity: int) -> None:
        super().open(capacity)
        self._rows.append(RowStates())

    def release(self, row: int) -> None:
        super().release(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the slots in use before the pass; there may be no layer with attention to ask."""
        return max(self.placement.starts)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return max(self.placement.starts) + query_length, 0

    def bytes_for(self, capacities: Sequence[int], anew: bool = False) -> int:
        num_rows = len(capacities or self.lengths)
        return super().bytes_for(capacities, anew) + num_rows * MOST_CHECKPOINTS * self._checkpoint_bytes

    @property
    def row_bytes(self) -> int:
        return super().row_bytes + MOST_CHECKPOINTS * self._checkpoint_bytes
