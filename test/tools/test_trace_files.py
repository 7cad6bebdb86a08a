"""`vla trace`: the file that Perfetto reads, the table, and both from a bag."""

from __future__ import annotations

import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import BuiltinClock, Trace, TrackEvent
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk, Inputs, Observed, Session
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.timeline import Event, Recorded
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.trace import bag, latency, perfetto_file

MS = 1_000_000
IMAGE = 1_000_000_000_000  # the stamp of a frame


def robot(image_ns: int = IMAGE, at_ns: int = 50_000 * MS, act: str = "act.denoise") -> list[Recorded]:
    """Three processes and one frame, each step of which takes a ms more than the one before. act: its
    micro-batches of actions."""
    flows, ms = (image_ns,), [0, 1, 3, 6, 10, 15, 21, 28, 36, 45, 55]
    moments = [at_ns + offset * MS for offset in ms]
    inference = (
        Event("topic /camera/front", "callback", moments[1], moments[1] + MS, flows),
        Event("camera front", "taken", moments[1] + MS, moments[1] + MS, flows, str(MS)),
        Event("lane main", "observe.encode", moments[2], moments[3], flows, "observe of frame 4"),
        Event("lane main", act, moments[4], moments[4] + MS, flows),
        Event("lane main", act, moments[4] + 2 * MS, moments[5], flows),
        Event("GPU, lane main", act, moments[4], moments[4] + 3 * MS, flows),
        Event("topic /action_chunk", "publish", moments[6], moments[6] + MS, flows),
        Event("loop vision", "deadline missed", moments[6], moments[6]),
    )
    trajectory = (
        Event("topic /action_chunk", "callback", moments[7], moments[10] + MS, flows),
        Event("trajectory", "follow", moments[8], moments[10] + MS, flows),
        Event("topic /arm", "publish", moments[9], moments[10], flows),
    )
    recorder = (Event("topic /action_chunk", "callback", moments[6], moments[6] + MS, flows),)
    events_by_node = {"/inference": inference, "/trajectory": trajectory, "/recorder": recorder}
    return [
        Recorded(f"boot {number} x", (node,), events, moments[10], 7 * MS, moments[0])
        for number, (node, events) in enumerate(events_by_node.items())
    ]


def read(path: Path) -> tuple[Any, dict[int, str]]:
    """A trace, and its tracks' names with those of their processes."""
    trace = Trace.FromString(path.read_bytes())
    described = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    processes = {d.uuid: d.process.process_name for d in described if d.HasField("process")}
    tracks = {d.uuid: f"{processes[d.parent_uuid]} {d.name}" for d in described if d.parent_uuid}
    return trace, tracks


@pytest.mark.parametrize("act", ["act.denoise", "whole.denoise"])
def test_trace_every_step_is_between_the_moments_it_is_named_after(act: str) -> None:
    rows = latency.steps(latency.frames(robot(act=act)).values())
    assert [row.ms for row in rows[:-1]] == [(float(step),) for step in range(1, 11)]
    assert rows[-1].ms == (55.0,)
    assert [(row.name, row.ms) for row in latency.gpu_steps(robot(act=act))] == [
        (f"on the GPU: {act}", (3.0,))
    ]


def test_trace_frame_in_groups_is_a_prefix_after_the_last() -> None:
    records, at_ns = robot(), 50_000 * MS
    ends = {
        "observe.encode": at_ns + 4 * MS,
        "act.denoise": at_ns + 5 * MS,
        "observe.prefill": at_ns + 6 * MS,
    }
    groups = [Event("lane main", name, end_ns - MS, end_ns, (IMAGE,)) for name, end_ns in ends.items()]
    remaining = [event for event in records[0].events if not event.name.startswith("observe.")]
    records[0] = replace(records[0], events=(*remaining, *groups))
    moments = latency.frames(records)[IMAGE]
    assert (moments["observed"], moments["prefix"]) == (at_ns + 3 * MS, at_ns + 6 * MS)


def test_trace_image_that_another_frame_used_as_its_later_one_is_observed_in_its_own() -> None:
    records, before_ns = robot(), 50_000 * MS - 3 * MS
    earlier = Event("lane main", "observe.encode", before_ns, before_ns + MS, (IMAGE - 33 * MS, IMAGE))
    records[0] = replace(records[0], events=(earlier, *records[0].events))
    moments = latency.frames(records)
    assert moments[IMAGE]["observed"] == 50_003 * MS
    assert moments[IMAGE - 33 * MS] == {"observed": before_ns, "prefix": before_ns + MS}


