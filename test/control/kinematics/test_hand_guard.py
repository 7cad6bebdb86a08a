"""Whatever leads joints somewhere keeps the speed and the box of the hand that they move, by kinematics that
are not the package's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hand_arms import load, text, ur5e, ur5e_urdf

from vla_accel_ros.control.command_stream import CommandStream, JogStream
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.guard import HandGuard, guarded
from vla_accel_ros.control.kinematics.hand import PRESETS, Box, Hand
from vla_accel_ros.control.limits.joint_limits import JointLimits, rest_to_rest_s
from vla_accel_ros.control.orders.moves import move
from vla_accel_ros.control.outputs.hand_over import HandOver
from vla_accel_ros.control.outputs.on_arrival import SPEED, approach_s, approached
from vla_accel_ros.control.trajectory import Trajectory

S = 1_000_000_000
NAMES = tuple(f"j{i + 1}" for i in range(6))
MIDDLE = np.array([0.0, -1.2, 1.8, -2.0, -1.57, 0.0])
LINEAR, ANGULAR = 0.3, 1.0


def limits_of(box: Box | None = None) -> JointLimits:
    plain = JointLimits(*(np.full(6, x) for x in (-6.3, 6.3, 3.0, 20.0)), together=True)
    hand = Hand("arm", "l0", "tool0", linear=LINEAR, angular=ANGULAR, box=box, **PRESETS["libero"])
    arm = Arm(ur5e_urdf(), NAMES, plain, "l0", "tool0")
    return replace(plain, guard=HandGuard([(hand, arm)], plain, None, NAMES))


def test_only_who_moves_all_joints_of_a_hand_guards_it(tmp_path):
    contract = load(tmp_path, text())
    assert guarded(contract, (*NAMES, "finger_joint")).guard is not None
    assert guarded(contract, NAMES[::-1]).guard is not None
    assert guarded(contract, NAMES[:3]).guard is None and guarded(contract, ("finger_joint",)).guard is None


def fastest(path: Trajectory, begin_ns: int, until_ns: int) -> float:
    """Of the tip, as a share of what is allowed."""
    times = np.arange(begin_ns, until_ns, S // 500)
    poses = np.array([ur5e(row) for row in path.sample(times)[0]])
    speed = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1).max() * 500
    turned = np.swapaxes(poses[:-1, :3, :3], 1, 2) @ poses[1:, :3, :3]
    sine = np.linalg.norm(turned - np.swapaxes(turned, 1, 2), axis=(1, 2)) / np.sqrt(8.0)
    return max(speed / LINEAR, np.arcsin(sine).max() * 500 / ANGULAR)


def still(times_ns: list[int], rows: list[np.ndarray]) -> Trajectory:
    return Trajectory(NAMES, np.array(times_ns), np.array(rows), np.zeros((len(rows), 6)))


def test_join_of_an_arm_that_is_stretched_out_on_the_way_to_a_folded_place_keeps_the_speed_of_the_hand():
    goal, way = np.array([-0.08, -1.08, 3.19, -1.41, -1.37, -0.68]), np.array([-0.15, 2.25, 2.33, 0, 0, 0])
    end_ns = round(rest_to_rest_s(np.abs(way), goal, limits_of()) * S)
    assert fastest(still([0, end_ns], [goal + way, goal]), 0, end_ns) <= 1.0


def test_stream_of_which_one_joint_is_off_its_path_keeps_the_speed_of_the_hand():
    limits, turns = limits_of(), np.array([0.2, 0, 0, 0, 0, 0])
    stream = CommandStream(NAMES, limits, 0.01)
    reach = float(np.linalg.norm(ur5e(MIDDLE)[:2, 3]))
    rows = [MIDDLE, MIDDLE + turns]
    end_ns = round(0.2 * reach / LINEAR / 0.98 * S)
    speeds = np.tile(turns / 0.2 * 0.98 * LINEAR / reach, (2, 1))
    path = Trajectory(NAMES, np.array([0, end_ns]), np.array(rows), speeds)
    stream.follow(path, 0)
    commands = [stream.tick(t_ns).position for t_ns in range(S // 100, S // 10, S // 100)]
    other = np.array([0, 0, 0.1, 0, 0, 0])
    stream.follow(Trajectory(NAMES, path.times_ns, path.positions + other, speeds), S // 10)
    commands += [stream.tick(t_ns).position for t_ns in range(S // 10, S // 2, S // 100)]
    tips = np.array([ur5e(command)[:3, 3] for command in commands])
    assert np.linalg.norm(np.diff(tips, axis=0), axis=1).max() * 100 <= LINEAR


def test_pull_of_lagging_joints_to_their_path_keeps_the_speed_of_the_hand():
    reach = float(np.linalg.norm(ur5e(MIDDLE)[:2, 3]))
    turning = np.array([0.9 * LINEAR / reach, 0, 0, 0, 0, 0])
    path = Trajectory(NAMES, np.array([0, S]), np.array([MIDDLE, MIDDLE + turning]), np.tile(turning, (2, 1)))
    speeds_mps = {}
    for guards, limits in ((True, limits_of()), (False, replace(limits_of(), guard=None))):
        jog, speeds = JogStream(NAMES, limits, 0.01, 2.0), []
        jog.measured(MIDDLE, 0)
        jog.follow(path, 0)
        for t_ns in range(S // 100, S // 2, S // 100):
            where = MIDDLE + turning * max(0.0, t_ns / S - 0.3)
            jog.measured(where, t_ns)
            velocity = jog.tick(t_ns)
            assert velocity is not None
            step = 1e-4 * velocity
            speeds.append(np.linalg.norm(ur5e(where + step)[:3, 3] - ur5e(where)[:3, 3]) / 1e-4)
        speeds_mps[guards] = max(speeds)
    assert 0.9 * LINEAR < speeds_mps[True] <= LINEAR < speeds_mps[False]


@pytest.mark.parametrize("size", [0.05, 0.5])
def test_join_from_anywhere_within_a_distance_keeps_the_speed_of_the_hand(size):
    limits, rng, shares = limits_of(), np.random.default_rng(3), []
    for _ in range(40):
        goal, away = MIDDLE + rng.uniform(-1.0, 1.0, 6), rng.uniform(0.0, size, 6)
        start = goal + away * rng.choice((-1.0, 1.0), 6)
        end_ns = round(rest_to_rest_s(away, goal, limits) * S)
        shares.append(fastest(still([0, end_ns], [start, goal]), 0, end_ns))
    assert max(shares) <= 1.0 and np.mean(shares) > 0.2


def test_move_home_keeps_the_speed_of_the_hand():
    path = move(NAMES, MIDDLE, MIDDLE + 0.8, limits_of())
    assert 0.9 < fastest(path, 0, path.end_ns) <= 1.0


def late(limits: JointLimits, begin: np.ndarray, end: np.ndarray) -> tuple[HandOver, Trajectory]:
    """What is sent, 0.5 s late, of a motion that the controller knows nothing of; it stands at the begin."""
    controller = HandOver(limits)
    controller.sent(still([0, S], [begin, begin]), still([0, S], [begin, begin]), 0)
    decided = still([0, S, 4 * S], [begin, end, end])
    path, _ = controller.next(decided, 0, S // 2, 0.01)
    assert path is not None
    return controller, path


def test_controller_that_is_led_to_a_motion_keeps_the_speed_of_the_hand():
    controller, path = late(limits_of(), MIDDLE, MIDDLE + 0.4)
    np.testing.assert_allclose(path.positions[-1], MIDDLE + 0.4, atol=1e-6)
    assert 0.5 < fastest(path, 0, path.end_ns) <= 1.0 and not controller.poll_refusal()


def test_controller_whose_way_leaves_the_box_stays_and_says_why():
    """The tip goes about the base: between two places on a plane it is beyond it."""
    begin, end = (MIDDLE + np.array([turn, 0, 0, 0, 0, 0]) for turn in (-0.6, 0.27))
    tips = np.array([ur5e(begin)[:3, 3], ur5e(end)[:3, 3]])
    least = float(tips[:, 0].min()) - 0.005
    assert ur5e(MIDDLE)[0, 3] < least - 0.005
    controller, path = late(limits_of(Box((least, -2.0, -2.0), (2.0, 2.0, 2.0))), begin, end)
    assert np.abs(path.positions - begin).max() < 1e-9
    assert "box" in controller.poll_refusal() and not controller.poll_refusal()


def test_controller_with_another_clock_approaches_no_faster_than_its_hand_may():
    limits = limits_of()
    eased = replace(limits, velocity=SPEED * limits.velocity)
    goal = MIDDLE + np.array([0.3, 0, 0, 0, 0, 0])
    path = approached(still([0, S], [goal, goal]), eased, 0.01, 0, lambda t_ns: (MIDDLE, np.zeros(6)))
    assert path.start_ns > approach_s(eased, 0.01) * S
    assert fastest(still([0, path.start_ns], [MIDDLE, path.positions[0]]), 0, path.start_ns) <= 1.0 / SPEED


@pytest.mark.parametrize("seed", range(60))
def test_short_ways_are_slowed_though_the_limits_of_joints_are_far_above_their_speeds(seed: int) -> None:
    """From rest to a chunk that begins somewhere near."""
    rng, limits, count = np.random.default_rng(seed), limits_of(), 5
    times_ns = np.arange(count + 1) * S // 20
    steps = np.cumsum(rng.normal(0, 0.01, (count, 6)), axis=0)
    positions = np.concatenate([MIDDLE[None], MIDDLE + rng.normal(0, 0.1, 6) + steps])
    speeds = np.concatenate([np.zeros((1, 6)), rng.normal(0, 0.1, (count, 6))])
    plan, _ = limits.guard.enforce(NAMES, times_ns, positions, speeds, limits)
    whole = Trajectory(
        NAMES,
        np.concatenate([times_ns[:1], plan.times_ns]),
        np.concatenate([positions[:1], plan.positions]),
        np.concatenate([speeds[:1], plan.speeds]),
    )
    assert fastest(whole, 0, int(plan.times_ns[-1])) <= 1.0
