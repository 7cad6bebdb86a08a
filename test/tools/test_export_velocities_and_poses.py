"""A dataset of a mobile base, and of a hand by tf: velocities and poses that formulas give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from driven_bag import Drive, measured, sent
from geometry_msgs.msg import Twist, TwistStamped
from hand_arms import shift, text, turn_x, turn_z, ur5e, ur5e_urdf
from nav_msgs.msg import Odometry
from test_export import FPS, described, info, rows
from tf2_msgs.msg import TFMessage
from tf_messages import transform

from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.export.convert import export

DEGREE = 0.017453292519943295
BASE = {
    "topic": "base/cmd_vel",
    "rate_hz": 20.0,
    "axes": {"yaw": -DEGREE, "x": 1.0},
    "linear": 2.0,
    "angular": 2.0,
    "linear_acceleration": 4.0,
    "angular_acceleration": 4.0,
    "timeout_s": 0.5,
    "odometry": "base/odom",
}
FRAMES = 2 * FPS + 1
PERIOD = 15
"""Ticks between two commands of the base."""


def rolled(seconds: Any) -> np.ndarray:
    """What odometry says, m/s and rad/s."""
    return np.array([0.2 + 0.1 * seconds, -0.4 * seconds])


def driven(seconds: Any) -> np.ndarray:
    """What is sent on cmd_vel."""
    return np.array([0.3 + 0.2 * seconds, 0.1 - 0.5 * seconds])


def base(kind: type = Twist, **changes: object) -> dict[str, object]:
    section = BASE | {"message": kind.__name__} | ({"frame": "base_link"} if kind is TwistStamped else {})
    return {key: value for key, value in (section | changes).items() if value is not None}


def rolling(
    kind: type = Twist,
    silent: Callable[[str, float], bool] = lambda what, seconds: False,
) -> Callable[[int, float, int], Iterator[tuple[str, object]]]:
    """Odometry at 60 Hz and commands at 20 Hz. silent: whether either ("odom", "cmd_vel") is then."""

    def messages(tick: int, seconds: float, stamp_ns: int) -> Iterator[tuple[str, object]]:
        if tick % 5 == 0 and not silent("odom", seconds):
            odometry = Odometry()
            set_stamp(odometry.header.stamp, stamp_ns)
            odometry.twist.twist.linear.x, odometry.twist.twist.angular.z = rolled(seconds).tolist()
            odometry.twist.twist.linear.y = 9.0  # none of the axes
            yield "base/odom", odometry
        if tick % PERIOD == 0 and not silent("cmd_vel", seconds):
            command = kind()
            twist = command.twist if kind is TwistStamped else command
            twist.linear.x, twist.angular.z = driven(seconds).tolist()
            yield "base/cmd_vel", command

    return messages


@pytest.mark.parametrize("kind", [Twist, TwistStamped])
def test_export_of_a_base_has_what_odometry_said_and_what_was_sent(tmp_path: Path, kind: type) -> None:
    Drive(tmp_path / "bag", base=base(kind), also=rolling(kind))
    root = tmp_path / "dataset"
    assert export([tmp_path / "bag"], root) == 1
    table, features = rows(root), info(root)["features"]
    for name in ("observation.state", "action"):
        assert features[name]["shape"] == [8]
        assert features[name]["names"][6:] == ["base.angular.z", "base.linear.x"]
    seconds = np.arange(FRAMES) / FPS
    x, yaw = rolled(seconds)
    np.testing.assert_allclose(table["observation.state"][:, 6:], np.stack([-yaw / DEGREE, x], 1), atol=1e-4)
    np.testing.assert_allclose(
        table["observation.state"][:, :6], [[measured(t, j) for j in range(6)] for t in seconds], atol=1e-3
    )
    newest = np.minimum((np.arange(FRAMES) + 1) * 10 // PERIOD * PERIOD, 600) / 300
    x, yaw = driven(newest)
    np.testing.assert_allclose(table["action"][:, 6:], np.stack([-yaw / DEGREE, x], 1), atol=1e-4)
    np.testing.assert_allclose(
        table["action"][:, :6], [[sent(t + 1 / FPS, j) for j in range(6)] for t in seconds], atol=1e-3
    )


def test_export_of_a_base_without_odometry_has_its_velocities_in_actions_alone(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", base=base(odometry=None), also=rolling())
    export([tmp_path / "bag"], tmp_path / "out")
    features = info(tmp_path / "out")["features"]
    assert features["observation.state"]["shape"] == [6] and features["action"]["shape"] == [8]
    assert rows(tmp_path / "out")["action"][0, 7] == pytest.approx(driven(0.0)[0])
    with pytest.raises(ValueError, match="base without odometry"):
        export([tmp_path / "bag"], tmp_path / "measured", actions="measured")


def test_export_of_a_base_by_measured_actions_has_its_odometry_a_step_later(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", base=base(), also=rolling(), commands=False)
    export([tmp_path / "bag"], tmp_path / "out", actions="measured")
    table = rows(tmp_path / "out")
    np.testing.assert_allclose(table["action"][:-1], table["observation.state"][1:], atol=1e-3)


def test_export_episode_ends_where_the_base_is_sent_nothing_and_has_stopped_by_itself(tmp_path: Path) -> None:
    silent = rolling(silent=lambda what, t: what == "cmd_vel" and 1.0 < t < 1.9)
    Drive(tmp_path / "bag", base=base(), also=silent)
    assert export([tmp_path / "bag"], tmp_path / "out") == 2
    # by timeout_s the command of 1.0 s counts until 1.5 s, a step after frame 44; that of 1.9 s is frame 56's
    assert [episode["length"] for episode in described(tmp_path / "out")] == [45, FRAMES - 56]


def test_export_episode_ends_where_odometry_is_silent_and_a_bag_without_any_is_refused_by_its_name(
    tmp_path: Path,
) -> None:
    Drive(
        tmp_path / "bag", base=base(), also=rolling(silent=lambda what, t: what == "odom" and 0.5 < t < 1.6)
    )
    assert export([tmp_path / "bag"], tmp_path / "out") == 2
    Drive(tmp_path / "none", base=base(), also=rolling(silent=lambda what, t: what == "odom"))
    with pytest.raises(ValueError, match=r"base\.angular\.z"):
        export([tmp_path / "none"], tmp_path / "refused")


def test_export_of_joints_by_velocities_has_the_velocity_that_was_commanded(tmp_path: Path) -> None:
    joints = yaml.safe_load(demo_contract().read_text())["joints"]
    joints[1] |= {"action": "velocity", "per_unit": 0.5, "sign": -1}
    Drive(tmp_path / "bag", seconds=1.0, joints=joints)
    export([tmp_path / "bag"], tmp_path / "out")
    table = rows(tmp_path / "out")
    seconds = np.arange(FPS + 1) / FPS
    speeds = [(sent(t + 1 / FPS, 1) - sent(t, 1)) * FPS for t in seconds]
    np.testing.assert_allclose(table["action"][:, 1], np.array(speeds) / -0.5, atol=1e-4)
    np.testing.assert_allclose(
        table["observation.state"][:, 1], [-measured(t, 1) for t in seconds], atol=1e-3
    )


HIGHER_M = 0.5
"""World is so far below the arm's first link: static."""
WORLD = shift(0.0, HIGHER_M)
BY_TF = "state_by: tf, tf_base: world, tf_max_age_s: 0.1, "


