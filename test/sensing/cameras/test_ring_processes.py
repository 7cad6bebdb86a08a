"""Real processes on both ends of a ring, at full speed and killed: no wrong pixel, no broken ring or leak."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from rings import (
    is_whole,
    known_image,
    left_over,
    make_reader,
    peer,
    read_when_told,
    whole,
    write_fast,
    write_when_told,
)

from vla_accel_ros.sensing.cameras.frames import NotReady
from vla_accel_ros.sensing.cameras.ring import RingWriter

H, W, SLOTS = 120, 160, 4
ENOUGH, MOST = 300, 1_000_000


def test_no_wrong_pixel_is_ever_accepted_from_a_writer_at_full_speed(name):
    with peer(write_fast, name, H, W, 2) as (_, connection), make_reader(name, copy=False) as reader:
        assert connection.recv() == "running"
        accepted = looks = 0
        while (accepted < ENOUGH or reader.counts("front").overtaken < ENOUGH) and looks < MOST:
            looks += 1
            lease = reader.newest("front")
            if lease is None:
                continue
            good = is_whole(lease.frames["front"])
            if lease.intact():
                assert good, "a torn frame was called intact"
                accepted += 1
        assert accepted >= ENOUGH and reader.counts("front").overtaken >= ENOUGH
        assert reader.counts("front").damaged == 0


def test_copies_of_a_ring_at_full_speed_are_whole_frames(name):
    with peer(write_fast, name, H, W, SLOTS) as (_, connection), make_reader(name, copy=True) as reader:
        assert connection.recv() == "running"
        accepted = looks = 0
        while accepted < ENOUGH and looks < MOST:
            looks += 1
            lease = reader.newest("front")
            if lease is not None:
                with lease:
                    assert is_whole(lease.frames["front"])
                accepted += 1
        assert accepted == ENOUGH
        assert reader.counts("front").damaged == 0


def test_a_writer_killed_in_the_middle_of_a_frame_leaves_no_broken_ring(name):
    readers = [make_reader(name, copy=True), make_reader(name, copy=False)]
    with peer(write_when_told, name, H, W, SLOTS) as (process, connection):
        for stamp in (1, 2, 3):
            connection.send(stamp)
            handle = connection.recv()
        leases = [reader.take(handle) for reader in readers]
        connection.send("half")
        assert connection.recv() == "half"
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    for reader, lease in zip(readers, leases):
        assert lease.intact() and whole(lease) and lease.frames["front"].stamp_ns == 3
        newest = reader.newest_set(("front",), 0.0)
        # Any process that makes a ring, another test run's too, may have removed the dead one's by now.
        assert isinstance(newest, NotReady) or newest.frames["front"].stamp_ns == 3
        assert whole(newest)
    with RingWriter(name, H, W, SLOTS) as successor:
        handle = successor.write(known_image(4, H, W), 4)
        for reader in readers:
            newest = reader.take(handle)
            assert whole(newest) and newest.frames["front"].stamp_ns == 4
            assert reader.counts("front").opened == 2
    assert all(whole(lease) for lease in leases), "and what was leased from the dead writer is still there"


def test_any_writer_that_starts_removes_what_dead_ones_left(name):
    with peer(write_when_told, f"{name}.dead", H, W, SLOTS) as (process, connection):
        connection.send(1)
        connection.recv()
        process.kill()
        process.join()
    with RingWriter(f"{name}.other", H, W, SLOTS):
        assert left_over(f"{name}.dead") == []


def test_a_living_writer_keeps_its_name_even_while_it_stands_still(name):
    with peer(write_when_told, name, H, W, SLOTS) as (process, connection):
        connection.send("half")
        connection.recv()
        with pytest.raises(ValueError, match=f"is being written by process {process.pid}: stop that"):
            RingWriter(name, H, W, SLOTS)
        connection.send("go on")
        connection.send(1)
        assert make_reader(name, copy=False).take(connection.recv()).intact()


def test_a_reader_that_ends_or_is_killed_takes_nothing_with_it(name):
    with RingWriter(name, H, W, SLOTS) as writer:
        for ending in ("kill", "end"):
            earlier = left_over(name)
            writer.write(known_image(1, H, W), 1)
            with peer(read_when_told, name) as (process, connection):
                connection.send("take")
                assert connection.recv() == 1
                if ending == "kill":
                    process.kill()
            assert process.exitcode == (-signal.SIGKILL if ending == "kill" else 0)
            assert left_over(name) == earlier != []
            for stamp in range(2, 2 + 2 * SLOTS):
                handle = writer.write(known_image(stamp, H, W), stamp)
            assert whole(make_reader(name, copy=True).take(handle))


def run(program: str) -> subprocess.CompletedProcess[str]:
    imports = (
        "import os, signal, sys\n"
        "from vla_accel_ros.sensing.cameras.ring import RingWriter\n"
        "from vla_accel_ros.sensing.cameras.ring_reader import RingReader\n"
    )
    return subprocess.run([sys.executable, "-c", imports + program], capture_output=True, text=True)


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise OSError('camera unplugged')"])
def test_a_process_that_forgets_to_close_leaves_nothing(name, ending):
    done = run(f"writer = RingWriter({name!r}, 4, 4)\n{ending}\n")
    assert left_over(name) == []
    assert done.stderr.splitlines()[-1:] == (["OSError: camera unplugged"] if "raise" in ending else [])


def test_a_reader_ends_without_a_word_on_standard_error(name):
    with RingWriter(name, H, W) as writer:
        writer.write(known_image(1, H, W), 1)
        done = run(
            f"for copy in (True, False):\n"
            f"    reader = RingReader({{'front': {name!r}}}, copy, page_lock=False)\n"
            f"    print(reader.newest('front').frames['front'].stamp_ns)\n"
        )
        assert (done.stdout, done.stderr, done.returncode) == ("1\n1\n", "", 0)
        assert left_over(name) != []


def test_a_forked_child_neither_removes_the_ring_nor_keeps_it_locked(name):
    """The child outlives its killed parent; the name is free all the same. Another child just ends."""
    program = (
        f"writer = RingWriter({name!r}, 4, 4)\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait()\n"
        f"assert os.path.exists('/dev/shm/vla_accel_ros.ring.' + {name!r})\n"
        "ours, theirs = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.close(theirs)\n"
        "    os.read(ours, 1)\n"  # returns when the parent is dead
        f"    with RingWriter({name!r}, 8, 8): print('taken over', flush=True)\n"
        "    os._exit(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run(program)
    assert (done.stdout, done.stderr) == ("taken over\n", "")
