"""A ring hands on whole frames or none, says why there is none, and is gone when its writer is."""

from __future__ import annotations

import mmap
import os
import re
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from rings import is_whole, known_image, left_over, unique
from streams import MS, make_contract

from vla_accel_ros.engine.types import Observation
from vla_accel_ros.sensing.frames import Lease, NotReady
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.sensing.ring import Handle, RingWriter
from vla_accel_ros.sensing.ring_reader import RingCounts, RingReader
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.sensing.sync import Synchroniser

H, W = 6, 5
BOTH = pytest.mark.parametrize("copy", [True, False], ids=["copied", "in place"])


@pytest.fixture
def name():
    name = unique("ring")
    yield name
    assert left_over(name) == []


@pytest.fixture
def writer(name):
    with RingWriter(name, H, W, slots=4) as writer:
        yield writer


def make_reader(name: str, copy: bool = False) -> RingReader:
    return RingReader({"front": name}, copy, page_lock=False)


def put(writer: RingWriter, *stamps: int) -> Handle:
    for stamp in stamps:
        handle = writer.write(known_image(stamp, H, W), stamp)
    return handle


def newest_stamp(reader: RingReader) -> int | None:
    lease = reader.newest("front")
    if lease is None:
        return None
    with lease:
        assert is_whole(lease.frames["front"]) and lease.intact()
        return lease.frames["front"].stamp_ns


def why_not(reader: RingReader) -> str:
    found = reader.newest_set(("front",), 0.0)
    assert isinstance(found, NotReady) and reader.newest("front") is None
    return found.reason


def edit(name: str, at: int, data: bytes) -> None:
    """Overwrite bytes of a ring as no writer would."""
    with segment_path(name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[at : at + len(data)] = data


@BOTH
def test_the_newest_frame_is_the_last_written_whatever_its_stamp(writer, name, copy):
    reader = make_reader(name, copy)
    assert why_not(reader) == "no frame of camera front yet"
    for stamp in (5, 9, 7, -3, 2**62, 0, 0):
        put(writer, stamp)
        assert newest_stamp(reader) == stamp
    assert reader.counts("front") == RingCounts(opened=1)


def test_a_frame_may_be_written_in_place(writer, name):
    with writer.slot(7) as place:
        assert (place.shape, place.dtype) == ((H, W, 3), np.uint8)
        place[:] = known_image(7, H, W)
    assert newest_stamp(make_reader(name)) == 7
    assert writer.handle == Handle(name, writer.handle.slot, writer.handle.sequence, 7, H, W, "rgb8")


@BOTH
def test_a_frame_is_not_seen_while_it_is_written_nor_when_writing_it_failed(writer, name, copy):
    reader = make_reader(name, copy)
    put(writer, 1)
    with pytest.raises(OSError, match="camera unplugged"), writer.slot(2) as place:
        place[:] = 0
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


def test_a_frame_overwritten_while_it_is_copied_is_counted_and_not_handed_out(writer, name):
    """The ring's own pixels are swapped for an array that, when copied from, writes the ring round first."""

    class Overtaking(np.ndarray):
        def __array_function__(self, function, types, arguments, options):
            put(writer, *range(10, 10 + writer.geometry.slots))
            return np.ndarray.__array_function__(self, function, types, arguments, options)

    reader = make_reader(name, copy=True)
    put(writer, 1)
    assert newest_stamp(reader) == 1
    put(writer, 2)
    images = reader._rings["front"].images
    images[:] = [image.view(Overtaking) for image in images]
    assert why_not(reader) == "frames are overwritten while they are copied: give the ring more slots"
    assert reader.counts("front").overtaken == 6, "three tries each by newest and newest_set"
    assert reader.take(put(writer, 3)) == NotReady(
        "frames are overwritten while they are copied: give the ring more slots"
    )


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


def test_handles_that_fit_nothing_are_refused(writer, name):
    reader, handle = make_reader(name), put(writer, 1)
    changes = {"slot": 77, "sequence": handle.sequence + 2, "stamp_ns": 2}
    for field, value in changes.items():
        odd = Handle(**{**vars(handle), field: value})
        assert "it was taken too late" in reader.take(odd).reason
    assert reader.take(Handle(**{**vars(handle), "ring": "other"})) == NotReady(
        "a handle is of ring 'other', which no camera here has"
    )
    assert reader.take(Handle(**{**vars(handle), "height": 720, "encoding": "bgr8"})) == NotReady(
        f"a handle is of a 720 x {W} bgr8 frame, ring {name!r} holds {H} x {W} rgb8: the camera was restarted"
    )


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
def test_a_reader_may_come_first_and_finds_every_new_ring(name, copy):
    reader = make_reader(name, copy)
    absent = f"camera front: ring {name!r} is not there: start its camera"
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


def test_a_writer_says_what_it_cannot_do(writer, name):
    taken = f"ring {name!r} is being written by process {os.getpid()}: stop that, or choose another name"
    with pytest.raises(ValueError, match=re.escape(taken)):
        RingWriter(name, H, W)
    other = unique("ring")
    with pytest.raises(ValueError, match="slots = 1 leaves no room to write while one is read"):
        RingWriter(other, H, W, slots=1)
    with pytest.raises(ValueError, match="is for frames of 0 x 5: give at least one pixel"):
        RingWriter(other, 0, 5)
    for bad in ("", "a/b", "..\0", "ä"):
        with pytest.raises(ValueError, match="use up to 128 letters, digits"):
            RingWriter(bad, H, W)
    with pytest.raises(ValueError, match=r"needs 8444\d+\.\d MB, /dev/shm has .* MB left: give fewer slots"):
        RingWriter(other, 2**15, 2**15, slots=2**18)
    with pytest.raises(ValueError, match=r"image is uint8 \[5, 6, 3\], ring .* holds uint8 \[6, 5, 3\]"):
        writer.write(np.zeros((W, H, 3), np.uint8), 1)
    with pytest.raises(ValueError, match="image is float32"):
        writer.write(np.zeros((H, W, 3), np.float32), 1)
    assert left_over(other) == []


def test_one_frame_at_a_time(writer, name):
    with writer.slot(1) as place:
        with pytest.raises(RuntimeError, match="is written by two threads"), writer.slot(2):
            pass
        place[:] = known_image(1, H, W)
    assert newest_stamp(make_reader(name)) == 1
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="is closed: make a new RingWriter"), writer.slot(3):
        pass


