"""Cameras of several sources are one source: the same rule, and no lease is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from rings import is_whole, known_image, left_over, make_reader, put, unique

from vla_accel_ros.sensing.cameras.frames import FramePool, NotReady, Sources
from vla_accel_ros.sensing.cameras.ring import RingWriter

H, W = 6, 5
MS = 1_000_000
BOTH = ("front", "wrist")


class Rig:
    """A front camera with a ring and a wrist camera with a pool of two slots."""

    def __init__(self, name: str) -> None:
        self.writer, self.reader = RingWriter(name, H, W), make_reader(name)
        self.pool = FramePool(("wrist",), slots=2, page_lock=False)
        self.sources = Sources({"front": self.reader, "wrist": self.pool})

    def wrist(self, *stamps_ns: int) -> None:
        for stamp_ns in stamps_ns:
            with self.pool.write("wrist", stamp_ns, H, W) as slot:
                if slot is not None:
                    np.copyto(slot, known_image(stamp_ns, H, W))

    def front(self, *stamps_ns: int) -> None:
        put(self.writer, *stamps_ns)

    def stamps(self, max_skew_s: float) -> dict[str, int] | str:
        """Of the newest set, in ms, or why there is none."""
        frame_set = self.sources.newest_set(BOTH, max_skew_s)
        if isinstance(frame_set, NotReady):
            return frame_set.reason
        with frame_set:
            assert frame_set.intact() and all(is_whole(frame) for frame in frame_set.frames.values())
            return {camera: frame.stamp_ns // MS for camera, frame in frame_set.frames.items()}


@pytest.fixture
def rig():
    name = unique("sources")
    rig = Rig(name)
    yield rig
    rig.writer.close()
    assert left_over(name) == []


def test_a_set_is_the_newest_of_each_where_these_belong_together(rig):
    assert rig.stamps(0.05) == "no frame of camera front yet"
    rig.front(100 * MS)
    assert rig.stamps(0.05) == "no frame of camera wrist yet"
    rig.wrist(110 * MS)
    rig.front(133 * MS)
    assert rig.stamps(0.05) == {"front": 133, "wrist": 110}


def test_otherwise_it_is_what_was_taken_nearest_to_the_slowest(rig):
    rig.wrist(101 * MS)
    rig.front(66 * MS, 100 * MS, 133 * MS, 166 * MS)
    assert rig.stamps(0.05) == {"front": 100, "wrist": 101}
    rig.wrist(300 * MS, 400 * MS)
    assert rig.stamps(0.05) == "camera front is 0.134 s behind camera wrist, max_skew_s allows 0.05"


def test_no_lease_is_forgotten_whatever_comes_of_a_set(rig):
    for stamp in range(20):
        rig.wrist(1000 * MS + stamp)
        rig.stamps(0.0)
        rig.front(stamp * MS)
        rig.stamps(0.0)
    rig.wrist(2000 * MS)
    assert rig.pool.dropped("wrist") == 0


def test_a_set_is_intact_only_if_all_of_it_is(rig):
    rig.front(100 * MS)
    rig.wrist(100 * MS)
    with rig.sources.newest_set(BOTH, 0.05) as lease:
        assert lease.intact()
        rig.front(*(stamp * MS for stamp in range(200, 205)))
        assert not lease.intact() and not lease.intact()
    assert rig.reader.counts("front").overtaken == 1


def test_single_frames_are_asked_of_their_own_source(rig):
    assert rig.sources.newest("wrist") is None and rig.sources.nearest("front", 0) is None
    rig.front(100 * MS, 200 * MS)
    rig.wrist(100 * MS, 200 * MS)
    for camera in BOTH:
        with rig.sources.newest(camera) as newest, rig.sources.nearest(camera, 120 * MS) as nearest:
            assert (newest.frames[camera].stamp_ns, nearest.frames[camera].stamp_ns) == (200 * MS, 100 * MS)
