"""Speeds of tasks: the path of a chunk stays, the time along it changes, and limits are kept."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from home_robot import Robot
from motion import JOINTS, LIMITS, S, assert_within_limits, make_chunk
from world import make_contract, make_joints

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.tempo import CHANGE_PER_S, Tempo
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.limits.joint_limits import JointLimits

STEP_S, LEAD_S = 1 / 30, 0.01
COMMIT_S = 2 * LEAD_S
EASY = JointLimits(*np.repeat([[-10.0], [10.0], [8.0], [60.0]], 3, axis=1))


def curve(way_s):
    """Where the joints should be, [N, 3], at chunk times [N]: they move at 0.4 rad/s along the first."""
    way_s = np.asarray(way_s, float)
    return np.stack([0.4 * way_s, 0.2 * np.sin(3.0 * way_s), 0.1 * np.cos(2.0 * way_s) - 0.1], axis=-1)


def observed(way_s: float, stamp_ns: int, number: int = 0, horizon: int = 45):
    """The chunk of a policy that sees the robot at a point of the curve."""
    return make_chunk(curve(way_s + STEP_S * np.arange(1, horizon + 1)), stamp_ns, STEP_S, request_id=number)


def make_buffer(speed: str, limits: JointLimits = EASY, mode="async", **settings) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(JOINTS, limits, mode, lead_s=LEAD_S, tempo=Tempo(speed, limits), **settings)
    buffer.reset(curve(0.0))
    return buffer


def driven(buffer: TrajectoryBuffer, seconds: float, period_s=0.2, latency_s=0.1, delay_s=0.0):
    """What is commanded at 500 Hz while chunks come: times and positions. Each sees the robot where it is,
    delay_s behind its command, and expects the command to be as far ahead as at the policy's own speed."""
    latency_ns, sent = round(latency_s * S), []
    for number in range(round(seconds / period_s)):
        stamp_ns = round(number * period_s * S)
        moves = buffer.reference(stamp_ns)[1].any()
        way_s = buffer.reference(stamp_ns - round(delay_s * S))[0][0] / 0.4 + delay_s * moves
        path = buffer.update(observed(way_s, stamp_ns, number), stamp_ns + latency_ns)
        assert path is not None
        sent.append((stamp_ns + latency_ns, path))
    times_ns = np.arange(sent[0][0], round(seconds * S), S // 500)
    index = np.searchsorted([now_ns for now_ns, _ in sent], times_ns, side="right") - 1
    return times_ns * 1e-9, np.array([sent[i][1].sample(int(t))[0] for i, t in zip(index, times_ns)])


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0])
def test_the_path_is_driven_at_a_share_of_the_policys_speed(speed):
    _, positions = driven(make_buffer(f"{speed}; *=1" if speed == 1.0 else f"{speed}"), 3.0)
    pace = np.diff(positions[:, 0])[300:] * 500
    assert pace.mean() == pytest.approx(0.4 * speed, rel=0.03)
    np.testing.assert_allclose(positions, curve(positions[:, 0] / 0.4), atol=0.005)


def test_fast_drives_the_same_path_several_times_as_fast_and_never_back():
    _, positions = driven(make_buffer("fast"), 1.0)
    assert positions[-1, 0] > 2.0 * 0.4 * 1.0
    assert (np.diff(positions[:, 0]) > -1e-6).all()
    np.testing.assert_allclose(positions, curve(positions[:, 0] / 0.4), atol=0.01)