def test_what_is_no_ring_of_ours_is_refused_in_a_sentence(writer, name):
    put(writer, 1)
    reader = make_reader(name)
    size = segment_path(name).stat().st_size
    head = segment_path(name).read_bytes()[:64]
    damages = {
        b"VLARING\n\x02": f"ring {name!r} has version 2, this program reads version 1: run the camera and "
        "the engine from one release",
        b"RIFF": f"ring {name!r} is none: remove {segment_path(name)} and restart its camera",
        head[:12] + b"\x07": f"ring {name!r} has a damaged header: restart its camera",
    }
    for damage, reason in damages.items():
        reader.close()
        edit(name, 0, damage)
        assert why_not(reader) == f"camera front: {reason}"
        edit(name, 0, head)
        assert newest_stamp(reader) == 1
    reader.close()
    os.truncate(segment_path(name), size + 1)
    assert why_not(reader) == (
        f"camera front: ring {name!r} has {size + 1} bytes, 4 slots of 6 x 5 need {size}: restart its camera"
    )


def test_what_is_not_even_a_file_is_refused_in_a_sentence(name):
    path, reader = segment_path(name), make_reader(name)
    makers = {
        "none: remove": lambda: path.touch(),
        "Is a directory": lambda: path.mkdir(),
        "is none: remove": lambda: os.mkfifo(path),
        "Too many levels of symbolic links": lambda: path.symlink_to("/etc/passwd"),
    }
    for reason, make in makers.items():
        make()
        try:
            found = why_not(reader)
            assert reason in found or "cannot be read" in found
            if not stat.S_ISREG(path.lstat().st_mode):
                with pytest.raises(ValueError, match="is there and not ours: stop that, or choose another"):
                    RingWriter(name, H, W)
        finally:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


def test_a_damaged_record_is_dropped_and_counted_once(writer, name):
    reader = make_reader(name)
    put(writer, 1)
    handle = put(writer, 2)
    edit(name, writer.geometry.record_at(handle.slot) + 8, b"\x05")
    assert newest_stamp(reader) == 1
    assert newest_stamp(reader) == 1
    assert isinstance(reader.take(handle), NotReady)
    assert reader.counts("front").damaged == 1
    put(writer, 3)
    assert newest_stamp(reader) == 3


def test_readers_in_many_threads_see_whole_frames(writer, name):
    readers = [make_reader(name, copy=True), make_reader(name, copy=False)]
    done, torn = threading.Event(), []

    def read(reader: RingReader) -> None:
        while not done.is_set():
            lease = reader.newest("front")
            if lease is not None:
                frame = lease.frames["front"]
                good = is_whole(frame)
                if lease.intact() and not good:
                    torn.append(frame.stamp_ns)
                lease.release()

    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers * 2]
    for thread in threads:
        thread.start()
    images = [known_image(stamp, H, W) for stamp in range(13)]
    for stamp in range(3000):
        writer.write(images[stamp % 13], stamp)
    done.set()
    for thread in threads:
        thread.join()
    assert torn == []


def test_an_observation_keeps_its_images_while_the_cameras_go_on(name):
    contract = make_contract()
    rings = {camera.name: f"{name}.{camera.name}" for camera in contract.cameras}
    joints = JointHistory(contract.joint_names)
    joints.add(contract.joint_names, [0.0] * 6, 100 * MS)
    with RingWriter(rings["front"], H, W) as front, RingWriter(rings["wrist"], H, W) as wrist:
        synchroniser = Synchroniser(contract, RingReader(rings, page_lock=False), joints)
        put(front, 100 * MS)
        put(wrist, 101 * MS)
        observation = synchroniser.observe("wave", 110 * MS)
        assert isinstance(observation, Observation) and observation.stamp_ns == 100 * MS
        put(front, *range(200, 210))
        np.testing.assert_array_equal(observation.images["base_0_rgb"], known_image(100 * MS, H, W))
        synchroniser.release()


def test_too_many_leases_are_said(writer, name):
    reader = make_reader(name, copy=True)
    leases = []
    for stamp in range(4):
        put(writer, stamp)
        leases.append(reader.newest("front"))
    put(writer, 4)
    assert why_not(reader) == "camera front: 4 leases are open: release some"
    leases[0].release()
    assert newest_stamp(reader) == 4


def test_it_works_where_torch_cannot_be_imported_and_without_importing_it(name):
    program = (
        "import sys\n"
        "from vla_accel_ros.sensing.ring import RingWriter\n"
        "from vla_accel_ros.sensing.ring_reader import RingReader\n"
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
def test_memory_that_cannot_be_page_locked_is_used_as_it_is(writer, name):
    import torch

    from vla_accel_ros.sensing.segment import View

    mapping = View(name, lambda head, size: None).mapping  # read-only, which CUDA refuses by default
    assert not mapping.page_lock()
    assert torch.ones(3, device="cuda").sum().item() == 3
