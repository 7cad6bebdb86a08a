"""Reads a recording as a timeline: when each message was recorded, and to which frame it belongs.

A bag has no lanes and loops, but images, prefixes and chunks carry the stamp of their image. A command
carries none: the first one of each topic after a chunk of its robot is counted as that chunk's. Which topics
are commands, the contracts in the bag say; without one, their types do. The clock is ROS time, that of the
recorder's stamps; where it was set during the recording, the timeline begins after that. Sessions and inputs
appear with their own words, and what is no message of its type as unreadable.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_accel_ros.recording.jumps import numbered
from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.recording.robots import commanded, named, robot_of
from vla_accel_ros.timeline import Event, Flows, Recorded, flow

MOST = 2_000_000
"""Largest number of messages in one trace; `--seconds` shortens a longer bag."""
LONGEST_AGE_NS = 60_000_000_000
"""Longest time between a stamp and its record; if it is longer, the two come from different clocks."""

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


def read(
    path: Path, seconds: float | None = None, namespace: str = ""
) -> tuple[Recorded, dict[int, dict[str, int]]]:
    """Return a bag's timeline and the moments of its frames (latency.RECORDED).

    seconds: how much of its end to read, None for all. namespace: of the only robot to read, with what lies
    in no robot's namespace; empty for all. Raises ValueError, in one sentence, if the path is no bag, the bag
    is damaged or empty, has no such robot, or more than MOST messages; OSError if it cannot be read.
    """
    bag = Bag(path)
    bag.survey()
    every = bag.namespaces(_CHUNK)
    robots = [robot for robot in every if not namespace or robot.strip("/") == namespace.strip("/")]
    if every and not robots:
        raise ValueError(f"{path} has no robot {namespace}: give --namespace with one of {named(every)}")
    commands = commanded(bag)
    readings = _readings(robots, commands)
    events: deque[Event] = deque()
    part = 0
    for number, by_ns, entry in numbered(bag):
        if number > part:
            part, readings = number, _readings(robots, commands)
            jump = f"the clock of the recording was set by {by_ns * 1e-9:.3f} s"
            events = deque([Event("clock", jump, entry.log_ns, entry.log_ns)])
        robot = robot_of(entry.topic, every)
        if robot is not None and robot not in robots:
            continue
        concerned = readings.values() if robot is None else [readings[robot]]
        described = [reading.event(bag, entry) for reading in concerned]
        events.append(described[0]._replace(flows=tuple(flow for event in described for flow in event.flows)))
        while seconds is not None and events[0].end_ns < entry.log_ns - round(seconds * 1e9):
            events.popleft()
        if len(events) > MOST:
            raise ValueError(f"{path} has more than {MOST} messages: give --seconds, of its end")
    if not events:
        raise ValueError(f"{path} has no messages: record some")
    first_ns, last_ns = events[0].end_ns, events[-1].end_ns
    record = Recorded(f"bag {path.name}", (path.name,), tuple(events), last_ns, last_ns, first_ns)
    frames = {frame: moments for reading in readings.values() for frame, moments in reading.frames.items()}
    return record, {
        frame: moments for frame, moments in frames.items() if moments.get("arrived", first_ns) >= first_ns
    }


def _readings(robots: Sequence[str], commands: Collection[str]) -> dict[str, _Reading]:
    """Return a reading for each robot; one for all topics of a bag with one robot or none."""
    several = len(robots) > 1
    return {robot: _Reading(commands, robot if several else "") for robot in robots or ("",)}


class _Reading:
    """State of one pass over a robot's messages. commands: the bag's topics of commands. robot: its
    namespace, if there are several. frames: the moments of each frame, by its flow."""

    def __init__(self, commands: Collection[str], robot: str = "") -> None:
        self.frames: dict[int, dict[str, int]] = {}
        self._commands, self._robot = commands, robot
        self._chunk = 0  # the newest chunk's flow
        self._commanded: set[str] = set()  # topics with a command since that chunk

    def event(self, bag: Bag, entry: Entry) -> Event:
        """Return the event of a message."""
        try:
            return self._event(bag, entry)
        except ValueError as error:
            return Event(f"topic {entry.topic}", "unreadable", entry.log_ns, entry.log_ns, (), str(error))

    def _event(self, bag: Bag, entry: Entry) -> Event:
        flows: Flows = ()
        name = "recorded"
        if entry.type in _OF_FRAMES:
            flows = self._of_frame(bag, entry)
        elif entry.topic in self._commands:
            name = "command recorded"
            if self._chunk and entry.topic not in self._commanded:
                self._commanded.add(entry.topic)
                flows = (self._chunk,)
                self.frames[self._chunk].setdefault("commanded", entry.log_ns)
        describe = _TOLD.get(entry.type)
        detail = describe(bag.decode(entry)) if describe else ""
        return Event(f"topic {entry.topic}", name, entry.log_ns, entry.log_ns, flows, detail)

    def _of_frame(self, bag: Bag, entry: Entry) -> Flows:
        stamp_ns = _stamp_ns(bag, entry)
        frame_flow = flow(stamp_ns, self._robot)
        frame = self.frames.setdefault(frame_flow, {})
        if entry.type in _IMAGES:
            frame["arrived"] = entry.log_ns  # the last of several cameras
            if 0 <= entry.log_ns - stamp_ns <= LONGEST_AGE_NS:
                frame.setdefault("captured", stamp_ns)
        elif entry.type == _CHUNK:
            if "published" not in frame:
                self._chunk = frame_flow
                self._commanded.clear()
            frame.setdefault("published", entry.log_ns)
        elif entry.type.endswith("/Observed"):
            frame.setdefault("prefix", entry.log_ns)
        return (frame_flow,)


def _stamp_ns(bag: Bag, entry: Entry) -> int:
    """Return the stamp of a message that begins with a header, without decoding it: images are large."""
    data = entry.data
    if len(data) < 12:
        raise ValueError(
            f"{bag.path}: a message on {entry.topic} is no {entry.type}: it ends in its header; record again"
        )
    sec, nanosec = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return sec * 1_000_000_000 + nanosec
