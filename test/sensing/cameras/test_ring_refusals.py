"""What a ring cannot do or is not, in a sentence; and what is damaged or too late is dropped and counted."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat

import numpy as np
import pytest
from rings import H, W, is_whole, known_image, left_over, make_reader, newest_stamp, put, unique, why_not

from vla_accel_ros.sensing.cameras.frames import NotReady
from vla_accel_ros.sensing.cameras.ring import Handle, RingWriter
from vla_accel_ros.sensing.segment import segment_path


def edit(name: str, at: int, data: bytes) -> None:
    """Overwrite bytes of a ring as no writer would."""
    with segment_path(name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[at : at + len(data)] = data


def test_handles_that_fit_nothing_are_refused(writer, name):
    reader, handle = make_reader(name), put(writer, 1)
    changes = {"slot": 77, "sequence": handle.sequence + 2, "stamp_ns": 2}
    for field, value in changes.items():
        odd = Handle(**{**vars(handle), field: value})
        assert "it was taken too late" in reader.take(odd).reason
    assert reader.take(Handle(**{**vars(handle), "ring": "other"})) == NotReady(
        "a handle names ring 'other', which belongs to no camera here"
    )
    assert reader.take(Handle(**{**vars(handle), "height": 720, "encoding": "bgr8"})) == NotReady(
        f"a handle describes a 720 x {W} bgr8 frame, ring {name!r} holds {H} x {W} rgb8: the camera was "
        "restarted"
    )


def test_a_frame_overwritten_while_it_is_copied_is_counted_and_not_handed_out(writer, name):
    """Between the copy and the look after it the writer goes round."""
    reader = make_reader(name, copy=True)
    put(writer, 1)
    assert newest_stamp(reader) == 1
    put(writer, 2)
    ring = reader._rings["front"]
    copy = ring.copy

    def overtaken(slot: int, place: np.ndarray) -> bool:
        put(writer, *range(10, 10 + writer.geometry.slots))
        return copy(slot, place)

    ring.copy = overtaken  # type: ignore[method-assign]
    assert why_not(reader) == "frames are overwritten while they are copied: give the ring more slots"
    assert reader.counts("front").overtaken == 6, "three tries each by newest and newest_set"
    assert reader.take(put(writer, 3)) == NotReady(
        "frames are overwritten while they are copied: give the ring more slots"
    )


def test_a_writer_says_what_it_cannot_do(writer, name):
    busy = f"ring {name!r} is being written by process {os.getpid()}: stop that, or choose another name"
    with pytest.raises(ValueError, match=re.escape(busy)):
        RingWriter(name, H, W)
    other = unique("ring")
    with pytest.raises(ValueError, match="slots = 1"):
        RingWriter(other, H, W, slots=1)
    with pytest.raises(ValueError, match="0 x 5"):
        RingWriter(other, 0, 5)
    for bad in ("", "a/b", "..\0", "ä"):
        with pytest.raises(ValueError, match="128"):
            RingWriter(bad, H, W)
    with pytest.raises(ValueError, match=r"8444\d+\.\d MB, /dev/shm .* MB"):
        RingWriter(other, 2**15, 2**15, slots=2**18)
    with pytest.raises(ValueError, match=r"uint8 \[5, 6, 3\].* uint8 \[6, 5, 3\]"):
        writer.write(np.zeros((W, H, 3), np.uint8), 1)
    with pytest.raises(ValueError, match="image is float32"):
        writer.write(np.zeros((H, W, 3), np.float32), 1)
    assert left_over(other) == []


def test_one_frame_at_a_time(writer, name):
    with writer.slot(1) as pixels:
        with pytest.raises(RuntimeError, match="two threads"), writer.slot(2):
            pass
        pixels[:] = known_image(1, H, W)
    assert newest_stamp(make_reader(name)) == 1
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match=r"closed.* RingWriter"), writer.slot(3):
        pass


def test_what_is_no_ring_of_ours_is_refused_in_a_sentence(writer, name):
    put(writer, 1)
    reader = make_reader(name)
    size = segment_path(name).stat().st_size
    head = segment_path(name).read_bytes()[:64]
    damages = {
        b"VLARING\n\x02": f"ring {name!r} has version 2, this program reads version 1: run the camera and "
        "the engine from one release",
        b"RIFF": f"ring {name!r} is not a ring: remove {segment_path(name)} and restart its camera",
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


MODES = pytest.mark.parametrize("copy", [None, True], ids=["as a node", "copied"])


@MODES
@pytest.mark.parametrize("left", [0, 1, 4096, -4097], ids=["nothing", "byte", "header", "but a page"])
def test_a_ring_cut_short_under_writer_and_reader_is_a_reason_and_no_signal(writer, name, copy, left):
    reader = make_reader(name, copy)
    put(writer, 1)
    with reader.newest("front") as lease:
        size = segment_path(name).stat().st_size
        os.truncate(segment_path(name), left % size)
        assert is_whole(lease.frames["front"]), "what was copied is ours"
    for _ in range(2):
        assert "restart its camera" in why_not(reader)
        assert "restart its camera" in reader.take(writer.handle).reason
        with pytest.raises(ValueError, match="RingWriter"):
            put(writer, 2)
    os.truncate(segment_path(name), size)
    assert "restart its camera" in why_not(reader), "it has its size again, but not its memory"
    writer.close()
    with RingWriter(name, H, W) as anew:
        put(anew, 30)
        assert newest_stamp(reader) == 30


def test_a_ring_cut_short_while_a_frame_is_copied_is_a_reason(writer, name):
    reader = make_reader(name, copy=True)
    put(writer, 1)
    assert newest_stamp(reader) == 1
    put(writer, 2)
    ring = reader._rings["front"]
    copy = ring.copy

    def cut(slot: int, place: np.ndarray) -> bool:
        os.truncate(segment_path(name), 4096)
        return copy(slot, place)

    ring.copy = cut  # type: ignore[method-assign]
    reason = reader.newest_set(("front",), 0.0)
    assert reason == NotReady(
        f"camera front: ring {name!r} was cut short by another process: restart its camera"
    )


def test_memory_taken_out_of_a_ring_is_noticed(writer, name):
    put(writer, 1)
    with segment_path(name).open("r+b") as file:
        punch = ctypes.CDLL(None, use_errno=True).fallocate
        punch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        assert punch(file.fileno(), 0x03, 4096, 4096) == 0, "FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE"
    assert not writer.is_whole()
    assert "was cut short by another process" in why_not(make_reader(name))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_ring_of_another_user_is_refused_and_left_alone(shared_memory, writer, name):
    put(writer, 1)
    path = segment_path(name)
    os.chown(path, 4711, 4711)
    assert why_not(make_reader(name)) == (
        f"camera front: ring {name!r} belongs to user 4711 and not to us, user 0: run the camera and the "
        "engine as one user"
    )
    writer.close()
    path.write_bytes(b"left by another user")
    os.chown(path, 4711, 4711)
    try:
        with RingWriter(unique("other"), H, W):
            assert path.exists(), "abandoned, but not ours to remove"
        with pytest.raises(ValueError, match="exists"):
            RingWriter(name, H, W)
    finally:
        path.unlink()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_ring_that_others_may_write_is_refused(writer, name, mode):
    put(writer, 1)
    segment_path(name).chmod(mode)
    assert f"may be written by other users (mode {mode:o})" in why_not(make_reader(name))


def test_what_is_not_even_a_file_is_refused_in_a_sentence(shared_memory, name):
    path, reader = segment_path(name), make_reader(name)
    makers = {
        "is not a ring: remove": lambda: path.touch(),
        "is not a plain file: remove": lambda: path.mkdir(),
        "not a plain file: remove": lambda: os.mkfifo(path),
        "Too many levels of symbolic links": lambda: path.symlink_to("/etc/passwd"),
    }
    for reason, make in makers.items():
        make()
        try:
            refusal = why_not(reader)
            assert reason in refusal or "cannot be read" in refusal
            if not stat.S_ISREG(path.lstat().st_mode):
                with pytest.raises(ValueError, match="exists"):
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
