"""`vla trace` of a running robot: every frame from its image to the command, across two processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from running import NodeProcess
from stack import Stack, wait_for_motion, wait_for_recorder

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.clients.timelines import Timelines
from vla_accel_ros.timeline import merged
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.trace import latency


class Tracks:
    """What a trace file has: names of tracks with their process, and the events on them."""

    def __init__(self, path: Path) -> None:
        trace = Trace.FromString(path.read_bytes())
        described = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
        self.processes = {d.uuid: d.process.process_name for d in described if d.HasField("process")}
        self._names = {
            d.uuid: (self.processes[d.parent_uuid], d.name) for d in described if d.HasField("parent_uuid")
        }
        self.packets = [p for p in trace.packet if p.HasField("track_event")]

    def of_flow(self, flow: int) -> list[tuple[str, str, str]]:
        """(process, track, name) of the events that a flow goes through, by time."""
        flow_packets = [p for p in self.packets if flow in p.track_event.flow_ids]
        return [(*self._names[p.track_event.track_uuid], p.track_event.name) for p in flow_packets]

    @property
    def names(self) -> set[tuple[str, str]]:
        return set(self._names.values())


def test_a_frame_is_followed_from_its_image_to_the_command(
    start: Callable[..., NodeProcess], operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Stack(start, tmp_path)
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))  # hears chunks, too
    wait_for_recorder(operator, "arm_controller/joint_trajectory")
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    operator.instruct(operator.reset("reach", 1))
    wait_for_motion(operator)
    count = len(operator.chunks)
    operator.wait(lambda: len(operator.chunks) >= count + 20, 90.0, "twenty chunks in motion")
    with Timelines() as timelines:
        records, missing = timelines.read(20.0, 30.0, ["inference", "recorder", "trajectory"])
    nodes = [("/inference",), ("/recorder",), ("/trajectory",)]
    assert not missing and [record.nodes for record in records] == nodes
    moments = latency.frames(merged(records))
    whole = {ns: frame for ns, frame in moments.items() if {"captured", "commanded"} <= frame.keys()}
    order = [latency.LIVE[0][0], *(end for _, end, _ in latency.LIVE)]
    complete = [[frame[moment] for moment in order] for frame in whole.values() if set(order) <= frame.keys()]
    # Of one that was published as inference was asked, that may not be written yet.
    assert len(complete) >= max(3, len(whole) - 1)
    assert all(times == sorted(times) for times in complete)

    def heard() -> bool:
        """All but two at most, which a busy machine may lose on the way to us."""
        sent = {received.chunk.stamp_ns for received in operator.chunks}
        return len(whole.keys() - sent) <= 2

    operator.wait(heard, 30.0, "chunks of these frames")  # the flow is the stamp of the image

    file = tmp_path / "robot.pftrace"
    capsys.readouterr()
    assert main(["trace", "--seconds", "20", "--timeout", "30", "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert "open it in https://ui.perfetto.dev" in err and "not known" not in out
    assert all(step in out for _, _, step in latency.LIVE)
    tracks = Tracks(file)
    assert {"/inference", "/trajectory"} <= set(tracks.processes.values())
    assert {
        ("/inference", "lane main"),
        ("/inference", "loop vision"),
        ("/inference", "loop action"),
        ("/inference", "upload"),
        ("/inference", "topic /camera/front/image_raw"),
        ("/inference", "topic /action_chunk"),
        ("/trajectory", "topic /action_chunk"),
        ("/trajectory", "topic /arm_controller/joint_trajectory"),
        ("/trajectory", "trajectory"),
    } <= tracks.names
    way = [
        ("/inference", "topic /camera/front/image_raw", "callback"),
        ("/inference", "lane main", "observe.encode"),
        ("/inference", "lane main", "act.denoise"),
        ("/inference", "topic /action_chunk", "publish"),
        ("/trajectory", "topic /action_chunk", "callback"),
        ("/trajectory", "trajectory", "follow"),
        ("/trajectory", "topic /arm_controller/joint_trajectory", "publish"),
    ]
    flows = [tracks.of_flow(stamp_ns) for stamp_ns in whole]
    assert any([step for step in flow if step in way] == way for flow in flows if set(way) <= set(flow))

    assert recorder.end() == 0
    (folder,) = (tmp_path / "bags").iterdir()
    assert main(["trace", str(folder), "-o", str(file)]) == 0
    out = capsys.readouterr().out
    assert all(step in out for _, _, step in latency.RECORDED) and "not known" not in out
    recorded = [{step[1:] for step in Tracks(file).of_flow(stamp_ns)} for stamp_ns in whole]
    command = ("topic /arm_controller/joint_trajectory", "command recorded")
    assert any({command, ("topic /action_chunk", "recorded")} <= steps for steps in recorded)


def test_where_nobody_is_it_says_so(ros_domain: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--timeout", "0.5"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("vla trace: no node in / sent its timeline within 0.5 s: start inference")
    assert main(["trace", "--seconds", "0"]) == 2
    assert "--seconds is 0: give seconds, more than 0" in capsys.readouterr().err
