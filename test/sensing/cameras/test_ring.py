"""A ring hands on whole frames or none, says why there is none, and is gone when its writer is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from rings import H, W, is_whole, known_image, make_reader, newest_stamp, put, why_not
from streams import MS

from vla_accel_ros.sensing.cameras.frames import Lease, NotReady
from vla_accel_ros.sensing.cameras.ring import Handle, RingWriter, pack_record
from vla_accel_ros.sensing.cameras.ring_reader import RingCounts, RingReader

BOTH = pytest.mark.parametrize("copy", [True, False], ids=["copied", "in place"])


@BOTH
def test_the_newest_frame_is_the_last_written_whatever_its_stamp(writer, name, copy):
    reader = make_reader(name, copy)
    assert why_not(reader) == "no frame of camera front yet"
    for stamp in (5, 9, 7, -3, 2**62, 0, 0):
        put(writer, stamp)
        assert newest_stamp(reader) == stamp
    assert reader.counts("front") == RingCounts(opened=1)


def test_a_frame_may_be_written_in_place(writer, name):
    with writer.slot(7) as pixels:
        assert (pixels.shape, pixels.dtype) == ((H, W, 3), np.uint8)
        pixels[:] = known_image(7, H, W)
    assert newest_stamp(make_reader(name)) == 7
    assert writer.handle == Handle(name, writer.handle.slot, writer.handle.sequence, 7, H, W, "rgb8")


@BOTH
def test_a_frame_is_not_seen_while_it_is_written_nor_when_writing_it_failed(writer, name, copy):
    reader = make_reader(name, copy)
    put(writer, 1)
    with pytest.raises(OSError, match="camera unplugged"), writer.slot(2) as pixels:
        pixels[:] = 0
        assert newest_stamp(reader) == 1
        raise OSError("camera unplugged")
    assert newest_stamp(reader) == 1
    for stamp in range(3, 13):
        put(writer, stamp)
        assert newest_stamp(reader) == stamp


def test_a_lease_is_intact_until_the_slots_th_frame_after_it_is_begun(writer, name):
    reader = make_reader(name)
    put(writer, 1)
    lease = reader.newest("front")
    put(writer, 2, 3, 4)
    assert lease.intact() and is_whole(lease.frames["front"])
    with writer.slot(5):
        assert not lease.intact()
    assert not lease.intact() and reader.counts("front").overtaken == 1, "counted once"
    assert reader.dropped("front") == 1


def test_a_copied_lease_does_not_change(writer, name):
    reader = make_reader(name, copy=True)
    put(writer, 1)
    with reader.newest("front") as lease:
        for stamp in range(2, 30):
            put(writer, stamp)
            assert newest_stamp(reader) == stamp
        assert lease.intact() and is_whole(lease.frames["front"]) and lease.frames["front"].stamp_ns == 1
    assert reader.dropped("front") == 0


@BOTH
def test_a_handle_leads_to_its_frame_while_that_is_there(writer, name, copy):
    reader = make_reader(name, copy)
    handles = [put(writer, stamp) for stamp in (1, 2, 3, 4)]
    for handle, stamp in zip(handles, (1, 2, 3, 4)):
        with reader.take(handle) as lease:
            frame = lease.frames["front"]
            assert frame.stamp_ns == stamp and is_whole(frame) and lease.intact()
    put(writer, 5)
    assert reader.take(handles[0]) == NotReady(
        f"a handle's frame is no longer in ring {name!r}: it was taken too late"
    )
    assert reader.counts("front").overtaken == 1
    assert reader.take(handles[1]).frames["front"].stamp_ns == 2


@BOTH
def test_a_reader_cannot_write(writer, name, copy):
    put(writer, 1)
    image = make_reader(name, copy).newest("front").frames["front"].image
    with pytest.raises(ValueError, match="read-only"):
        image[:] = 1


@BOTH
def test_a_set_is_of_frames_that_belong_together(name, copy):
    names = {"front": f"{name}.front", "wrist": f"{name}.wrist"}
    with RingWriter(names["front"], H, W) as front, RingWriter(names["wrist"], 2, 3) as wrist:
        reader = RingReader(names, copy, page_lock=False)
        for stamp in (100, 133, 166):
            put(front, stamp * MS)
        assert reader.newest_set(("front", "wrist"), 0.05) == NotReady("no frame of camera wrist yet")
        wrist.write(known_image(101 * MS, 2, 3), 101 * MS)
        with reader.newest_set(("front", "wrist"), 0.05) as lease:
            stamps = {camera: frame.stamp_ns for camera, frame in lease.frames.items()}
            assert stamps == {"front": 100 * MS, "wrist": 101 * MS}
            assert all(is_whole(frame) for frame in lease.frames.values()) and lease.intact()
        wrist.write(known_image(246 * MS, 2, 3), 246 * MS)
        assert reader.newest_set(("front", "wrist"), 0.05) == NotReady(
            "camera wrist is 0.065 s behind camera front, max_skew_s allows 0.05"
        )
        assert reader.newest_set(("front", "wrist"), 0.1).frames["wrist"].stamp_ns == 246 * MS


@BOTH
def test_clear_forgets_the_frames_but_not_those_to_come(writer, name, copy):
    reader = make_reader(name, copy)
    put(writer, 100)
    assert newest_stamp(reader) == 100
    reader.clear()
    assert why_not(reader) == "no frame of camera front yet"
    put(writer, 2)
    assert newest_stamp(reader) == 2


@BOTH
def test_a_record_with_a_very_high_number_hides_no_later_frame(writer, name, copy):
    reader = make_reader(name, copy)
    handle = put(writer, 1)
    wild = pack_record(handle.slot, 2**64 - 2, 1, writer.geometry.frame_bytes)
    writer._segment.write(writer.geometry.record_at(handle.slot), wild)
    assert newest_stamp(reader) == 1
    reader.clear()
    for stamp in range(2, 2 + 3 * writer.geometry.slots):
        put(writer, stamp)
        assert newest_stamp(reader) == stamp


@BOTH
def test_a_reader_may_come_first_and_finds_every_new_ring(name, copy):
    reader = make_reader(name, copy)
    absent = f"camera front: ring {name!r} does not exist: start its camera"
    assert why_not(reader) == absent
    with RingWriter(name, H, W) as first:
        old = put(first, 1)
        assert newest_stamp(reader) == 1
        lease = reader.newest("front")
    assert why_not(reader) == absent
    with RingWriter(name, 2 * H, W) as second:
        assert why_not(reader) == "no frame of camera front yet"
        second.write(known_image(1, 2 * H, W), 1)
        assert newest_stamp(reader) == 1
        assert reader.newest("front").frames["front"].image.shape == (2 * H, W, 3)
        assert "the camera was restarted" in reader.take(old).reason
    with RingWriter(name, H, W) as third:
        assert put(third, 1).sequence > old.sequence
        assert isinstance(reader.take(old), NotReady), "a new ring's frame is not an old ring's"
    assert is_whole(lease.frames["front"]) and lease.intact(), "what was leased stays"
    assert reader.counts("front").opened == 3


def test_it_works_where_torch_cannot_be_imported_and_without_importing_it(name):
    program = (
        "import sys\n"
        "from vla_accel_ros.sensing.cameras.ring import RingWriter\n"
        "from vla_accel_ros.sensing.cameras.ring_reader import RingReader\n"
        "print({'torch', 'rclpy', 'cv2'} & set(sys.modules)); sys.modules['torch'] = None\n"
        f"with RingWriter({name!r}, 2, 2) as writer, writer.slot(1): pass\n"
        f"writer = RingWriter({name!r}, 2, 2)\n"
        "with writer.slot(1): pass\n"
        f"for copy in (True, False): print(RingReader({{'front': {name!r}}}, copy).newest('front').frames)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("set()\n") and done.stdout.count("stamp_ns=1") == 2


@pytest.mark.gpu
def test_on_a_gpu_the_slot_is_uploaded_as_it_lies_and_verified(name):
    import torch

    height, width = 480, 640
    with RingWriter(name, height, width) as writer, RingReader({"front": name}, copy=False) as reader:
        writer.write(known_image(7, height, width), 7)
        lease = reader.newest("front")
        assert isinstance(lease, Lease)
        slot = torch.from_numpy(lease.frames["front"].image)
        assert slot.is_pinned()
        on_gpu = slot.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert lease.intact()
        np.testing.assert_array_equal(on_gpu.cpu().numpy(), known_image(7, height, width))
    del slot, lease, reader
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.gpu
def test_on_a_gpu_a_ring_cut_short_under_a_lease_is_torn_and_no_signal(name):
    import os

    import torch

    from vla_accel_ros.sensing.segment import segment_path

    with RingWriter(name, 480, 640) as writer, RingReader({"front": name}) as reader:
        writer.write(known_image(7, 480, 640), 7)
        lease = reader.newest("front")
        assert isinstance(lease, Lease) and reader.page_lock("front").locked
        os.truncate(segment_path(name), 0)
        on_gpu = torch.from_numpy(lease.frames["front"].image).to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert not lease.intact()
        np.testing.assert_array_equal(on_gpu.cpu().numpy(), known_image(7, 480, 640))
    del on_gpu, lease, reader
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.gpu
def test_memory_that_cannot_be_page_locked_is_used_as_it_is(writer, name):
    import torch

    from vla_accel_ros.sensing.segment import View

    mapping = View(name, lambda head, size: None).map()  # read-only, which CUDA refuses by default
    assert not mapping.page_lock().locked
    assert torch.ones(3, device="cuda").sum().item() == 3
