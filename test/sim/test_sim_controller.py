"""The controller takes and refuses what joint_trajectory_controller of Jazzy and Kilted takes and refuses."""

from __future__ import annotations

import numpy as np
import pytest

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.sim.controller import ArmControllers, JointTrajectoryController, Rejected
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.sim.robot import STEP_S, SimRobot

S = 1_000_000_000
NOW = 100 * S


def controller() -> JointTrajectoryController:
    """Two joints, holding at zero at time NOW."""
    two = JointTrajectoryController(("a", "b"))
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
) -> None:
    times_ns = (stamp_ns or now_ns) + np.array([round(t * S) for t in times_s])
    speeds = None if velocities is None else np.array(velocities, dtype=float)
    to.accept(Trajectory(names, times_ns, np.array(positions, dtype=float), speeds), now_ns)


def at(of: JointTrajectoryController, seconds_from_now: float) -> tuple[list[float], list[float]]:
    """Position and velocity commanded then."""
    state = of.desired(NOW + round(seconds_from_now * S))
    assert state.velocity is not None
    return state.position.tolist(), state.velocity.tolist()


def test_stamp_zero_starts_on_arrival() -> None:
    two = controller()
    send(two, [1.0], [[1.0, -2.0]])
    assert at(two, 0.0)[0] == [0, 0]
    assert at(two, 0.5)[0] == pytest.approx([0.5, -1.0])


def test_positions_alone_are_joined_by_lines() -> None:
    two = controller()
    send(two, [1.0, 2.0], [[1.0, 0.0], [3.0, 0.0]])
    assert list(at(two, 1.5)) == [pytest.approx([2.0, 0.0]), pytest.approx([2.0, 0.0])]


def test_velocities_make_cubics() -> None:
    two = controller()
    send(two, [1.0, 2.0], [[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]])
    position, velocity = at(two, 1.0)
    assert position == pytest.approx([1.0, 0.0]) and velocity == pytest.approx([1.0, 0.0])
    # Hermite: p0=1, p1=2, m0=1, m1=0 at s=1/2 -> 1.5 + 1/8
    assert at(two, 1.5)[0] == pytest.approx([1.625, 0.0])
    assert at(two, 2.0)[1] == pytest.approx([0.0, 0.0])


def test_after_the_end_it_holds() -> None:
    two = controller()
    send(two, [1.0], [[1.0, 2.0]])
    for later in (1.0, 1.001, 50.0):
        assert at(two, later) == ([1.0, 2.0], [0.0, 0.0])


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


def test_a_past_stamp_joins_the_segment_under_way() -> None:
    two = controller()
    send(two, [1.0, 2.0, 3.0], [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], stamp_ns=NOW - round(1.5 * S))
    assert at(two, 0.0)[0] == pytest.approx([1.5, 0.0])
    assert at(two, 1.0)[0] == pytest.approx([2.5, 0.0])


def test_a_future_stamp_is_approached_from_the_present_command() -> None:
    two = controller()
    send(two, [1.0], [[2.0, 0.0]], stamp_ns=NOW + S)
    assert at(two, 1.0)[0] == pytest.approx([1.0, 0.0])


def test_joints_in_another_order_are_sorted() -> None:
    two = controller()
    send(two, [1.0], [[1.0, 2.0]], names=("b", "a"))
    assert at(two, 1.0)[0] == [2.0, 1.0]


REFUSED: dict[str, tuple[dict, str]] = {
    "past end": (
        {"stamp_ns": NOW - 2 * S},
        r"^the trajectory ended 1\.000 s ago: stamp it later, or 0 to start on arrival\.$",
    ),
    "missing joint": (
        {"positions": [[0.0]], "names": ("a",)},
        r"^joint_names are a: name each of a, b once and no other\.$",
    ),
    "extra joint": ({"positions": [[0, 0, 0]], "names": ("a", "b", "c")}, r"^joint_names are a, b, c: .*\.$"),
    "wrong joint": ({"names": ("a", "x")}, r"^joint_names are a, x: .*\.$"),
    "joint twice": ({"positions": [[0, 0, 0]], "names": ("a", "b", "b")}, r"^joint_names are a, b, b: .*\.$"),
    "moving end": (
        {"velocities": [[0.0, 0.25]]},
        r"^the last point moves b at 0\.25 rad/s: end with zero velocity\.$",
    ),
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
