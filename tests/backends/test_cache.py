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
        cache.place([row], [0], 3)
        cache.layers[0].update(states, -states)
        cache.commit(row, range(3))
        written.append(states[0])
        buffers.add(cache.layers[0].keys.data_ptr())
        if row:
            assert told[-1] == cache.layers[0].keys.nbytes * 2
    assert len(buffers) <= 10
    assert len(cache.layers[0].keys) < 48
    for row, states in enumerate(written):
        assert torch.equal(cache.layers[0].keys[row, :, :3], states)
        assert torch.equal(cache.layers[0].values[row, :, :3], -states)


def test_rows_that_are_expected_are_made_room_for_at_once() -> None:
    cache = RaggedCache(num_layers=1)
    states = torch.ones(1, 2, 3, 4)
    buffers = set[int]()
    for row in range(32):
        cache.open(40)
        if row == 1:
            told = cache.bytes_for([40] * 30 + [300])
            cache.expect([40] * 30 + [300])
        cache.place([row], [0], 3)
        cache.layers[0].update(states, states)
        buffers.add(cache.layers[0].keys.data_ptr())
        if row == 1:
            assert cache.layers[0].keys.nbytes * 2 == told
    assert len(buffers) == 3


def test_the_last_row_takes_a_closed_ones_place_and_nothing_is_left_of_either() -> None:
    cache = RaggedCache(num_layers=1)
    for row in range(3):
        cache.open(40)
        cache.place([row], [0], 5)
        cache.layers[0].update(torch.full((1, 2, 5, 4), row + 1.0), torch.full((1, 2, 5, 4), torch.nan))
        cache.commit(row, range(row + 2))
    cache.release(0)
    layer = cache.layers[0]
    assert cache.lengths == [4, 3]
    assert layer.keys[:2, 0, :5, 0].tolist() == [[3.0, 3.0, 3.0, 3.0, 0.0], [2.0] * 5]
    assert not layer.keys[2].any()
    assert torch.equal(layer.values[2], torch.zeros_like(layer.values[2])), "NaN passes through masks"
    assert not layer.values[0, :, 4:].isnan().any()
    cache.release(1)
    assert cache.lengths == [4]
    assert layer.keys[0, 0, :5, 0].tolist() == [3.0, 3.0, 3.0, 3.0, 0.0]
    assert not layer.keys[1].any()


def test_a_row_that_never_got_room_is_closed_all_the_same() -> None:
    cache = RaggedCache(num_layers=2)
    cache.open(40)
    cache.place([0], [0], 3)
    cache.layers[0].update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    cache.commit(0, range(3))
    cache.open(40)
    cache.place([1], [0], 3)  # and no memory for it
    cache.release(1)
    cache.open(40)
    assert cache.lengths == [3, 0]
    cache.release(0)
    assert cache.lengths == [0]


def test_a_long_texts_room_is_given_back_while_others_go_on() -> None:
    cache = RaggedCache(num_layers=1)
    states = torch.randn(1, 2, 3, 4)
    for row, capacity in enumerate((40, 5000, 40)):
        cache.open(capacity)
        cache.place([row], [0], 3)
        cache.layers[0].update(states * (row + 1), states)
        cache.commit(row, range(3))
    needed = cache.bytes_for([40, 40, 40])
    assert needed > 5000 * 3 * cache.layers[0].slot_bytes
    assert not cache.trim()
    cache.release(1)
    assert cache.bytes_for([40, 40, 40]) == needed, "only where it is wanted, since rows are copied"
    assert cache.trim()
    assert cache.bytes_for([40, 40, 40]) < needed / 5
    assert not cache.trim()
    assert torch.equal(cache.layers[0].keys[1, :, :3], states[0] * 3)