def tip(seconds: Any) -> np.ndarray:
    """x, y, z of the tip in l0 and its yaw, by tf."""
    return np.array([0.3 + 0.2 * seconds, -0.1 * seconds, 0.4 + 0.0 * seconds, 0.5 * seconds])


def turned(x: float, y: float, z: float, yaw: float) -> np.ndarray:
    """float64 [4, 4]."""
    pose = turn_z(yaw)
    pose[:3, 3] = x, y, z
    return pose


def moving(
    silent: Callable[[float], bool] = lambda seconds: False, static_at: int = 0, other: bool = True
) -> Callable[[int, float, int], Iterator[tuple[str, object]]]:
    """tf at 20 Hz, between frames of the dataset. static_at: a tick. other: another frame is never silent."""

    def messages(tick: int, seconds: float, stamp_ns: int) -> Iterator[tuple[str, object]]:
        if tick == static_at:
            yield "/tf_static", TFMessage(transforms=[transform("world", "l0", WORLD, 0)])
        if tick % 15 == 0 and not silent(seconds):
            pose = turned(*tip(seconds))
            yield "/tf", TFMessage(transforms=[transform("l0", "tool0", pose, stamp_ns)])
        if tick % 15 == 0 and (other or not silent(seconds)):
            yield "/tf", TFMessage(transforms=[transform("tool0", "camera", np.eye(4), stamp_ns)])

    return messages


