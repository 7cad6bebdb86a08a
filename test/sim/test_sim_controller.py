"""The controller takes and refuses what joint_trajectory_controller of Jazzy and Kilted takes and refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.sim.controller import ArmControllers, JointTrajectoryController, Rejected
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.sim.robot import STEP_S, SimRobot

S = 1_000_000_000
NOW = 100 * S


def controller(**parameters: bool) -> JointTrajectoryController:
    """Two joints, holding at zero at time NOW."""
    two = JointTrajectoryController(("a", "b"), **parameters)
    two.start(np.zeros(2))
    return two


def send(
    to: JointTrajectoryController,
    times_s: list[float],
    positions: list[list[float]],
    velocities: list[list[float]] | None = None,
    *,
    names: tuple[str, ...] = ("a", "b"),
    stamp_ns: int = 0,
    now_ns: int = NOW,
    measured: TrajectoryPoint | None = None,
) -> None:
    to.receive(
        names,
        stamp_ns,
        [round(t * S) for t in times_s],
        np.array(positions, dtype=float),
        None if velocities is None else np.array(velocities, dtype=float),
        now_ns,
        measured,
    )


def at(of: JointTrajectoryController, seconds_from_now: float) -> tuple[list[float], list[float]]:
    """Position and velocity commanded then."""
    state = of.desired(NOW + round(seconds_from_now * S))
    assert state.velocity is not None
    return state.position.tolist(), state.velocity.tolist()


LINES = [1.0, 2.0, 3.0], [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
MEASURED = TrajectoryPoint(NOW, np.array([0.4, 0.4]), np.zeros(2))
MOTIONS: dict[str, tuple[dict[str, bool], tuple[Any, ...], dict[str, Any], dict[float, Any]]] = {
    "stamp zero starts on arrival": ({}, ([1.0], [[1.0, -2.0]]), {}, {0.0: [0, 0], 0.5: [0.5, -1.0]}),
    "lines through positions alone": ({}, LINES, {}, {1.5: ([1.5, 0.0], [1.0, 0.0])}),
    # Hermite: p0=1, p1=2, m0=1, m1=0 at s=1/2 -> 1.5 + 1/8
    "cubics with velocities": (
        {},
        ([1.0, 2.0], [[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]),
        {},
        {1.0: ([1.0, 0.0], [1.0, 0.0]), 1.5: [1.625, 0.0], 2.0: ([2.0, 0.0], [0.0, 0.0])},
    ),
    "held after the end": ({}, ([1.0], [[1.0, 2.0]]), {}, dict.fromkeys((1, 1.001, 50), ([1, 2], [0, 0]))),
    "from the last command": ({}, ([1.0], [[1.0, 1.0]]), {"measured": MEASURED}, {0.5: [0.5, 0.5]}),
    "from the measured state if so set": (
        {"interpolate_from_desired_state": False},
        ([1.0], [[1.0, 1.0]]),
        {"measured": MEASURED},
        {0.0: [0.4, 0.4], 0.5: [0.7, 0.7]},
    ),
    "a past stamp joins the segment under way": (
        {},
        LINES,
        {"stamp_ns": NOW - round(1.5 * S)},
        {0.0: [1.5, 0.0], 1.0: [2.5, 0.0]},
    ),
    "a future stamp is approached": ({}, ([1.0], [[2.0, 0.0]]), {"stamp_ns": NOW + S}, {1.0: [1.0, 0.0]}),
    "joints in another order": ({}, ([1.0], [[1.0, 2.0]]), {"names": ("b", "a")}, {1.0: [2.0, 1.0]}),
    "a moving end, where it is allowed, is held": (
        {"allow_nonzero_velocity_at_trajectory_end": True},
        ([1.0], [[1.0, 1.0]], [[0.5, 0.5]]),
        {},
        {2.0: ([1.0, 1.0], [0.0, 0.0])},
    ),
}


@pytest.mark.parametrize(("parameters", "trajectory", "more", "states"), MOTIONS.values(), ids=MOTIONS)
def test_a_trajectory_is_executed_as_the_real_controller_does(
    parameters: dict[str, bool], trajectory: Any, more: dict[str, Any], states: dict[float, Any]
) -> None:
    two = controller(**parameters)
    send(two, *trajectory, **more)
    for seconds, expected in states.items():
        position, velocity = at(two, seconds)
        if isinstance(expected, list):
            assert position == pytest.approx(expected), seconds
        else:
            assert (position, velocity) == tuple(map(pytest.approx, expected)), seconds


@pytest.mark.parametrize("by_s", [-50.0, -0.3, 100.0])
@pytest.mark.parametrize("at_s", [0.5, 1.5])
def test_when_the_clock_is_set_it_goes_on_where_it_was(by_s: float, at_s: float) -> None:
    """While it approaches the first point, and behind that."""
    two, still = controller(), controller()
    for one in (two, still):
        send(one, [1.0, 2.0], [[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]])
    two.slip(round(by_s * S))
    assert at(two, by_s + at_s) == at(still, at_s)
    np.testing.assert_allclose(
        two.commands(np.array([100.0 + at_s])), still.commands(np.array([100.0 + at_s]))
    )


def test_a_new_trajectory_replaces_the_old_one_at_once() -> None:
    two = controller()
    send(two, [1.0, 10.0], [[1.0, 0.0], [10.0, 0.0]])
    send(two, [1.0], [[0.0, 0.0]], now_ns=NOW + S)
    assert at(two, 1.0)[0] == pytest.approx([1.0, 0.0])  # from where the command was
    assert at(two, 1.5)[0] == pytest.approx([0.5, 0.0])  # straight to the new point: nothing is blended
    assert at(two, 5.0)[0] == [0.0, 0.0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "past end": ({"stamp_ns": NOW - 2 * S}, r"ended 1\.000 s ago.* 0 "),
    "missing joint": ({"positions": [[0.0]], "names": ("a",)}, "joint_names are a: .* a, b "),
    "extra joint": ({"positions": [[0, 0, 0]], "names": ("a", "b", "c")}, "joint_names are a, b, c: "),
    "wrong joint": ({"names": ("a", "x")}, "joint_names are a, x: "),
    "joint twice": ({"positions": [[0, 0, 0]], "names": ("a", "b", "b")}, "joint_names are a, b, b: "),
    "no points": ({"times_s": [], "positions": []}, "no points"),
    "equal times": ({"times_s": [1.0, 1.0], "positions": [[0, 0], [1, 1]]}, "point 1 .* point 0"),
    "times going back": ({"times_s": [1.0, 0.5], "positions": [[0, 0], [1, 1]]}, "point 1 .* point 0"),
    "negative time": ({"times_s": [-1.0, 0.5], "positions": [[0, 0], [1, 1]]}, "point 0 is -1000000000 ns"),
    "not a number": ({"positions": [[0.0, float("nan")]]}, "positions: joint 'b' is nan at point 0"),
    "infinite velocity": ({"velocities": [[float("inf"), 0]]}, "velocities: joint 'a' is inf at point 0"),
    "moving end": ({"velocities": [[0.0, 0.25]]}, r" b at 0\.25 rad/s"),
    "wrong width": ({"positions": [[0.0]]}, r"times of shape \(1,\) and positions "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_real_controller_refuses_is_refused_in_one_sentence(case: str) -> None:
    two = controller()
    send(two, [1.0], [[1.0, 1.0]])
    arguments, message = REFUSED[case]
    with pytest.raises(Rejected, match=message) as caught:
        send(two, **{"times_s": [1.0], "positions": [[0.0, 0.0]], **arguments})
    assert "\n" not in str(caught.value) and ". " not in str(caught.value)
    assert at(two, 0.5)[0] == pytest.approx([0.5, 0.5])  # goes on with the one it has


def test_start_from_measured_needs_the_measured_state() -> None:
    two = controller(interpolate_from_desired_state=False)
    with pytest.raises(Rejected, match=r"^interpolate_from_desired_state is false"):
        send(two, [1.0], [[1.0, 1.0]])


def arm_and_gripper(end_ns: int, velocity: float = 0.0) -> Trajectory:
    velocities = np.zeros((1, 6))
    velocities[0, 5] = velocity
    return Trajectory(JOINTS, np.array([end_ns]), np.arange(1.0, 7.0)[None], velocities)


def test_arm_and_gripper_controllers_share_a_trajectory() -> None:
    both = ArmControllers()
    both.start(np.zeros(6))
    both.accept(arm_and_gripper(S), 0)
    positions, velocities = both.commands(np.array([0.5, 1.0, 2.0]))
    assert positions.shape == velocities.shape == (3, 6)
    np.testing.assert_allclose(positions[1:], [np.arange(1.0, 7.0)] * 2)
    assert both["gripper_controller"].joints == ("gripper",)


def test_none_takes_its_share_if_one_refuses() -> None:
    both = ArmControllers()
    both.start(np.zeros(6))
    with pytest.raises(Rejected, match="gripper"):
        both.accept(arm_and_gripper(S, velocity=1.0), 0)
    assert not both.commands(np.array([1.0]))[0].any()


def test_every_joint_needs_a_controller() -> None:
    with pytest.raises(ValueError, match=r"^controllers have joints"):
        ArmControllers({"arm": JOINTS[:4], "gripper": JOINTS[5:]})


def test_the_robot_is_driven_at_every_physics_step(robot: SimRobot) -> None:
    robot.reset("reach the red block", 0)
    start = robot.target
    goal = start + np.array((0.3, 0.1, 0.0, 0.0, 0.2, 0.0))
    controllers = ArmControllers()
    epoch_ns = 1_700_000_000 * S
    controllers.start(start, epoch_ns)
    controllers.accept(Trajectory(JOINTS, np.array([epoch_ns + S]), goal[None], np.zeros((1, 6))), epoch_ns)
    robot.advance(0.5, controllers)
    assert robot.time_s == 0.5
    expected = controllers.commands(np.array([0.5 - STEP_S]))
    np.testing.assert_array_equal(robot.target, expected[0][0])
    np.testing.assert_array_equal(robot.target_velocity, expected[1][0])
    robot.advance(1.4, controllers)
    np.testing.assert_allclose(robot.state(), goal, atol=5e-3)


def test_upsampled_positions_go_through_all_points_and_rest_at_both_ends():
    two = controller(positions_upsampling=True)
    send(two, [0.0, 0.1, 0.3, 0.4], [[0, 0], [0.1, 0.2], [0.3, 0.1], [0.2, 0.0]])
    for t_s, point in ((0.1, [0.1, 0.2]), (0.3, [0.3, 0.1]), (0.4, [0.2, 0.0])):
        assert two.desired(NOW + round(t_s * S)).position == pytest.approx(point)
    times = NOW + np.arange(1, 399) * S // 1000
    speeds = np.array([two.desired(int(t)).velocity for t in times])
    assert np.abs(speeds[[0, -1]]).max() < 0.2 < np.abs(speeds).max()
    accelerations = np.diff(speeds, axis=0) * 1000
    assert np.abs(np.diff(accelerations, axis=0)).max() < 2.0, "continuous also from one segment to the next"


def test_replacement_lets_a_late_trajectory_begin_when_it_arrives_and_keeps_the_old_until_a_later_stamp():
    """Newer releases do so by default: a delivery that takes 10 ms longer is a step."""
    plain, replacing = controller(), controller(allow_trajectory_replacement=True)
    for two in (plain, replacing):
        send(two, [0.0, 1.0], [[0, 0], [1, 1]], [[1, 1], [0, 0]], stamp_ns=NOW)
        two_ns, before = NOW + 100 * S // 1000, two.desired(NOW + 100 * S // 1000).position
        again = two.active
        two.accept(
            Trajectory(("a", "b"), again.times_ns, again.positions, again.velocities), two_ns, None, NOW
        )
        step = np.abs(two.desired(two_ns).position - before).max()
        assert step > 0.09 if two is replacing else step < 1e-12
    assert (plain.began_ns, replacing.began_ns) == (NOW, NOW + S // 10)
    replacing = controller(allow_trajectory_replacement=True)
    send(replacing, [0.0, 1.0], [[0, 0], [1, 1]], [[1, 1], [0, 0]], stamp_ns=NOW)
    later_ns = NOW + S // 2
    old = replacing.desired(later_ns).position
    send(replacing, [0.1, 1.0], [[0, 0], [0, 0]], [[0, 0], [0, 0]], stamp_ns=later_ns, now_ns=NOW + S // 4)
    assert replacing.desired(later_ns).position == pytest.approx(old)
    assert replacing.desired(later_ns + S // 10).position == pytest.approx([0.0, 0.0])
