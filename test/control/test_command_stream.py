"""Positions at a rate: on the path, within limits whenever ticks come, and never a leap. Time is given."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from motion import JOINTS, LIMITS, make_ramp

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.command_stream import CommandStream
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = S // 1000
START = 1000 * S
PERIOD_S = 0.01


def make_stream() -> CommandStream:
    return CommandStream(JOINTS, LIMITS, PERIOD_S)


def make_buffer(**options) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(JOINTS, LIMITS, **options)
    buffer.reset(np.zeros(3))
    return buffer


def follow(stream: CommandStream, buffer: TrajectoryBuffer, chunk: Chunk, now_ns: int) -> Trajectory:
    """Let the stream follow what the buffer makes of a chunk, which is something."""
    path = buffer.update(chunk, now_ns)
    assert path is not None
    stream.follow(path, now_ns)
    return path


def ticks(stream: CommandStream, start_ns: int, seconds: float, period_s: float = PERIOD_S):
    times = start_ns + (np.arange(1, round(seconds / period_s) + 1) * period_s * S).astype(np.int64)
    return [stream.tick(int(t)) for t in times]


def assert_smooth(states: list[TrajectoryPoint], period_s: float = PERIOD_S) -> None:
    """Steps within velocity x dt, and changes between steps within acceleration x dt^2."""
    positions = np.array([state.position for state in states])
    speed = np.diff(positions, axis=0) / period_s
    assert (np.abs(speed) <= LIMITS.velocity * 1.001).all()
    assert (np.abs(np.diff(speed, axis=0)) / period_s <= LIMITS.acceleration * 1.01).all()
    assert (positions >= LIMITS.lower - 1e-9).all() and (positions <= LIMITS.upper + 1e-9).all()


def test_nothing_is_commanded_before_the_first_trajectory():
    stream = make_stream()
    assert ticks(stream, START, 0.1) == [None] * 10
    assert stream.at_rest(START)


def test_what_was_commanded_at_a_time_is_known_where_ticks_fail_to_come():
    stream, buffer = make_stream(), make_buffer()
    path = follow(stream, buffer, make_ramp([1.0, -0.5, 0.3], stamp_ns=START), START)
    assert stream.commanded(START) is None
    states = [*ticks(stream, START, 0.2), *ticks(stream, START + 500 * MS, 0.1)]
    for state in states:
        np.testing.assert_array_equal(stream.commanded(state.stamp_ns + 1 * MS), state.position)
    stalled = stream.commanded(START + 450 * MS)
    np.testing.assert_array_equal(stalled, states[19].position)
    assert (np.abs(stalled - path.sample(START + 450 * MS)[0]) > 0.05).any()
    stream.forget()
    assert stream.commanded(START + 200 * MS) is None


def test_it_starts_where_the_joints_are_follows_chunks_and_holds_their_end():
    stream, buffer = make_stream(), make_buffer()
    position = np.array([0.3, -0.4, 0.1])
    buffer.reset(position)
    states = []
    for k in range(10):
        now = START + k * 100 * MS
        chunk = make_ramp(
            [1.0, -0.5, 0.3], start=position, stamp_ns=now - 20 * MS, request_id=k, step_dt_s=0.03
        )
        follow(stream, buffer, chunk, now)
        if not k:
            np.testing.assert_array_equal(stream.tick(now).position, position)
        states += ticks(stream, now, 0.1)
        np.testing.assert_allclose(states[-1].position, buffer.reference(now + 100 * MS)[0], atol=1e-9)
    end = START + S
    states += ticks(stream, end, 2.0)
    assert_smooth(states)
    assert not stream.counts["joined"] and not stream.counts["late"]
    assert stream.at_rest(end + 2 * S)
    np.testing.assert_array_equal(states[-1].position, states[-50].position)
    np.testing.assert_array_equal(states[-1].velocity, 0.0)


def test_joints_that_are_outside_of_their_range_are_led_into_it_and_others_begin_where_the_path_does():
    stream = make_stream()
    position = np.array([LIMITS.upper[0] + 0.3, 0.1, LIMITS.lower[2] - 0.05])
    goal = np.clip(position, LIMITS.lower, LIMITS.upper)
    at_rest = Trajectory(JOINTS, np.array([START + S]), goal[None], np.zeros((1, 3)))
    stream.follow(at_rest, START, np.where([False, True, False], 0.4, position))  # one is told elsewhere now
    states = [stream.tick(START), *ticks(stream, START, 2.0)]
    positions = np.array([state.position for state in states])
    np.testing.assert_array_equal(positions[0], position)
    speed = np.diff(positions, axis=0) / PERIOD_S
    assert (np.abs(speed) <= LIMITS.velocity * 1.001).all()
    assert (np.abs(np.diff(speed, axis=0)) / PERIOD_S <= LIMITS.acceleration * 1.01).all()
    np.testing.assert_allclose(positions[-1], goal)
    np.testing.assert_array_equal(positions[:, 1], 0.1)
    assert stream.at_rest(START + 2 * S)


@pytest.mark.parametrize("late_ms", [30, 60, 300])
def test_a_late_tick_makes_no_leap_and_the_path_is_caught_up_with(late_ms):
    stream, buffer = make_stream(), make_buffer()
    now = START
    chunk = make_ramp([2.0, -1.0, 0.3], stamp_ns=now, horizon=60, step_dt_s=0.02, start=[-0.9, 0.5, 0.0])
    follow(stream, buffer, chunk, now)
    states = ticks(stream, now, 0.4)
    state = stream.tick(now + 400 * MS + late_ms * MS)
    after = ticks(stream, now + 400 * MS + late_ms * MS, 1.5)
    assert stream.counts["late"] == 1
    step = np.abs(state.position - states[-1].position)
    assert (step <= LIMITS.velocity * 2 * PERIOD_S * 1.001).all()
    assert_smooth(after)
    np.testing.assert_allclose(after[-1].position, buffer.reference(now + 3 * S)[0], atol=1e-9)
    assert stream.at_rest(now + 3 * S)


@given(st.lists(st.integers(1, 80), min_size=20, max_size=60), st.integers(0, 5))
def test_whatever_the_times_of_ticks_no_step_is_larger_than_full_speed(gaps_ms, turns):
    stream, buffer = make_stream(), make_buffer()
    now = START
    position = None
    for k, gap_ms in enumerate(gaps_ms):
        if k % 8 == 0:
            speed = np.array([3.0, -1.5, 2.0]) * (1 if (k // 8 + turns) % 2 else -1)
            trajectory = buffer.update(make_ramp(speed, stamp_ns=now, request_id=k, step_dt_s=0.05), now)
            if trajectory is not None:
                stream.follow(trajectory, now)
        now += gap_ms * MS
        state = stream.tick(now, now)
        assert state is not None and state.velocity is not None
        if position is not None:
            reachable = LIMITS.velocity * min(gap_ms * 1e-3, 2 * PERIOD_S)
            assert (np.abs(state.position - position) <= reachable * 1.001 + 1e-9).all()
        assert (np.abs(state.velocity) <= LIMITS.velocity * 1.001).all()
        position = state.position


@pytest.mark.parametrize("step_ms", [10, 17, 25, 40])
def test_simulated_time_that_goes_on_in_long_steps_is_kept_up_with(step_ms):
    """By ticks every 4 ms; a /clock that is lost makes no leap."""
    stream, buffer = CommandStream(JOINTS, LIMITS, 0.004), make_buffer()
    path = follow(stream, buffer, make_ramp([1.0, -0.5, 0.3], stamp_ns=START), START)
    commanded, seen = {}, 1000 // step_ms
    for wall_ms in range(4, 1200, 4):
        step = wall_ms // step_ms
        now_ns = START + (step if step <= seen else max(step, seen + 4)) * step_ms * MS
        commanded[now_ns] = stream.tick(now_ns)
    for now_ns, state in commanded.items():
        if START + 500 * MS <= now_ns <= START + seen * step_ms * MS:
            np.testing.assert_allclose(state.position, path.sample(now_ns)[0], atol=1e-9)
    states = list(commanded.values())
    for previous, after in pairwise(states):
        passed_s = min((after.stamp_ns - previous.stamp_ns) * 1e-9, 2e-3 * step_ms)
        assert (np.abs(after.position - previous.position) <= LIMITS.velocity * passed_s + 1e-9).all()


def test_a_trajectory_that_begins_elsewhere_is_led_to_within_limits():
    stream = make_stream()
    stream.follow(Trajectory(JOINTS, np.array([START]), np.zeros((1, 3))), START)
    states = ticks(stream, START, 0.05)
    elsewhere = np.array([[0.5, 1.0, -0.2]])
    stream.follow(Trajectory(JOINTS, np.array([START + 50 * MS]), elsewhere), START + 50 * MS)
    assert not stream.at_rest(START + 60 * MS)
    states += ticks(stream, START + 50 * MS, 2.5)
    assert_smooth(states)
    assert stream.counts["joined"] == 1 and stream.at_rest(START + 3 * S)
    np.testing.assert_array_equal(states[-1].position, elsewhere[0])


def test_an_end_in_motion_is_braked_behind_it():
    stream = make_stream()
    times = START + np.array([0, 200, 400]) * MS
    moving = np.array([[0.0, 0, 0], [0.1, 0.1, 0.1], [0.3, 0.3, 0.3]])
    path = Trajectory(JOINTS, times, moving, np.array([[0.0, 0, 0], [1.0, 1, 1], [1.0, 1, 1]]))
    stream.follow(path, START)
    states = ticks(stream, START, 1.0)
    assert_smooth(states[1:])
    assert states[-1].position[1] > 0.3 and not states[-1].velocity.any()


def test_a_stop_brakes_from_what_was_commanded_whatever_the_clock_says():
    stream, buffer = make_stream(), make_buffer()
    follow(stream, buffer, make_ramp([2.0, 1.0, 0.5], stamp_ns=START), START)
    states = ticks(stream, START, 0.4)
    assert np.abs(states[-1].velocity).max() > 1.0
    earlier = START - 500 * S
    stream.stop(earlier)
    states += ticks(stream, earlier, 0.5)
    assert_smooth(states)
    assert stream.at_rest(earlier + S // 2) and not states[-1].velocity.any()


def test_a_clock_set_back_a_little_repeats_the_command():
    stream, buffer = make_stream(), make_buffer()
    follow(stream, buffer, make_ramp([2.0, 1.0, 0.5], stamp_ns=START), START)
    state = ticks(stream, START, 0.3)[-1]
    assert stream.tick(START + 290 * MS) is state


@pytest.mark.parametrize("back_s", [0.25, 3.0, 3600.0])
def test_a_clock_set_back_further_brakes_in_the_new_time_and_goes_on(back_s):
    stream, buffer = make_stream(), make_buffer()
    follow(stream, buffer, make_ramp([2.0, 1.0, 0.5], stamp_ns=START), START)
    states = ticks(stream, START, 0.4)
    assert np.abs(states[-1].velocity).max() > 1.0
    earlier = START + 400 * MS - round(back_s * S)
    states += ticks(stream, earlier, 0.5)
    assert_smooth(states)
    assert stream.at_rest(earlier + S // 2) and not states[-1].velocity.any()
    stand = np.repeat(states[-1].position[None], 2, axis=0)
    times = earlier + np.array([500, 1500]) * MS
    stream.follow(Trajectory(JOINTS, times, stand, np.zeros_like(stand)), earlier + S // 2)
    assert_smooth(states + ticks(stream, earlier + S // 2, 0.5))


def test_after_forget_it_is_silent_and_starts_where_the_next_trajectory_does():
    stream = make_stream()
    stream.follow(Trajectory(JOINTS, np.array([START]), np.zeros((1, 3))), START)
    ticks(stream, START, 0.05)
    stream.forget()
    assert stream.tick(START + S) is None
    stream.follow(Trajectory(JOINTS, np.array([START + S]), np.full((1, 3), 0.4)), START + S)
    np.testing.assert_array_equal(stream.tick(START + S + 1).position, 0.4)


def test_it_takes_its_own_joints_of_a_trajectory_over_more():
    stream = CommandStream(("c", "a"), LIMITS.select(np.array([2, 0])), PERIOD_S)
    stream.follow(Trajectory(JOINTS, np.array([START]), np.array([[0.1, 0.2, 0.3]])), START)
    np.testing.assert_array_equal(stream.tick(START + MS).position, [0.3, 0.1])


def test_limits_of_other_joints_are_refused():
    with pytest.raises(ValueError, match=r"2 joints.* 1"):
        CommandStream(("a",), LIMITS.select(np.array([0, 1])), PERIOD_S)


@pytest.mark.parametrize("set_s", [-0.3, -0.015, -0.004, 0.004, 0.02, 0.4])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_clock_that_is_set_makes_no_leap_and_the_path_is_caught_up_with(set_s, stopped):
    """Positions are judged in the time that passes; `stopped`: the set was noticed half a period before."""
    stream, buffer = make_stream(), make_buffer()
    chunk = make_ramp([2.0, -1.0, 0.3], stamp_ns=START, horizon=60, step_dt_s=0.02, start=[-0.9, 0.5, 0.0])
    follow(stream, buffer, chunk, START)
    states, offset = list[TrajectoryPoint](), 0
    for tick in range(200):
        steady = START + (tick + 1) * 10 * MS
        if tick == 40:
            offset = round(set_s * S)
            if stopped:
                stream.stop(steady - 5 * MS + offset, steady - 5 * MS)
        state = stream.tick(steady + offset, steady)
        assert state is not None
        states.append(state)
    moving = states[39].velocity
    assert moving is not None and np.abs(moving).max() > 1.0
    assert_smooth(states)
    assert stream.at_rest(START + 2 * S + offset) and not states[-1].velocity.any()