@pytest.mark.parametrize(("distance", "velocity"), [(0.3, 3.0), (0.8, 1.5)])
def test_fast_takes_little_longer_than_the_limits_need_at_least(distance, velocity):
    """From rest to rest: v / a + d / v, or 2 sqrt(d / a) where v is not reached."""
    acceleration = 10.0
    limits = JointLimits(*np.repeat([[-2.0], [2.0], [velocity], [acceleration]], 3, axis=1))
    buffer = make_buffer("fast", limits)
    buffer.reset(np.zeros(3))
    s = np.arange(1, 31) / 30
    chunk = make_chunk(distance * (s * s * (3.0 - 2.0 * s))[:, None] * [1.0, 0.5, 0.0], 0, STEP_S)
    sent = buffer.update(chunk, 0)
    assert sent is not None
    assert_within_limits(sent, limits)
    least_s = 2.0 * np.sqrt(distance / acceleration)
    if velocity**2 / acceleration < distance:
        least_s = velocity / acceleration + distance / velocity
    near = np.abs(sent.sample(np.arange(0, 2 * S, S // 500))[0][:, 0] - distance) < 0.02 * distance
    took_s = np.flatnonzero(~near).max() / 500 - COMMIT_S
    assert 0.8 * least_s < took_s < 1.3 * least_s


def test_another_speed_is_reached_gradually():
    buffer = make_buffer("1; slow*=0.25")
    driven(buffer, 1.0)
    assert buffer.tempo is not None
    buffer.tempo.task = "Slowly put it down"
    path = buffer.update(observed(buffer.reference(S)[0][0] / 0.4, S, 99), S + S // 50)
    assert path is not None
    times_ns = np.arange(S + S // 50, path.end_ns - S // 5, S // 500)
    rate = path.sample(times_ns)[1][:, 0] / 0.4
    assert rate[0] == pytest.approx(1.0, abs=0.05) and rate[-1] == pytest.approx(0.25, abs=0.02)
    change_s = np.ptp(times_ns[(rate > 0.3) & (rate < 0.95)]) * 1e-9
    assert change_s == pytest.approx(0.65 / CHANGE_PER_S, rel=0.15)


def test_a_robot_that_was_stopped_begins_a_new_chunk_at_its_beginning():
    buffer = make_buffer("0.5")
    buffer.update(observed(0.0, 0), 0)
    buffer.stop(S // 5)
    stood = buffer.reference(S // 2)[0]
    path = buffer.update(observed(stood[0] / 0.4, S // 2, 1), 7 * S // 10)
    assert path is not None
    start_ns = 7 * S // 10 + round(COMMIT_S * S)
    ways_s = path.sample(np.arange(start_ns, S, S // 500))[0][:, 0] / 0.4 - stood[0] / 0.4
    assert ways_s[0] == pytest.approx(0.0, abs=1e-6)
    # 0.28 s at half the speed, the crossing included.
    assert ways_s[-1] == pytest.approx(0.14, abs=0.02)


@pytest.mark.parametrize("speed", ["fast", "0.5"])
def test_wild_chunks_keep_the_limits(speed):
    rng = np.random.default_rng(3)
    for mode in ("async", "blend", "block"):
        buffer = make_buffer(speed, LIMITS, mode, max_age_s=0.5)
        for number in range(60):
            now_ns = (number + 1) * S // 20
            actions = rng.normal(0.0, 1.5, (int(rng.integers(1, 50)), 3))
            chunk = make_chunk(actions, now_ns - S // 10, float(rng.choice([0.01, STEP_S, 0.1])), number)
            sent = buffer.update(chunk, now_ns)
            if sent is not None:
                assert_within_limits(sent)


def test_the_delay_from_command_to_motion_is_measured_and_counts_where_a_chunk_is_joined():
    tempo, delay_s, t_s = Tempo("fast", EASY), 0.04, np.arange(0.0, 4.0, 0.01)
    for t in t_s:
        tempo.measure(
            np.sin(3 * (t - delay_s) + np.arange(3)),
            np.sin(3 * t + np.arange(3)),
            3 * np.cos(3 * t + np.arange(3)),
        )
    assert tempo.delay_s == pytest.approx(delay_s, rel=0.1)
    ways_s = []
    for known_s in (0.0, delay_s):
        buffer = make_buffer("fast")
        assert buffer.tempo is not None
        buffer.tempo.delay_s = known_s
        _, positions = driven(buffer, 0.9, delay_s=delay_s)
        ways_s.append(positions[-1, 0] / 0.4)
    assert ways_s[1] > 1.05 * ways_s[0]


@pytest.mark.parametrize("speed", ["0", "1.5", "-1", "nan", "quick", "1; 0.5", "1; =0.5", "1; put*=2"])
def test_a_speed_that_is_none_is_refused_with_what_was_found(speed):
    with pytest.raises(ValueError, match="speed") as refusal:
        Tempo(speed, LIMITS)
    assert speed.split(";")[-1].split("=")[-1].strip() in str(refusal.value)


def test_fast_without_toppra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "toppra.algorithm", None)
    with pytest.raises(ValueError, match=r"vla_accel_ros\[fast\]"):
        Tempo("1; a=fast", LIMITS)


def test_a_goal_and_an_instruction_set_the_speed_of_their_task():
    peaks = []
    for task in ("go up", "slowly up"):
        robot = Robot("joint_trajectory", tasks="1; slow*=0.2")
        robot.run(0.3)
        robot.node.motion.runs.begin(task)
        robot.run(1.0, goal=1.8)
        assert 20 <= robot.node.motion.runs.queued() <= 32  # of 32 actions
        peaks.append(np.abs(np.diff(robot.path, axis=0)).max())
        told = [words for _, words in robot.robot.log if task in words]
        assert any(words.startswith("speed") for words in told)
    assert peaks[1] < 0.3 * peaks[0]
    robot.node.motion.runs.hear("go down")
    assert "speed 1 for 'go down'" in [words for _, words in robot.robot.log]


def test_mode_rtc_and_twists_have_no_other_speed():
    joints = make_joints(JOINTS, LIMITS)
    with pytest.raises(ValueError, match="rtc"):
        Options("rtc", speed="0.5").make_tempo(make_contract("joint_trajectory", joints))
    with pytest.raises(ValueError, match="velocities"):
        Options(speed="0.5").make_tempo(make_contract("servo_twist", joints))
    assert Options("rtc").make_tempo(make_contract("joint_trajectory", joints)) is None