def drive(path: Path, hand: str, **options: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    (path.parent / "arm.urdf").write_text(ur5e_urdf())
    Drive(path, description=ur5e_urdf(), **yaml.safe_load(text(hand)), **options)


def turn(rotation: np.ndarray) -> np.ndarray:
    """Axis times angle of a rotation of less than half a turn."""
    angle = np.arccos((np.trace(rotation) - 1.0) / 2.0)
    axis = np.array(
        [rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]]
    )
    return angle * axis / (2.0 * np.sin(angle))


def arm(position: Callable[[float, int], float], seconds: float) -> np.ndarray:
    return ur5e(np.array([position(seconds, joint) for joint in range(6)]))


def test_export_of_a_hand_by_tf_has_the_pose_of_the_frames_time_and_the_pose_that_was_commanded(
    tmp_path: Path,
) -> None:
    drive(
        tmp_path / "bag", f"rotation: axis_angle, state: rpy, relative_to: absolute, {BY_TF}", also=moving()
    )
    root = tmp_path / "out"
    assert export([tmp_path / "bag"], root, fps=FPS) == 1
    table, features = rows(root), info(root)["features"]
    assert features["observation.state"]["names"][-2:] == ["arm.yaw", "finger_joint"]
    assert features["action"]["names"][-2:] == ["arm.rz", "finger_joint"]
    seconds = np.arange(FRAMES) / FPS
    x, y, z, yaw = tip(seconds)
    none = np.zeros(FRAMES)
    finger = [measured(t, 6) for t in seconds]
    expected = np.stack([x, y, z + HIGHER_M, none, none, yaw, finger], 1)
    np.testing.assert_allclose(table["observation.state"], expected, atol=1e-3)
    poses = [arm(sent, t + 1 / FPS) for t in seconds]
    np.testing.assert_allclose(table["action"][:, :3], [pose[:3, 3] for pose in poses], atol=1e-4)
    np.testing.assert_allclose(table["action"][:, 3:6], [turn(pose[:3, :3]) for pose in poses], atol=1e-4)
    np.testing.assert_allclose(table["action"][:, 6], [sent(t + 1 / FPS, 6) for t in seconds], atol=1e-4)


@pytest.mark.parametrize("before", ["measured", "commanded"])
@pytest.mark.parametrize("axes", ["base", "tool"])
def test_export_of_a_hand_that_acts_by_changes_has_the_change_of_each_step(
    tmp_path: Path, before: str, axes: str
) -> None:
    form = f"rotation: axis_angle, state: rpy, relative_to: {before}, axes: {axes}, m: 0.05, rad: 0.5, "
    drive(tmp_path / "bag", form, seconds=1.0)
    export([tmp_path / "bag"], tmp_path / "out", fps=FPS)
    action = rows(tmp_path / "out")["action"]
    for frame, row in enumerate(action):
        t = frame / FPS
        begin, end = arm(measured if before == "measured" else sent, t), arm(sent, t + 1 / FPS)
        position, rotation = end[:3, 3] - begin[:3, 3], end[:3, :3] @ begin[:3, :3].T
        if axes == "tool":
            position, rotation = begin[:3, :3].T @ position, begin[:3, :3].T @ end[:3, :3]
        np.testing.assert_allclose(row[:3], position / 0.05, atol=2e-2)
        np.testing.assert_allclose(row[3:6], turn(rotation) / 0.5, atol=2e-3)


def test_export_of_a_hand_relative_to_the_observation_has_poses(tmp_path: Path) -> None:
    drive(tmp_path / "bag", "preset: umi, ", seconds=0.5)
    export([tmp_path / "bag"], tmp_path / "out", fps=FPS)
    for frame, row in enumerate(rows(tmp_path / "out")["action"]):
        pose = arm(sent, (frame + 1) / FPS)
        np.testing.assert_allclose(row[:9], [*pose[:3, 3], *pose[0, :3], *pose[1, :3]], atol=1e-4)