def test_trace_what_nobody_told_is_said_to_be_unknown_and_the_rest_is_counted() -> None:
    records = [*robot()[:1], *robot(IMAGE + 1, 60_000 * MS)]
    text = latency.table(latency.steps(latency.frames(records).values()))
    lines = {line[:44].strip(): line[44:].split() for line in text.splitlines()}
    assert lines["upload, encode, prefill"] == ["2", "3.000", "3.000"]
    assert lines["chunk on its way"] == ["1", "7.000", "7.000"]
    text = latency.table(latency.steps(latency.frames(robot()[:1]).values()))
    unknown = [line for line in text.splitlines() if "not known: no frame has both ends of it" in line]
    assert len(unknown) == 5 and "image stamp to command" in unknown[-1]


def test_trace_has_a_track_for_each_lane_loop_and_topic_and_arrows_along_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "robot.pftrace"
    assert perfetto_file.write(path, robot()) == 12
    trace, tracks = read(path)
    assert sorted(tracks.values()) == [
        "/inference GPU, lane main",
        "/inference camera front",
        "/inference lane main",
        "/inference loop vision",
        "/inference topic /action_chunk",
        "/inference topic /camera/front",
        "/recorder topic /action_chunk",
        "/trajectory topic /action_chunk",
        "/trajectory topic /arm",
        "/trajectory trajectory",
    ]
    events = [p for p in trace.packet if p.HasField("track_event")]
    assert [p.timestamp for p in events] == sorted(p.timestamp for p in events)
    way = [tracks[p.track_event.track_uuid] for p in events if IMAGE in p.track_event.flow_ids]
    assert (
        way[0] == "/inference topic /camera/front" and way[-1] == "/trajectory topic /arm" and len(way) == 11
    )
    (missed,) = [p for p in events if p.track_event.name == "deadline missed"]
    assert missed.track_event.type == TrackEvent.TYPE_INSTANT and not missed.track_event.flow_ids
    (encode,) = [p.track_event for p in events if p.track_event.name == "observe.encode"]
    assert {a.name: a.string_value or a.int_value for a in encode.debug_annotations} == {
        "detail": "observe of frame 4",
        "image_stamp_ns": IMAGE,
    }
    (clocks,) = [p.clock_snapshot.clocks for p in trace.packet if p.HasField("clock_snapshot")]
    times = {clock.clock_id: clock.timestamp for clock in clocks}
    assert times[BuiltinClock.BUILTIN_CLOCK_REALTIME] == 7 * MS
    assert (
        times[BuiltinClock.BUILTIN_CLOCK_MONOTONIC]
        == times[BuiltinClock.BUILTIN_CLOCK_BOOTTIME]
        == 50_055 * MS
    )


def test_trace_slices_of_a_track_nest_and_what_overlaps_has_another_row(tmp_path: Path) -> None:
    spans = {"outer": (0, 100), "inner": (0, 40), "after": (40, 60), "late": (50, 150), "next": (100, 120)}
    events = tuple(Event("loop action", name, *times) for name, times in spans.items())
    perfetto_file.write(tmp_path / "rows", [Recorded("boot 1 x", ("/inference",), events)])
    trace, tracks = read(tmp_path / "rows")
    stacks: dict[str, list[str]] = {name: [] for name in tracks.values()}
    inside = {}
    for event in (p.track_event for p in trace.packet if p.HasField("track_event")):
        stack = stacks[tracks[event.track_uuid]]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            inside[event.name] = tracks[event.track_uuid], tuple(stack)
            stack.append(event.name)
        else:
            stack.pop()
    assert inside == {
        "outer": ("/inference loop action", ()),
        "inner": ("/inference loop action", ("outer",)),
        "after": ("/inference loop action", ("outer",)),
        "late": ("/inference loop action 2", ()),
        "next": ("/inference loop action", ()),
    }
    assert not any(stacks.values())


