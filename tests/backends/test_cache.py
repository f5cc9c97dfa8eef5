"""Room for keys and values: made as rows are opened, and told beforehand."""

import torch

from specdec.backends.cache import RaggedCache


def test_rows_opened_one_by_one_are_copied_a_few_times_only_and_the_room_is_known_before_it_is_taken() -> None:
    cache = RaggedCache(num_layers=1)
    generator = torch.Generator().manual_seed(0)
    written, buffers, told = [], set[int](), []
    for row in range(32):
        cache.open(40)
        states = torch.randn(1, 2, 3, 4, generator=generator)
        if row:
            told.append(cache.bytes_for([40] * (row + 1)))
        cache.place(row, [0])
        cache.layers[0].update(states, -states)
        cache.keep(row, range(3))
        written.append(states[0])
        buffers.add(cache.layers[0].keys.data_ptr())
        if row:
            assert told[-1] == cache.layers[0].keys.nbytes * 2
    assert len(buffers) <= 10
    assert len(cache.layers[0].keys) < 48
    for row, states in enumerate(written):
        assert torch.equal(cache.layers[0].keys[row, :, :3], states)
        assert torch.equal(cache.layers[0].values[row, :, :3], -states)
