"""What crosses between our types and messages, and what does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builtin_interfaces.msg import Duration
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_accel_msgs.msg import ActionChunk, Motion
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.joint_trajectory import TrajectoryMessage
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.arrivals import Inputs
from vla_accel_ros.tools.replay.moments import agreement_from_message, step_states_from_message
from vla_accel_ros.types import Agreement, Chunk

STAMP = 12_345_678_901


def make_chunk(horizon: int = 4) -> Chunk:
    actions = np.arange(horizon * 6, dtype=np.float32).reshape(horizon, 6) / 10
    return Chunk(actions, STAMP, 1 / 30, 7, 8, np.arange(horizon, dtype=np.float32))


def make_message(contract, **changes) -> ActionChunk:
    message = convert.chunk_to_message(make_chunk(), contract, 0.02)
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def make_trajectory(joints: tuple[str, ...] = ("a", "b", "c"), points: int = 3) -> Trajectory:
    times = STAMP + np.arange(points) * 100_000_000
    positions = np.arange(points * len(joints), dtype=float).reshape(points, -1)
    return Trajectory(joints, times, positions, positions / 2)


@pytest.mark.parametrize(("given", "said", "back"), [(None, 0, None), (3, 3, 3), (4, 4, 4)])
def test_how_far_a_chunk_is_executed_survives_too(contract, given, said, back):
    message = convert.chunk_to_message(replace(make_chunk(), execution_horizon=given), contract, 0.02)
    chunk = convert.chunk_from_message(message, contract.joint_names)
    assert (message.execution_horizon, chunk.execution_horizon, chunk.executed) == (said, back, back or 4)
    message.execution_horizon = 5
    with pytest.raises(ValueError, match=r"5 actions .* 4"):
        convert.chunk_from_message(message, contract.joint_names)


def test_a_chunk_survives_the_way_through_a_message(contract):
    chunk = make_chunk()
    back = convert.chunk_from_message(make_message(contract), contract.joint_names)
    np.testing.assert_allclose(back.actions, chunk.actions)
    np.testing.assert_array_equal(back.update_magnitudes, chunk.update_magnitudes)
    assert (back.stamp_ns, back.kv_version, back.request_id) == (STAMP, 7, 8)
    assert back.step_dt_s == chunk.step_dt_s


def test_what_a_chunk_agreed_with_survives_to_the_bit_in_the_policys_units(contract):
    actions = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    agreement = Agreement("guidance", actions, 2, 10, "EXP", "identity", 5.0, 41)
    joints = (replace(contract.joints[0], unit="deg", sign=-1, offset=90.0), *contract.joints[1:])
    contract = replace(contract, joints=joints)
    message = convert.chunk_to_message(replace(make_chunk(), agreement=agreement), contract, 0.0)
    back = agreement_from_message(message)
    assert back.actions.tobytes() == actions.tobytes() and back.actions.shape == (3, 6)
    assert vars(back) | {"actions": None} == vars(agreement) | {"actions": None}
    assert agreement_from_message(make_message(contract)) is None
    message.agreed_actions = [0.0] * 17
    with pytest.raises(ValueError, match=r"17 numbers.* 6"):
        agreement_from_message(message)


def test_the_joints_of_each_step_survive_to_the_bit(contract):
    states = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    chunk = replace(make_chunk(), state=states[0], step_states=states)
    message = convert.chunk_to_message(chunk, contract, 0.0)
    np.testing.assert_array_equal(step_states_from_message(message), states)
    assert step_states_from_message(make_message(contract)) is None
    for state in ([0.0] * 5, []):
        message.state = state
        with pytest.raises(ValueError, match=f"has 24 numbers for .* not whole rows of {len(state)}"):
            step_states_from_message(message)


def test_messages_are_in_ros_units_whatever_the_policy_counts_in(contract):
    joints = (replace(contract.joints[0], unit="deg", sign=-1, offset=90.0), *contract.joints[1:])
    contract = replace(contract, joints=joints)
    actions = np.zeros((1, 6), np.float32)
    actions[0, 0] = 45.0
    message = convert.chunk_to_message(replace(make_chunk(), actions=actions), contract, 0.0)
    assert message.actions[0] == pytest.approx(math.radians(45.0))


def test_columns_follow_the_joints_that_are_asked_for(contract):
    order = contract.joint_names[::-1]
    back = convert.chunk_from_message(make_message(contract), order)
    np.testing.assert_allclose(back.actions, make_chunk().actions[:, ::-1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"horizon": 5}, "says 5 x 6 but has 24 numbers for 6 joints"),
        ({"horizon": 0}, "says 0 x 6"),
        ({"joint_names": list("abcdef")}, "has no joint 'shoulder_pan'"),
        ({"step_dt_s": 0.0}, "step_dt_s 0.0"),
        ({"step_dt_s": math.nan}, "step_dt_s nan"),
        ({"step_dt_s": 33.3}, "at least 0.001 s and at most 1 s"),
        ({"step_dt_s": 0.0009}, "at least 0.001 s and at most 1 s"),
        ({"horizon": 257}, "action_chunk 8 has 257 actions: send at most 256"),
        ({"horizon": 61, "step_dt_s": 1.0}, "asks for 61 s of motion: send at most 60 s"),
        ({"action_dim": 257}, "has 257 joints: send at most 256"),
        ({"actions": [0.0] * 7 + [math.nan] + [0.0] * 16}, "nan for joint 'shoulder_lift' in action 1"),
        ({"actions": [math.inf] + [0.0] * 23}, "inf for joint 'shoulder_pan' in action 0"),
    ],
)
def test_a_chunk_that_is_wrong_is_refused_in_a_sentence(contract, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        convert.chunk_from_message(make_message(contract, **changes), contract.joint_names)


def test_what_was_received_survives_the_way_through_a_message():
    streams = ("camera/front", "camera/wrist", "joint_states")
    inputs = Inputs(STAMP, {"camera/front": STAMP - 5}, {"joint_states": "no state of joint elbow"}, "x", 2.4)
    message = convert.inputs_to_message(replace(inputs, chunks_per_s_needed=math.inf), streams)
    assert tuple(message.streams) == streams
    assert convert.inputs_from_message(message) == replace(inputs, chunks_per_s_needed=math.inf)
    message.problems = [""]
    with pytest.raises(ValueError, match=r"3 streams .*3 stamps .*1 problems"):
        convert.inputs_from_message(message)


@pytest.mark.parametrize("lead_s", [math.nan, math.inf, -math.inf, -0.1, 1e300])
def test_a_motion_whose_lead_is_no_duration_is_refused_in_a_sentence(lead_s):
    message = Motion(state=Motion.RUNNING, mode="rtc", lead_s=lead_s)
    with pytest.raises(ValueError, match=r"lead_s .* 0 .* 60"):
        convert.execution_from_message(message)


def test_a_trajectory_is_split_by_controller_and_begins_at_its_stamp():
    trajectory = make_trajectory(points=12)
    message = TrajectoryMessage(("c", "a")).fill(trajectory, STAMP)
    assert list(message.joint_names) == ["c", "a"] and convert.stamp_ns(message.header.stamp) == STAMP
    back = convert.trajectory_from_message(message, now_ns=0)
    np.testing.assert_array_equal(back.times_ns, trajectory.times_ns)
    np.testing.assert_array_equal(back.positions, trajectory.positions[:, [2, 0]])
    np.testing.assert_array_equal(back.velocities, trajectory.speeds[:, [2, 0]])


def test_with_stamp_zero_it_begins_on_arrival():
    message = TrajectoryMessage(("a",)).fill(make_trajectory(), STAMP, stamped=False)
    assert convert.stamp_ns(message.header.stamp) == 0
    back = convert.trajectory_from_message(message, now_ns=99)
    assert back.start_ns == 99 and back.end_ns == 99 + 200_000_000


def test_a_motion_may_count_from_its_arrival_in_whatever_time():
    trajectory = make_trajectory()
    message = TrajectoryMessage(("a",)).fill(trajectory, STAMP - 100_000_000, stamped=False)
    assert convert.stamp_ns(message.header.stamp) == 0
    back = convert.trajectory_from_message(message, now_ns=99)
    np.testing.assert_array_equal(back.times_ns - 99, trajectory.times_ns - STAMP + 100_000_000)


def test_a_refilled_message_forgets_the_longer_motion_before():
    message = TrajectoryMessage(("a", "b", "c"))
    message.fill(make_trajectory(points=9), STAMP)
    assert len(message.fill(make_trajectory(points=2), STAMP).points) == 2


def test_positions_only_stay_positions_only():
    times, positions = np.array([STAMP]), np.zeros((1, 1))
    message = TrajectoryMessage(("a",)).fill(Trajectory(("a",), times, positions), STAMP)
    assert len(message.points[0].velocities) == 0
    assert convert.trajectory_from_message(message, 0).velocities is None


def test_a_trajectory_with_velocities_for_some_points_is_refused():
    points = [
        JointTrajectoryPoint(positions=[0.0], velocities=[0.0], time_from_start=Duration(sec=1)),
        JointTrajectoryPoint(positions=[0.0], time_from_start=Duration(sec=2)),
    ]
    with pytest.raises(ValueError, match="velocities"):
        convert.trajectory_from_message(JointTrajectory(joint_names=["a"], points=points), 0)
    with pytest.raises(ValueError, match="no points"):
        convert.trajectory_from_message(JointTrajectory(joint_names=["a"]), 0)