def test_trace_flow_with_one_end_is_no_arrow(tmp_path: Path) -> None:
    events = (Event("topic /image", "callback", 0, 5, (IMAGE,)),)
    perfetto_file.write(tmp_path / "one", [Recorded("boot 1 x", ("/inference",), events)])
    trace, _ = read(tmp_path / "one")
    assert not any(p.track_event.flow_ids for p in trace.packet)


class Tape:
    """A bag whose messages come to the recorder at given times."""

    def __init__(self, path: Path) -> None:
        self._bag, self._topics = McapBag(path), set[str]()

    def add(self, ms: float, topic: str, message: Any, kind: str = "") -> None:
        kind = kind or type_name(type(message))
        if topic not in self._topics:
            self._topics.add(topic)
            self._bag.add(Topic(topic, kind, definition(kind), True))
        raw = message if isinstance(message, bytes | bytearray) else serialize_message(message)
        self._bag.write(topic, IMAGE + round(ms * MS), raw)

    def frame(
        self, ms: float, commands: tuple[str, ...] = ("/arm",), robot: str = "", chunk_ms: float = 50
    ) -> None:
        """An image of this time, its prefix 20 ms later, its chunk 50 ms, its commands 53 ms."""
        stamp_ns = IMAGE + round(ms * MS)
        picture = image_message(stamp_ns, "camera", np.zeros((8, 8, 3), np.uint8))
        self.add(ms + 5, f"{robot}/camera/front/image_raw", picture, "sensor_msgs/msg/Image")
        self.add(ms + 8, f"{robot}/camera/wrist/image_raw", picture, "sensor_msgs/msg/Image")
        for delay_ms, topic, message in (
            (20, "/observed", Observed(kv_version=3)),
            (
                chunk_ms,
                "/action_chunk",
                ActionChunk(kv_version=3, inference_s=0.03, actions=array("f", [0.0])),
            ),
        ):
            set_stamp(message.header.stamp, stamp_ns)
            self.add(ms + delay_ms, robot + topic, message)
        for topic in commands:
            self.add(ms + 53, topic, JointTrajectory())
            self.add(ms + 60, topic, JointTrajectory())  # of a stop, or a move: nobody's

    def close(self) -> None:
        self._bag.close()


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Three frames a second apart, of which the second brought no command."""
    tape = Tape(tmp_path / "bag")
    tape.add(0, "/instruction", String(data="reach the red block"))
    tape.add(1, "/inputs", Inputs(waiting_for="no instruction yet"))
    tape.frame(100)
    tape.frame(1100, commands=())
    tape.frame(2100)
    tape.close()
    return tmp_path / "bag"


def test_trace_bag_tells_when_messages_came_to_the_recorder(tape: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "bag.pftrace"
    assert main(["trace", str(tape), "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    rows = [line.rsplit(maxsplit=3) for line in out.splitlines()[1:]]
    assert [(frames, p50) for _, frames, p50, _ in rows] == [
        ("3", "8.000"),
        ("3", "12.000"),
        ("3", "30.000"),
        ("2", "3.000"),
        ("2", "53.000"),
    ]
    trace, tracks = read(file)
    events = [p for p in trace.packet if p.HasField("track_event")]
    way = [tracks[p.track_event.track_uuid] for p in events if IMAGE + 100 * MS in p.track_event.flow_ids]
    ends = ("camera/front/image_raw", "camera/wrist/image_raw", "observed", "action_chunk", "arm")
    assert way == [f"bag topic /{end}" for end in ends]
    details = {a.string_value for p in events for a in p.track_event.debug_annotations if a.name == "detail"}
    assert {"reach the red block", "no instruction yet", "chunk 0 of frame 3, 0.030 s"} <= details
    assert "open it in https://ui.perfetto.dev" in err


def test_trace_other_topics_of_a_recording_of_all_are_no_commands(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "bag")
    tape.frame(100)
    tape.add(151, "/joy", Joy())
    tape.add(151, "/joint_states", JointState())
    tape.close()
    _, moments = bag.read(tmp_path / "bag")
    assert latency.steps(moments.values(), latency.RECORDED)[3].ms == (3.0,)


def test_trace_commands_are_those_of_the_contract_where_the_bag_has_it(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "bag")
    tape.add(0, "/session", Session(contract=demo_contract().read_text()))
    topic = f"/{Contract.load(demo_contract()).controllers[0].topic}"
    tape.frame(100, commands=(topic,))
    tape.add(151, "/somebody/joint_trajectory", JointTrajectory())
    tape.close()
    _, moments = bag.read(tmp_path / "bag")
    assert latency.steps(moments.values(), latency.RECORDED)[3].ms == (3.0,)


def test_trace_of_several_robots_each_has_its_own_frames_and_commands(tmp_path: Path, capsys) -> None:
    tape = Tape(tmp_path / "bag")
    tape.frame(100, commands=("/left/arm",), robot="/left")
    tape.frame(100, commands=("/right/arm",), robot="/right", chunk_ms=51)  # at the same time
    tape.add(400, "/left/arm", JointTrajectory())
    tape.close()
    _, moments = bag.read(tmp_path / "bag")
    assert [row.ms for row in latency.steps(moments.values(), latency.RECORDED)] == [
        (8.0, 8.0),
        (12.0, 12.0),
        (30.0, 31.0),
        (3.0, 2.0),
        (53.0, 53.0),
    ]
    record, moments = bag.read(tmp_path / "bag", namespace="/right")
    assert list(moments) == [IMAGE + 100 * MS]
    assert {event.track.split("/")[1] for event in record.events} == {"right"}
    assert main(["trace", str(tmp_path / "bag"), "--namespace", "third"]) == 2
    assert "has no robot third: give --namespace with one of left, right" in capsys.readouterr().err


def test_trace_only_the_end_of_a_bag(tape: Path) -> None:
    record, moments = bag.read(tape, seconds=0.5)
    assert {event.flows for event in record.events if event.flows} == {(IMAGE + 2100 * MS,)}
    assert list(moments) == [IMAGE + 2100 * MS]


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_trace_timeline_begins_where_the_clock_was_set_last(tmp_path: Path, seconds: float | None) -> None:
    tape = Tape(tmp_path / "bag")
    tape.frame(100)
    tape.frame(1100)
    tape.frame(-4900)
    tape.close()
    record, moments = bag.read(tmp_path / "bag", seconds)
    assert list(moments) == [IMAGE - 4900 * MS]
    assert [event.name for event in record.events if event.track == "clock"] == [
        "the clock of the recording was set by -6.055 s"
    ]
    assert 0 < record.events[-1].end_ns - record.events[0].end_ns < 100 * MS


def test_trace_message_that_cannot_be_read_is_an_event_without_a_frame(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "bag")
    tape.frame(100)
    tape.add(200, "/camera/front/image_raw", b"", "sensor_msgs/msg/Image")
    tape.add(201, "/instruction", b"\0\1\0\0\1", "std_msgs/msg/String")
    tape.close()
    record, moments = bag.read(tmp_path / "bag")
    assert list(moments) == [IMAGE + 100 * MS]
    assert [(event.name, event.flows) for event in record.events[-2:]] == [("unreadable", ())] * 2
    assert "a message on /camera/front/image_raw is no sensor_msgs/msg/Image" in record.events[-2].detail


def test_trace_stamps_and_records_of_different_clocks_are_not_subtracted(tmp_path: Path, capsys) -> None:
    tape = Tape(tmp_path / "bag")
    tape.frame(100)
    picture = image_message(5, "camera", np.zeros((8, 8, 3), np.uint8))  # a simulated time
    tape.add(200, "/camera/front/image_raw", picture, "sensor_msgs/msg/Image")
    tape.close()
    _, moments = bag.read(tmp_path / "bag")
    assert moments[5] == {"arrived": IMAGE + 200 * MS}


def test_trace_what_is_no_bag_or_empty_is_one_sentence(tmp_path: Path, capsys) -> None:
    assert main(["trace", str(tmp_path / "nothing")]) == 2
    assert "does not exist: give a bag's folder" in capsys.readouterr().err
    McapBag(tmp_path / "empty").close()
    assert main(["trace", str(tmp_path / "empty")]) == 2
    assert "empty has no messages: record some" in capsys.readouterr().err


def test_trace_without_the_package_perfetto_the_table_is_printed_and_the_trace_says_how_to_get_it(
    tape: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    assert main(["trace", str(tape), "-o", str(tmp_path / "file")]) == 1
    out, err = capsys.readouterr()
    assert "record of the chunk to that of the next command" in out
    assert "a trace needs the package perfetto" in err and err.endswith("pip install perfetto\n")
