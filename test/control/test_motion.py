"""The object that the node constructs is the one that the adversary drives; what it decides as a whole."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
from adversary_of_many import FORCE_HZ, MOST, RETREAT, STOPS, YIELDS
from adversary_scene import Scene
from executed import TrajectoryController, judge_path, judge_positions, judge_velocities
from motion import JOINTS, LIMITS, S, make_chunk, make_ramp
from world import (
    Clock,
    Disk,
    Parameters,
    Process,
    StreamLine,
    TrajectoryLine,
    make_contract,
    make_joints,
)

from vla_accel_ros.control import motion as motion_module
from vla_accel_ros.control.force.guard import Force
from vla_accel_ros.control.force.sensor import ForceSensor, Quantity
from vla_accel_ros.control.motion import Motion
from vla_accel_ros.control.trajectory import Trajectory

ROOT = Path(motion_module.__file__).parents[1]


def make(now: list[int], disk: Disk | None = None, **more: object) -> Process:
    contract = make_contract("forward_command", make_joints(JOINTS, LIMITS), **more)
    clock = Clock(lambda: now[0])
    return Process(contract, Parameters(), clock, lambda controller: StreamLine(lambda command: None), disk)


def run(node: Process, now: list[int], seconds: float, chunks: bool = True) -> None:
    for tick in range(round(seconds * 100)):
        now[0] += S // 100
        node.joints(JOINTS, np.zeros(3), now[0])
        if chunks and tick % 10 == 0:
            node.chunk(make_ramp(0.0, 30, stamp_ns=now[0] - S // 100, request_id=tick))
        node.watch()


def test_motion_that_the_adversary_drives_is_the_class_that_the_node_constructs():
    """Whatever composes the parts of a motion is Motion: neither the node nor the adversary has a copy."""
    composed = {"ChunkFollower", "TrajectoryBuffer", "Safety", "Homing", "Lending", "HandOver", "TakingOver"}
    node = (ROOT / "nodes" / "trajectory" / "node.py").read_text()
    worlds = [Path(inspect.getfile(cls)) for cls in (Scene, Process)]
    calls = {
        call.func.id
        for text in (node, *(path.read_text() for path in worlds))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    assert "Motion" in calls and not calls & composed
    assert isinstance(make([S]).motion, Motion)
    users = {path for path in ROOT.rglob("*.py") if "Motion(\n" in path.read_text()}
    assert users == {ROOT / "nodes" / "trajectory" / "node.py"}


def test_motion_follows_no_chunk_before_it_is_active():
    now = [S]
    node = make(now)
    for active in (False, True):
        node.robot.active = active
        node.chunk(make_ramp(0.0, stamp_ns=now[0]))
        age_s = node.robot.follower.safety.watchdog.age_s("chunk", now[0])
        assert (age_s is not None) == active


def test_motion_reports_each_change_once_with_its_reasons():
    now = [S]
    node = make(now)
    run(node, now, 3.0)
    states = [report.state for report in node.motion.reports]
    assert states[0] == "holding" and states[-1] == "running"
    assert all(bool(report.reasons) == (report.state != "running") for report in node.motion.reports)
    node.motion.reports.clear()
    run(node, now, 1.0)
    assert not node.motion.reports
    node.order("release")
    run(node, now, 2.0)
    assert [report.state for report in node.motion.reports][-1] == "released"


@pytest.mark.parametrize("set_by_s", [-50.0, -0.1, 0.0, 50.0])
@pytest.mark.parametrize("kind", ["joint_trajectory", "forward_command", "servo_joint"])
def test_motion_comes_to_rest_within_limits_when_the_clock_is_set_while_it_is_deactivated(kind, set_by_s):
    now, offset, ticks, deactivates = [S], [0], list[tuple[int, np.ndarray]](), list[bool]()
    controller = TrajectoryController(JOINTS, np.zeros(3), True)
    controller.starts[0] = S

    def hold_up() -> None:
        if deactivates and not offset[0]:
            now[0], offset[0] = now[0] + S // 20, round(set_by_s * S)

    def execute(path: Trajectory, start_ns: int, stamped: bool) -> None:
        steady = path.later(-offset[0] if stamped else now[0] - start_ns)
        controller.accept(steady, now[0], controller.state(now[0]))

    def line(_: object) -> TrajectoryLine | StreamLine:
        publish = lambda command: ticks.append((now[0], command))  # noqa: E731
        return TrajectoryLine(execute, hold_up) if kind == "joint_trajectory" else StreamLine(publish)

    contract = make_contract(kind, make_joints(JOINTS, LIMITS))
    node = Process(contract, Parameters(), Clock(lambda: now[0] + offset[0], lambda: now[0]), line)
    for tick in range(200):
        now[0] += S // 100
        node.joints(JOINTS, controller.state(now[0]).position, now[0])
        if tick % 10 == 0:
            ahead_s = now[0] / S + np.arange(1, 31)[:, None] * 0.05
            node.chunk(make_chunk(np.tile(0.3 * np.sin(3.0 * ahead_s), 3), now[0], 0.05, request_id=tick))
        node.watch()
        node.tick()
    deactivates.append(True)
    for number, pause_s in enumerate(node.deactivate()):
        now[0] += round(pause_s * S)
        if number == 2:
            hold_up()
    if kind == "joint_trajectory":
        times, positions = controller.path(now[0] + 2 * S)
        assert not judge_path(times, positions, LIMITS, [], [])
        assert np.ptp(positions) > 0.2 and not np.diff(positions[times > now[0] + S // 2], axis=0).any()
    elif kind == "forward_command":
        assert not judge_positions([*ticks, (now[0] + S // 100, ticks[-1][1])], LIMITS, 0.02)
        assert np.ptp([command for _, command in ticks]) > 0.2
    else:
        assert not judge_velocities(ticks, LIMITS.velocity, LIMITS.acceleration, 0.02)
        assert not ticks[-1][1].any() and np.max(np.abs([command for _, command in ticks])) > 0.3


def test_motion_stops_while_its_force_sensors_cannot_be_judged():
    quantity = Quantity("force", "N", ("x", "y", "z"), YIELDS, STOPS, most=MOST)
    sensor = ForceSensor("wrench", (quantity,), rate_hz=FORCE_HZ, max_age_s=0.03, slot="wrist")
    now = [S]
    node = make(now, force=Force((sensor,), RETREAT))
    assert node.motion.force is not None
    node.motion.force.reflexes.failed = "the thread failed"
    for _ in range(2):
        node.watch()
        assert "the thread failed" in node.holds
        node.order("resume")


@pytest.mark.parametrize("kind", ["chunk", "joint_states"])
def test_motion_logs_what_it_refuses_again_and_again_once_in_ten_seconds(kind):
    now = [S]
    node = make(now)
    for _ in range(3):
        if kind == "chunk":
            node.chunk(make_ramp(np.nan, stamp_ns=now[0]))
        else:
            node.joints(JOINTS, np.full(3, np.nan), now[0])
    (line,) = [text for _, text in node.robot.log if text.startswith(kind)]
    assert line.startswith(f"{kind} refused: ")
    now[0] += 11 * S
    node.robot.log.clear()
    node.joints(JOINTS, np.full(3, np.nan), now[0])
    assert (kind == "joint_states") <= bool(node.robot.log)
