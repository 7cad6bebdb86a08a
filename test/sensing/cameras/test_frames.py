"""Readers get the newest whole frame and keep it while they need it; the camera never waits for them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from streams import MS, S

from vla_accel_ros.sensing.cameras.frames import FramePool, Lease, NotReady


def make_pool(slots: int = 3) -> FramePool:
    return FramePool(("front", "wrist"), slots, page_lock=False)


def put(pool: FramePool, camera: str, stamp_ns: int, value: int = 0) -> bool:
    with pool.write(camera, stamp_ns, 4, 5) as slot:
        if slot is not None:
            slot[:] = value
    return slot is not None


def stamps(lease: Lease | None) -> dict[str, int]:
    assert lease is not None
    return {name: frame.stamp_ns for name, frame in lease.frames.items()}


def test_the_newest_frame_is_the_last_published():
    pool = make_pool()
    assert pool.newest("front") is None
    put(pool, "front", 1, value=10)
    put(pool, "front", 2, value=20)
    with pool.newest("front") as lease:
        frame = lease.frames["front"]
        assert (frame.camera, frame.stamp_ns) == ("front", 2)
        np.testing.assert_array_equal(frame.image, np.full((4, 5, 3), 20))


def test_a_reader_cannot_write():
    pool = make_pool()
    put(pool, "front", 1)
    with pool.newest("front") as lease, pytest.raises(ValueError, match="read-only"):
        lease.frames["front"].image[:] = 1


def test_a_leased_slot_is_never_overwritten():
    pool = make_pool()
    put(pool, "front", 1, value=1)
    with pool.newest("front") as lease:
        for value in range(2, 50):
            assert put(pool, "front", value, value)
            assert (lease.frames["front"].image == 1).all()
    assert pool.dropped("front") == 0


def test_when_every_slot_is_leased_the_frame_is_dropped_and_counted():
    pool = make_pool(slots=3)
    leases = []
    for stamp in range(3):
        assert put(pool, "front", stamp)
        leases.append(pool.newest("front"))
    assert not put(pool, "front", 9) and not put(pool, "front", 10)
    assert pool.dropped("front") == 2 and pool.dropped("wrist") == 0
    leases[0].release()
    leases[0].release()
    assert put(pool, "front", 11)
    assert stamps(pool.newest("front")) == {"front": 11}


def test_a_frame_that_fails_while_it_is_written_is_not_published():
    pool = make_pool()
    put(pool, "front", 1)
    with pytest.raises(ValueError, match="bad image"), pool.write("front", 2, 4, 5):
        raise ValueError("bad image")
    assert stamps(pool.newest("front")) == {"front": 1}
    assert all(put(pool, "front", stamp) for stamp in range(3, 9))


def test_a_frame_is_not_seen_while_it_is_being_written():
    pool = make_pool()
    put(pool, "front", 1)
    with pool.write("front", 2, 4, 5) as slot:
        assert slot is not None
        slot[:] = 7
        assert stamps(pool.newest("front")) == {"front": 1}
    assert stamps(pool.newest("front")) == {"front": 2}


def test_slots_are_allocated_once_and_again_only_for_another_size():
    pool = make_pool()
    addresses = set()
    for stamp in range(20):
        with pool.write("front", stamp, 4, 5) as slot:
            addresses.add(slot.__array_interface__["data"][0])
    assert len(addresses) <= 3
    lease = pool.newest("front")
    with pool.write("front", 21, 8, 8) as slot:
        assert slot.shape == (8, 8, 3)
    assert lease.frames["front"].image.shape == (4, 5, 3)
    assert pool.newest("front").frames["front"].image.shape == (8, 8, 3)


def test_a_set_is_the_newest_of_every_camera():
    pool = make_pool()
    put(pool, "front", 100 * MS)
    assert pool.newest_set(("front", "wrist"), 0.05) == NotReady("no frame of camera wrist yet")
    put(pool, "wrist", 110 * MS)
    put(pool, "front", 133 * MS)
    with pool.newest_set(("front", "wrist"), 0.05) as lease:
        assert stamps(lease) == {"front": 133 * MS, "wrist": 110 * MS}


def test_when_one_camera_lags_the_others_frames_of_its_time_are_taken():
    pool = make_pool(slots=4)
    for stamp in (100, 133, 166):
        put(pool, "front", stamp * MS)
    put(pool, "wrist", 101 * MS)
    with pool.newest_set(("front", "wrist"), 0.05) as lease:
        assert stamps(lease) == {"front": 100 * MS, "wrist": 101 * MS}


def test_too_far_apart_is_said():
    pool = make_pool()
    put(pool, "front", S)
    put(pool, "wrist", S + 80 * MS)
    assert pool.newest_set(("front", "wrist"), 0.05) == NotReady(
        "camera front is 0.080 s behind camera wrist, max_skew_s allows 0.05"
    )
    assert all(put(pool, "front", stamp) for stamp in range(5)), "a refused set leaves nothing leased"
    assert pool.dropped("front") == 0


def test_after_a_clock_jump_the_last_arrival_counts_and_clear_forgets():
    pool = make_pool()
    put(pool, "front", 100 * S)
    put(pool, "front", S)
    assert stamps(pool.newest("front")) == {"front": S}
    pool.clear()
    assert pool.newest("front") is None
    put(pool, "front", 2 * S)
    assert stamps(pool.newest("front")) == {"front": 2 * S}


def test_threads_never_see_a_torn_frame():
    pool = FramePool(("front",), slots=3, page_lock=False)
    done, torn = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            lease = pool.newest("front")
            if lease is not None:
                with lease:
                    image = lease.frames["front"].image
                    value = int(image[0, 0, 0])
                    if (image != value).any() or lease.frames["front"].stamp_ns % 251 != value:
                        torn.append(value)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    written = 0
    for stamp in range(3000):
        with pool.write("front", stamp, 32, 32) as slot:
            if slot is not None:
                slot[:16] = stamp % 251
                slot[16:] = stamp % 251
                written += 1
    done.set()
    for reader in readers:
        reader.join()
    assert torn == [] and written + pool.dropped("front") == 3000


@pytest.mark.gpu
def test_slots_are_page_locked_where_there_is_a_gpu():
    import torch

    with FramePool(("front",)).write("front", 1, 480, 640) as slot:
        assert torch.from_numpy(slot).is_pinned()
