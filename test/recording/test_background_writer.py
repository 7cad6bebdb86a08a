"""The robot never waits for the disk; what is not written is counted, and what is written can be read."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from bags import TEXT, numbered, numbers

from vla_accel_ros.recording.background_writer import LOOK_BYTES, Recording
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.reader import Bag

MB = 1 << 20
HERE = Path(__file__).resolve().parent

# A process that records without end, and says how far it is.
ENDLESS = """
import sys
from pathlib import Path
from bags import TEXT, numbered
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.background_writer import Recording
import resource
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
recording = Recording(McapBag(Path(sys.argv[1])), 64 << 20, 0)
recording.add(TEXT)
number = 0
while not recording.ended:
    if recording.waiting_bytes < 4 << 20:
        recording.put(TEXT.name, number, numbered(number, 100_000))
        number += 1
        if number % 100 == 0:
            print(recording.written.total(), flush=True)
recording.close(5.0)
print(recording.trouble, flush=True)
"""


def endless(path: Path, limit: int = 0) -> subprocess.Popen[str]:
    """A recorder in a process of its own; limit: bytes that any of its files may have."""
    places = f"{HERE}:{HERE.parents[1]}"
    command = [sys.executable, "-c", ENDLESS, str(path), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": places})


class Stuck(McapBag):
    """A disk that stands still until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reached, self.go = threading.Event(), threading.Event()

    def write(self, topic: str, log_ns: int, data: bytes | bytearray) -> None:
        self.reached.set()
        self.go.wait()
        super().write(topic, log_ns, data)


def test_everything_is_in_the_bag_in_its_order(tmp_path):
    recording = Recording(McapBag(tmp_path / "bag"), MB, 0)
    recording.add(TEXT)
    for number in range(1000):
        assert recording.put(TEXT.name, number, numbered(number))
    recording.close(10.0)
    assert numbers(tmp_path / "bag") == [*range(1000)]
    assert recording.written[TEXT.name] == 1000 and not recording.dropped and not recording.trouble
    assert recording.waiting_bytes == 0 and recording.ended
    assert not recording.put(TEXT.name, 0, numbered(0))


def test_what_does_not_fit_the_queue_is_dropped_and_counted_and_the_rest_is_whole(tmp_path):
    bag = Stuck(tmp_path / "bag")
    recording = Recording(bag, 10_000, 0)
    recording.add(TEXT)
    is_queued = [recording.put(TEXT.name, number, numbered(number, 1000)) for number in range(20)]
    assert is_queued == [True] * 9 + [False] * 11
    assert recording.dropped[TEXT.name] == 11 and recording.waiting_bytes <= 10_000
    bag.go.set()
    recording.close(10.0)
    assert numbers(tmp_path / "bag") == [*range(9)]


def test_closing_waits_no_longer_than_it_is_told(tmp_path):
    bag = Stuck(tmp_path / "bag")
    recording = Recording(bag, MB, 0)
    recording.add(TEXT)
    for number in range(5):
        recording.put(TEXT.name, number, numbered(number))
    bag.reached.wait()
    recording.close(0.05)
    assert recording.dropped[TEXT.name] == 4  # the first is being written
    bag.go.set()
    recording.close(10.0)
    assert numbers(tmp_path / "bag") == [0]


def test_a_disk_that_fills_up_ends_the_recording_with_a_whole_bag(tmp_path):
    free = iter((2000 * MB, 1500 * MB, 999 * MB))
    recording = Recording(
        McapBag(tmp_path / "bag"), 1000 * MB, 1000 * MB, lambda path: next(free), begin=False
    )
    recording.add(TEXT)
    size = LOOK_BYTES // 4
    for number in range(20):
        recording.put(TEXT.name, number, numbered(number, size))
    recording.begin()
    recording.close(60.0)
    assert "recording has ended: the disk of" in recording.trouble and "999 MB left" in recording.trouble
    recorded = numbers(tmp_path / "bag")
    assert recorded == [*range(len(recorded))] and 8 <= len(recorded) < 20
    assert Bag(tmp_path / "bag").path.joinpath("metadata.yaml").exists()
    assert not recording.put(TEXT.name, 0, numbered(0)) and not recording.dropped


@pytest.mark.parametrize("limit_mb", [9, 13])
def test_a_disk_that_refuses_leaves_what_was_written_readable(tmp_path, limit_mb):
    process = endless(tmp_path / "bag", limit_mb * MB)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert f"the bag {tmp_path / 'bag'} cannot be written any more: File too large" in out
    bag = Bag(tmp_path / "bag")
    recorded = [int(bag.decode(entry).data.split()[0]) for entry in bag.entries()]
    assert recorded == [*range(len(recorded))] and len(recorded) > (limit_mb - 6) * 10
    assert bag.finished  # cut back to whole chunks, and ended


def test_a_recorder_that_is_killed_leaves_all_but_the_last_chunk(tmp_path):
    process = endless(tmp_path / "bag")
    assert process.stdout is not None
    written = 0
    while written < 300:
        written = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    bag = Bag(tmp_path / "bag")
    recorded = [int(bag.decode(entry).data.split()[0]) for entry in bag.entries()]
    assert recorded == [*range(len(recorded))] and len(recorded) >= written - 4 * 10 - 10
    assert not bag.finished
