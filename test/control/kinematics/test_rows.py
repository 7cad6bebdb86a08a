"""A chunk's rows as targets of joints."""

from __future__ import annotations

import numpy as np
import pytest
from hand_arms import FINGER, load, text, ur5e

from vla_accel_ros.control.kinematics.rows import Rows
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.types import Chunk

S = 1_000_000_000
HERE = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.01])


def rows_of(folder, hand: str, finger: str = FINGER) -> Rows:
    contract = load(folder, text(hand, finger))
    assert contract.layout is not None
    return Rows(contract.layout, JointLimits.of(contract.action_joints))


def chunk(rows, horizon: int | None = None) -> Chunk:
    rows = np.array(rows, np.float32)
    return Chunk(rows, S, 0.05, 1, 1, np.zeros(len(rows), np.float32), execution_horizon=horizon)


def test_steps_from_the_measured_pose_add_up(tmp_path):
    targets = rows_of(tmp_path, "preset: libero, ").targets(
        chunk([[0.2, 0, 0, 0, 0, 0, 0.02]] * 4), S, HERE, HERE + 0.05
    )
    begin = ur5e(HERE[:6])
    for k, joints in enumerate(targets.actions):
        wanted = begin.copy()
        wanted[0, 3] += 0.05 * 0.2 * (k + 1)
        np.testing.assert_allclose(ur5e(joints[:6]), wanted, atol=1e-5)
    np.testing.assert_allclose(targets.actions[:, 6], 0.02)


def test_steps_from_the_commanded_pose_begin_there(tmp_path):
    targets = rows_of(tmp_path, "preset: bridge, ").targets(
        chunk([[0.01, 0, 0, 0, 0, 0, 0]]), S, HERE - 0.05, HERE
    )
    wanted = ur5e(HERE[:6])
    wanted[0, 3] += 0.01
    np.testing.assert_allclose(ur5e(targets.actions[0, :6]), wanted, atol=1e-5)


def test_rows_that_are_past_are_not_solved_and_those_beyond_the_horizon_are_left(tmp_path):
    rows = rows_of(tmp_path, "preset: libero, ")
    far = [[0, 0, 0, 0, 0, 0, 0.0]] * 2 + [[0.1, 0, 0, 0, 0, 0, 0.0]] * 2 + [[40.0, 0, 0, 0, 0, 0, 0.0]]
    targets = rows.targets(chunk(far, horizon=4), S + S // 10, HERE, HERE)
    assert targets.horizon == 4 and not rows.cut
    np.testing.assert_allclose(targets.actions[0], targets.actions[2])


def test_chunk_is_cut_before_what_is_out_of_reach_and_refused_without_a_rest(tmp_path):
    rows = rows_of(tmp_path, "preset: libero, ")
    far = [[0.1, 0, 0, 0, 0, 0, 0.0]] * 3 + [[40.0, 0, 0, 0, 0, 0, 0.0]] * 2
    assert rows.targets(chunk(far), S, HERE, HERE).horizon == 3
    assert "action 3 of arm" in rows.cut and "out of its reach" in rows.cut
    with pytest.raises(ValueError, match="action 3 of arm"):
        rows.targets(chunk(far), S + 3 * S // 20, HERE, HERE)


@pytest.mark.parametrize(
    ("actions", "fact"),
    [
        (np.zeros((3, 6)), "3, 6"),
        (np.zeros(7), "(7,)"),
        (np.zeros((0, 7)), "(0, 7)"),
        (np.full((2, 7), np.nan), "nan for arm.x"),
    ],
)
def test_chunk_of_other_columns_or_no_numbers_is_refused(tmp_path, actions, fact):
    with pytest.raises(ValueError) as refusal:
        rows_of(tmp_path, "preset: libero, ").targets(chunk(actions), S, HERE, HERE)
    assert fact in str(refusal.value)


def test_velocities_add_up_from_the_commanded_position_and_end_at_the_range(tmp_path):
    rows = rows_of(tmp_path, "preset: libero, ", "acceleration: 2, action: velocity, per_unit: 1")
    steps = [[0, 0, 0, 0, 0, 0, 0.1]] * 8
    targets = rows.targets(chunk(steps), S, HERE + 0.02, HERE)
    np.testing.assert_allclose(
        targets.actions[:, 6], np.minimum(0.01 + 0.005 * np.arange(1, 9), 0.04), atol=1e-6
    )