def pose_by_rows(numbers: np.ndarray) -> np.ndarray:
    """float64 [4, 4] of a position and the first two rows of a rotation."""
    pose, (first, second) = np.eye(4), numbers[3:9].astype(float).reshape(2, 3)
    pose[:3, :3], pose[:3, 3] = [first, second, np.cross(first, second)], numbers[:3]
    return pose


def test_export_of_a_hand_relative_to_the_observation_by_tf_in_another_frame_is_relative_to_any_state(
    tmp_path: Path,
) -> None:
    world = turned(0.4, -0.3, 0.2, 0.7) @ turn_x(1.1)

    def also(tick: int, seconds: float, stamp_ns: int) -> Iterator[tuple[str, object]]:
        if tick == 0:
            yield "/tf_static", TFMessage(transforms=[transform("world", "l0", world, 0)])
        flange = transform("l0", "tool0", arm(measured, seconds), stamp_ns)
        yield "/tf", TFMessage(transforms=[flange])

    drive(tmp_path / "bag", f"preset: umi, {BY_TF}", seconds=0.5, also=also)
    export([tmp_path / "bag"], tmp_path / "out", fps=FPS)
    table = rows(tmp_path / "out")
    states, actions = (list(map(pose_by_rows, table[key])) for key in ("observation.state", "action"))
    np.testing.assert_allclose(states[3], world @ arm(measured, 3 / FPS), atol=1e-3)
    for seen, state in enumerate(states):
        for later in range(seen, len(actions)):
            change = np.linalg.inv(arm(measured, seen / FPS)) @ arm(sent, (later + 1) / FPS)
            np.testing.assert_allclose(np.linalg.inv(state) @ actions[later], change, atol=2e-3)


@pytest.mark.parametrize("apart", ["tf_tip: camera, ", "axes: base, "])
def test_export_of_a_hand_relative_to_an_observation_that_its_poses_cannot_say_is_refused(
    tmp_path: Path, apart: str
) -> None:
    drive(tmp_path / "bag", f"preset: umi, {BY_TF}{apart}", seconds=0.5, also=moving())
    with pytest.raises(ValueError, match=r"of (camera|tool0) in world"):
        export([tmp_path / "bag"], tmp_path / "refused")


ABSOLUTE = f"rotation: rpy, state: rpy, relative_to: absolute, {BY_TF}"


@pytest.mark.parametrize("other", [True, False])
def test_export_episode_ends_where_a_frame_is_silent_and_a_sentence_names_it(
    tmp_path: Path, other: bool
) -> None:
    drive(tmp_path / "bag", ABSOLUTE, also=moving(lambda t: 0.8 < t < 1.4, static_at=15, other=other))
    lines: list[str] = []
    assert export([tmp_path / "bag"], tmp_path / "out", fps=FPS, say=lines.append) == 2
    # 0.1 s from the poses of 0.8 and 1.4 s: frames 0 to 27, and from 39 on
    assert [episode["length"] for episode in described(tmp_path / "out")] == [28, FRAMES - 39]
    (line,) = [line for line in lines if "tool0" in line]
    assert all(words in line for words in ("11 frames", "tool0 in world", "0.1 s")) and "trees" not in line


def test_export_of_a_bag_without_a_transform_on_the_way_names_both_ends(tmp_path: Path) -> None:
    drive(tmp_path / "bag", ABSOLUTE, also=moving(static_at=-1))
    with pytest.raises(ValueError, match=r"from world to tool0.*world and l0"):
        export([tmp_path / "bag"], tmp_path / "out")


def test_export_after_a_clock_that_was_set_knows_what_is_static(tmp_path: Path) -> None:
    told = ((0.0, "reach"), (2.1, "reach"))
    drive(tmp_path / "bag", ABSOLUTE, seconds=4.0, also=moving(), set_by=(2.0, 3600.0), told=told)
    assert export([tmp_path / "bag"], tmp_path / "out", fps=FPS) == 2
    heights = rows(tmp_path / "out", 1)["observation.state"][:, 2]
    np.testing.assert_allclose(heights, 0.4 + HIGHER_M, atol=1e-4)
