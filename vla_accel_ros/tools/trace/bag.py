"""A recording as a timeline: when each message came to the recorder, and which frame it belongs to.

A bag knows nothing of lanes and loops, but images, prefixes and chunks carry their image's stamp. A command
carries none: the first of each topic after a chunk is taken for that chunk's. The clock is that of the
recorder's stamps, ROS time. What an engine told of itself (`session`, `inputs`) stands there as it was told.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.recording.roles import Role, role
from vla_accel_ros.timeline import Event, Flows, Recorded, flow

MOST = 2_000_000
"""Messages of one trace; `--seconds` cuts a longer bag."""
LONGEST_AGE_NS = 60_000_000_000
"""Between a stamp and its record. What is further apart was told by different clocks."""

_CHUNK = "vla_accel_msgs/msg/ActionChunk"
_IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage", "vla_accel_msgs/msg/FrameHandle")
_OF_FRAMES = (*_IMAGES, _CHUNK, "vla_accel_msgs/msg/Observed", "vla_accel_msgs/msg/LanguageOutput")
_TOLD: Mapping[str, Callable[[Any], str]] = {
    _CHUNK: lambda chunk: f"chunk {chunk.request_id} of frame {chunk.kv_version}, {chunk.inference_s:.3f} s",
    "std_msgs/msg/String": lambda text: str(text.data)[:200],
    "vla_accel_msgs/msg/Inputs": lambda told: told.waiting_for,
    "vla_accel_msgs/msg/Motion": lambda motion: "; ".join(motion.reasons),
    "vla_accel_msgs/msg/Session": lambda session: f"{session.model} on {session.device}",
}


def read(path: Path, seconds: float | None = None) -> tuple[Recorded, dict[int, dict[str, int]]]:
    """The timeline of a bag, and the moments of its frames (latency.RECORDED). seconds: of its end.

    Raises ValueError, one sentence, for what is no bag, is damaged, or has more than MOST messages; OSError.
    """
    bag, reading = Bag(path), _Reading()
    events: deque[Event] = deque()
    for entry in bag.entries():
        events.append(reading.event(bag, entry))
        while seconds is not None and events[0].end_ns < entry.log_ns - round(seconds * 1e9):
            events.popleft()
        if len(events) > MOST:
            raise ValueError(f"{path} has more than {MOST} messages: give --seconds, of its end")
    if not events:
        raise ValueError(f"{path} has no messages: record some")
    first_ns, last_ns = events[0].end_ns, events[-1].end_ns
    record = Recorded(f"bag {path.name}", (path.name,), tuple(events), last_ns, last_ns, first_ns)
    return record, {
        each: at for each, at in reading.frames.items() if at.get("arrived", first_ns) >= first_ns
    }


class _Reading:
    """frames: the moments of each, by its flow."""

    def __init__(self) -> None:
        self.frames: dict[int, dict[str, int]] = {}
        self._chunk = 0  # flow of the last one
        self._commanded: set[str] = set()  # topics that had a command since

    def event(self, bag: Bag, entry: Entry) -> Event:
        """The event of a message."""
        flows: Flows = ()
        name = "recorded"
        if entry.type in _OF_FRAMES:
            flows = self._of_frame(bag, entry)
        elif role(entry.topic, entry.type) is Role.COMMAND:
            name = "command recorded"
            if self._chunk and entry.topic not in self._commanded:
                self._commanded.add(entry.topic)
                flows = (self._chunk,)
                self.frames[self._chunk].setdefault("commanded", entry.log_ns)
        told = _TOLD.get(entry.type)
        detail = told(bag.decode(entry)) if told else ""
        return Event(f"topic {entry.topic}", name, entry.log_ns, entry.log_ns, flows, detail)

    def _of_frame(self, bag: Bag, entry: Entry) -> Flows:
        stamp_ns = _stamp_ns(bag, entry)
        frame = self.frames.setdefault(flow(stamp_ns), {})
        if entry.type in _IMAGES:
            frame["arrived"] = entry.log_ns  # of several cameras the last
            if 0 <= entry.log_ns - stamp_ns <= LONGEST_AGE_NS:
                frame.setdefault("captured", stamp_ns)
        elif entry.type == _CHUNK:
            if "published" not in frame:
                self._chunk = flow(stamp_ns)
                self._commanded.clear()
            frame.setdefault("published", entry.log_ns)
        elif entry.type.endswith("/Observed"):
            frame.setdefault("prefix", entry.log_ns)
        return (flow(stamp_ns),)


def _stamp_ns(bag: Bag, entry: Entry) -> int:
    """Of a message that begins with a header, which is read in place: images are large."""
    data = entry.data
    if len(data) < 12:
        raise ValueError(f"{bag.path}: a message on {entry.topic} is no {entry.type}: it ends in its header")
    sec, nanosec = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return sec * 1_000_000_000 + nanosec
