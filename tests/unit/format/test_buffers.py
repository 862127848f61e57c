"""Buffers of a pool: used again when nobody looks into them, and never before."""

from __future__ import annotations

import random
import sys
import threading

from tiered.format.buffers import BufferPool

MIB = 1024 * 1024


def pool_of(max_bytes: int = 64 * MIB) -> BufferPool:
    return BufferPool(max_bytes, MIB)


def test_a_buffer_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    pool = pool_of()
    first = pool.acquire(3 * MIB)
    first[:4] = b"kept"
    part, place = first[1:4], id(first.obj)
    del first
    other = pool.acquire(3 * MIB)
    other[:4] = b"othr"
    assert part == b"ept"
    assert id(other.obj) != place
    del part
    assert id(pool.acquire(3 * MIB).obj) == place


def test_sizes_are_powers_of_two_and_the_smallest_that_fits_is_taken() -> None:
    pool = pool_of()
    taken = [pool.acquire(size) for size in (1, MIB + 1, 16 * MIB)]
    assert [len(each) for each in taken] == [1, MIB + 1, 16 * MIB]
    assert [len(each.obj) for each in taken] == [MIB, 2 * MIB, 16 * MIB]
    del taken
    assert [len(pool.acquire(size).obj) for size in (MIB, 2 * MIB, 3 * MIB)] == [MIB, 2 * MIB, 16 * MIB]
    assert pool.size_bytes == 19 * MIB


def test_no_more_is_kept_than_the_bound() -> None:
    pool = pool_of(4 * MIB)
    held = [pool.acquire(2 * MIB) for _ in range(5)]
    assert len({id(each.obj) for each in held}) == 5
    assert pool.size_bytes == 4 * MIB
    del held
    large = pool.acquire(4 * MIB)  # in place of smaller ones that nobody uses
    assert pool.size_bytes == 4 * MIB
    assert len(pool.acquire(MIB)) == MIB
    assert pool.size_bytes == len(large)
    assert len(pool.acquire(64 * MIB)) == 64 * MIB
    assert pool.size_bytes == 4 * MIB


def test_forgotten_buffers_live_as_long_as_their_views() -> None:
    pool = pool_of()
    view = pool.acquire(MIB)[:3]
    view[:] = b"abc"
    pool.forget()
    assert pool.size_bytes == 0
    pool.acquire(MIB)[:3] = b"xyz"
    assert view == b"abc"


def test_threads_never_share_a_buffer() -> None:
    pool, mixed = BufferPool(8 * MIB, 1 << 16), []

    def use(seed: int) -> None:
        dice, held = random.Random(seed), []
        for number in range(2_000):
            view = pool.acquire(dice.choice((1_000, 70_000, 300_000)))[:8]
            mark = seed.to_bytes(4, "big") + number.to_bytes(4, "big")
            view[:] = mark
            held.append((view, mark))
            del view
            if len(held) > dice.randrange(1, 30):
                kept, mark = held.pop(dice.randrange(len(held)))
                if kept != mark:
                    mixed.append(mark)
                del kept

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert mixed == []
    assert pool.size_bytes <= 8 * MIB + 6 * (1 << 19)  # each thread may add one more than fits
