"""What the trajectory buffer sends for each chunk, what it keeps, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from motion import JOINTS, LIMITS, S, assert_within_limits, make_chunk, make_ramp

from vla_accel_ros.control.chunking.buffer import MODES, TrajectoryBuffer
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import TrajectoryPoint

MS = S // 1000
WIDE = JointLimits(*np.repeat([[-100.0], [100.0], [100.0], [1e6]], 3, axis=1))


def make_buffer(mode="blend", limits=LIMITS, **settings) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(JOINTS, limits, mode, **settings)
    buffer.reset(np.zeros(3))
    return buffer


def test_actions_that_are_past_or_less_than_a_step_ahead_are_dropped():
    buffer = make_buffer("async", WIDE, lead_s=0.02)
    sent = buffer.update(make_ramp(0.5, horizon=10), now_ns=250 * MS)
    # Committed until 290 ms: of the actions every 100 ms the one due at 400 ms is the first a step ahead.
    assert sent.times_ns[:4].tolist() == [250 * MS, 290 * MS, 400 * MS, 500 * MS]
    np.testing.assert_allclose(sent.positions[2:9, 0], np.arange(4, 11) * 0.05, rtol=1e-6)
    assert buffer.latency_s == pytest.approx(0.25)
    assert buffer.committed_until_ns == 290 * MS


def test_the_measured_delay_decides_not_an_assumed_one():
    for delay_ms, first_ms in ((0, 200), (30, 200), (120, 300), (810, 1000)):
        sent = make_buffer("async", WIDE).update(make_ramp(0.5), now_ns=delay_ms * MS)
        assert sent.times_ns[2] == first_ms * MS


def test_velocities_inside_are_central_differences():
    sent = make_buffer("async", WIDE).update(make_ramp([1.0, 2.0, -1.0]), now_ns=0)
    assert sent is not None
    target = np.tile([1.0, 2.0, -1.0], (len(sent) - 6, 1))
    np.testing.assert_allclose(sent.speeds[4:-2], target, rtol=1e-5)


def test_it_ends_at_rest_on_the_last_action_when_the_joint_can_brake_on_the_way():
    sent = make_buffer("async").update(make_ramp(0.2, horizon=8), now_ns=0)
    assert sent is not None and sent.velocities is not None
    assert sent.end_ns == 800 * MS
    np.testing.assert_allclose(sent.positions[-1], 0.16, rtol=1e-6)
    np.testing.assert_array_equal(sent.velocities[-1], 0.0)


def test_a_fast_end_brakes_after_the_last_action():
    t = np.arange(1, 31)[:, None] / 30
    chunk = make_chunk(np.hstack([0.75 * t**2, 0 * t, 0 * t]), step_dt_s=1 / 30)
    sent = make_buffer("async").update(chunk, now_ns=0)
    assert sent is not None and sent.velocities is not None
    assert sent.end_ns > S
    np.testing.assert_array_equal(sent.velocities[-1], 0.0)
    position, velocity = sent.sample(S)
    np.testing.assert_allclose(position[0], 0.75, atol=1e-3)
    assert velocity[0] > 1.3
    assert_within_limits(sent)


@pytest.mark.parametrize("mode", ["async", "blend", "rtc"])
def test_committed_motion_is_repeated_to_the_letter(mode):
    buffer = make_buffer(mode, lead_s=0.15)
    old = buffer.update(make_ramp([0.4, 0.2, -0.1]), now_ns=50 * MS)
    new = buffer.update(make_ramp([-0.4, 0.6, 0.1], stamp_ns=200 * MS, request_id=1), now_ns=330 * MS)
    committed = np.arange(330 * MS, 630 * MS, MS)
    for old_values, after in zip(old.sample(committed), new.sample(committed)):
        np.testing.assert_allclose(after, old_values, atol=1e-9)
    assert new.start_ns == 330 * MS and buffer.committed_until_ns == 630 * MS
    late_ns = 800 * MS
    assert abs(new.sample(late_ns)[0][0] - old.sample(late_ns)[0][0]) > 0.05


def test_a_lead_that_grows_keeps_more_and_one_that_shrinks_keeps_what_was_promised():
    buffer = make_buffer(lead_s=0.15)
    old = buffer.update(make_ramp(0.4), now_ns=0)
    buffer.lead_s = 0.02
    new = buffer.update(make_ramp(0.0, stamp_ns=100 * MS, request_id=1), now_ns=100 * MS)
    assert buffer.committed_until_ns == 300 * MS and buffer.kept_s == 0.04
    times = np.arange(100 * MS, 300 * MS, MS)
    np.testing.assert_allclose(new.sample(times), old.sample(times), atol=1e-9)
    buffer.lead_s = 0.2
    buffer.update(make_ramp(0.1, stamp_ns=200 * MS, request_id=2), now_ns=200 * MS)
    assert buffer.committed_until_ns == 600 * MS


@pytest.mark.parametrize("mode", MODES)
def test_a_controller_holds_no_more_motion_than_the_age_limit_and_a_stop(mode):
    buffer = make_buffer(mode, max_age_s=0.5)
    sent = buffer.update(make_ramp([0.5, 0.3, 0.1], horizon=40), now_ns=100 * MS)
    assert sent is not None and sent.velocities is not None
    assert np.abs(sent.sample(490 * MS)[1]).max() > 0.3
    braking = LIMITS.velocity / LIMITS.acceleration
    assert sent.end_ns <= 500 * MS + round(braking.max() * S) + MS
    assert not sent.velocities[-1].any()
    assert_within_limits(sent)


def test_a_fresh_chunk_that_block_does_not_take_renews_what_is_sent():
    """From the plan, so that whoever executes does not see a difference."""
    buffer, whole = make_buffer("block", max_age_s=0.5), make_buffer("block")
    chunk = make_ramp([0.3, 0.3, 0.1], horizon=20)
    plan = whole.update(chunk, now_ns=100 * MS)
    sent = [buffer.update(chunk, now_ns=100 * MS)]
    for k in range(1, 8):
        late = make_ramp([0.1, -0.2, 0.0], stamp_ns=200 * k * MS, request_id=k)
        sent.append(buffer.update(late, now_ns=(200 * k + 100) * MS))
    assert buffer.counts == {"accepted": 1, "early": 7, "renewed": 7}
    for path in sent:
        assert path is not None
        on_plan = np.arange(path.start_ns, path.start_ns + 380 * MS, 5 * MS)
        np.testing.assert_allclose(path.sample(on_plan), plan.sample(on_plan), atol=1e-8)
        assert_within_limits(path)


def test_a_renewal_that_comes_when_the_stop_has_begun_lets_it_stop():
    buffer = make_buffer("block", max_age_s=0.5)
    sent = buffer.update(make_ramp(0.3, horizon=20), now_ns=100 * MS)
    early = make_ramp(0.3, stamp_ns=400 * MS, request_id=1)
    assert buffer.update(early, now_ns=480 * MS) is None
    np.testing.assert_array_equal(buffer.reference(S)[0], sent.positions[-1])
    assert buffer.update(make_ramp(0.0, stamp_ns=700 * MS, request_id=2), now_ns=720 * MS) is not None


def test_a_path_that_took_longer_to_compute_than_a_message_may_take_is_not_sent():
    buffer = make_buffer(lead_s=0.03)
    first = buffer.update(make_ramp(0.2), now_ns=0)
    chunk = make_ramp(0.4, stamp_ns=100 * MS, request_id=1)
    assert buffer.update(chunk, 110 * MS, clock_ns=lambda: 141 * MS) is None
    np.testing.assert_array_equal(buffer.reference(S), first.sample(S))
    assert buffer.counts == {"accepted": 1, "slow": 1}
    assert buffer.update(chunk, 150 * MS, clock_ns=lambda: 151 * MS) is not None


def test_a_point_to_go_to_is_all_that_is_sent_and_what_goes_on_begins_there():
    buffer, goal = make_buffer(), np.array([0.4, -0.3, 0.1])
    sent = buffer.go_to(goal, np.array([0.4, 0.3, 0.1]), 100 * MS)
    assert len(sent) == 1 and not sent.velocities.any()
    for setpoint in (np.zeros(3), goal):
        at_rest = TrajectoryPoint(110 * MS, setpoint, np.zeros(3))
        assert_within_limits(sent, start=at_rest)
    after = buffer.update(make_ramp(0.0, stamp_ns=sent.end_ns), now_ns=sent.end_ns + 50 * MS)
    np.testing.assert_array_equal(after.sample(after.start_ns), [goal, np.zeros(3)])


def test_blend_crosses_from_old_to_new_over_its_time():
    buffer = make_buffer("blend", WIDE, blend_s=0.4, lead_s=0.0)
    buffer.update(make_chunk(np.zeros((20, 3))), now_ns=0)
    sent = buffer.update(make_chunk(np.ones((20, 3)), stamp_ns=S, request_id=1), now_ns=S)
    np.testing.assert_allclose(sent.positions[:6, 0], [0.0, 0.15625, 0.5, 0.84375, 1.0, 1.0])


def test_blend_is_done_by_the_end_of_a_short_chunk():
    sent = make_buffer("blend", WIDE, blend_s=10.0).update(make_chunk(np.ones((5, 3))), now_ns=0)
    np.testing.assert_array_equal(sent.positions[-1], 1.0)


@pytest.mark.parametrize("mode", ["async", "rtc"])
def test_new_actions_are_taken_at_once_where_nothing_is_to_be_blended(mode):
    buffer = make_buffer(mode, WIDE, lead_s=0.0)
    buffer.update(make_chunk(np.zeros((20, 3))), now_ns=0)
    sent = buffer.update(make_chunk(np.ones((20, 3)), stamp_ns=S, request_id=1), now_ns=S)
    np.testing.assert_allclose(sent.positions[:3, 0], [0.0, 1.0, 1.0])
    np.testing.assert_allclose(sent.sample(S)[0], 0.0)


def test_block_finishes_its_execution_horizon_then_takes_a_chunk_observed_after_it():
    buffer = make_buffer("block", execution_horizon=4, lead_s=0.0)
    sent = buffer.update(make_ramp(0.1, stamp_ns=0), now_ns=200 * MS)
    assert sent.end_ns == 600 * MS, "four actions, counted from when it could start"
    np.testing.assert_allclose(sent.positions[-1], 0.04, rtol=1e-6)
    assert buffer.update(make_ramp(0.1, stamp_ns=300 * MS, request_id=1), now_ns=500 * MS) is None
    assert buffer.update(make_ramp(0.1, stamp_ns=590 * MS, request_id=2), now_ns=700 * MS) is None
    assert buffer.counts["early"] == 2
    sent = buffer.update(make_ramp(0.1, stamp_ns=600 * MS, request_id=3), now_ns=800 * MS)
    assert sent.start_ns == 800 * MS and sent.end_ns == 1200 * MS


@pytest.mark.parametrize("mode", ["block", "async", "blend", "rtc"])
def test_in_every_mode_a_chunk_is_executed_as_far_as_it_says_and_then_the_joints_rest(mode):
    buffer = make_buffer(mode, lead_s=0.0, max_age_s=10.0)
    sent = buffer.update(make_ramp(0.1, horizon=10, execution_horizon=4), now_ns=0)
    late_ns = 3 * S
    np.testing.assert_allclose(sent.sample(late_ns)[0], 0.04, atol=2e-3)
    assert not sent.sample(late_ns)[1].any()
    assert buffer.update(make_ramp(0.1, execution_horizon=2, request_id=1), now_ns=300 * MS) is None
    assert buffer.counts["early" if mode == "block" else "past"] == 1
    unlimited = make_buffer(mode, lead_s=0.0, max_age_s=10.0).update(make_ramp(0.1, horizon=10), now_ns=0)
    np.testing.assert_allclose(unlimited.sample(late_ns)[0], 0.1, atol=2e-3)


def test_a_chunk_fully_past_changes_nothing():
    buffer = make_buffer()
    sent = buffer.update(make_ramp(0.2), now_ns=0)
    assert buffer.update(make_ramp(0.3, stamp_ns=100 * MS, request_id=1), now_ns=3 * S) is None
    assert buffer.counts == {"accepted": 1, "past": 1}
    np.testing.assert_array_equal(buffer.reference(4 * S)[0], sent.positions[-1])


def test_an_older_chunk_is_dropped_and_counted():
    buffer = make_buffer()
    buffer.update(make_ramp(0.2, stamp_ns=200 * MS, request_id=5), now_ns=250 * MS)
    for stale in (
        make_ramp(0.3, stamp_ns=100 * MS, request_id=6),
        make_ramp(0.3, stamp_ns=200 * MS, request_id=5),
    ):
        assert buffer.update(stale, now_ns=300 * MS) is None
    assert buffer.counts == {"accepted": 1, "out_of_order": 2}
    same_frame = make_ramp(0.2, stamp_ns=200 * MS, request_id=6)
    assert buffer.update(same_frame, now_ns=310 * MS) is not None


@pytest.mark.parametrize(
    ("chunk", "facts"),
    [
        (make_chunk(np.full((4, 3), np.nan)), "joint 'a' is nan at point 0"),
        (make_chunk([[0, 0, 0], [0, 0, np.inf]]), "joint 'c' is inf at point 1"),
        (make_chunk(np.zeros((4, 2))), r"shape \(4, 2\).* 3 for a, b, c"),
        (make_chunk(np.zeros((0, 3))), r"shape \(0, 3\).* 3 "),
        (make_chunk(np.zeros(3)), r"shape \(3,\).* 3 "),
        (make_chunk(np.zeros((4, 3)), step_dt_s=0.0), "step_dt_s 0.0.* 0.001 s"),
        (make_chunk(np.zeros((4, 3)), step_dt_s=np.nan), "step_dt_s nan.* 0.001 s"),
        (make_chunk(np.zeros((257, 3))), "257 actions.* 256"),
        (make_chunk(np.zeros((61, 3)), step_dt_s=1.0), "61 s .* 60 s"),
        (make_chunk(np.zeros((4, 3)), stamp_ns=9 * S), "8.500 s from now"),
    ],
)
def test_a_wrong_chunk_is_refused_in_one_sentence_and_the_motion_goes_on(chunk, facts):
    buffer = make_buffer()
    buffer.update(make_ramp(0.2), now_ns=0)
    path = [buffer.reference(t) for t in range(0, 2 * S, 100 * MS)]
    with pytest.raises(ValueError, match=facts):
        buffer.update(chunk, now_ns=500 * MS)
    np.testing.assert_array_equal(path, [buffer.reference(t) for t in range(0, 2 * S, 100 * MS)])
    assert buffer.counts["refused"] == 1
    assert buffer.update(make_ramp(0.2, stamp_ns=400 * MS, request_id=1), now_ns=500 * MS) is not None


def test_without_a_reference_nothing_is_sent():
    with pytest.raises(RuntimeError, match=r"reset\(position\)"):
        TrajectoryBuffer(JOINTS, LIMITS).update(make_ramp(0.1), now_ns=0)


def test_when_time_goes_backwards_it_holds_and_starts_anew():
    buffer = make_buffer(lead_s=0.0)
    buffer.update(make_ramp(0.2, stamp_ns=100 * S, request_id=9), now_ns=100 * S)
    buffer.update(make_ramp(0.2, stamp_ns=101 * S, request_id=10, start=(0.2,) * 3), now_ns=101 * S)
    position = buffer.reference(101 * S)[0]
    sent = buffer.update(make_chunk(np.zeros((10, 3)), stamp_ns=S, request_id=0), now_ns=S)
    assert sent is not None
    np.testing.assert_allclose(sent.sample(S)[0], position)
    np.testing.assert_array_equal(sent.sample(S)[1], 0.0)
    assert buffer.counts["clock_jumps"] == 1
    assert_within_limits(sent)


@pytest.mark.parametrize("lead_s", [0.0, 0.03])
@pytest.mark.parametrize("stop", [False, True])
def test_a_clock_that_is_set_back_a_little_does_not_stop_it_dead(lead_s, stop):
    """As by a time service: the motion goes on from where it is, at the speed that it has."""
    buffer = make_buffer(lead_s=lead_s)
    buffer.update(make_ramp([0.6, 0.3, 0.0]), now_ns=0)
    first = buffer.update(make_ramp([0.9, 0.3, 0.0], stamp_ns=450 * MS, request_id=1), now_ns=500 * MS)
    state = first.sample(500 * MS + round(lead_s * S))
    assert state[1][0] > 0.3
    second = make_ramp([0.9, 0.3, 0.0], stamp_ns=470 * MS, request_id=2)
    sent = buffer.stop(490 * MS) if stop else buffer.update(second, now_ns=490 * MS)
    assert sent is not None
    np.testing.assert_allclose(sent.sample(500 * MS + round(lead_s * S)), state, atol=1e-9)
    assert not buffer.counts["clock_jumps"]
    assert_within_limits(sent)


def test_stop_brakes_from_the_commanded_path_and_holds():
    buffer = make_buffer(lead_s=0.02)
    moving = buffer.update(make_ramp([0.6, 0.3, 0.0]), now_ns=0)
    stopped = buffer.stop(500 * MS)
    np.testing.assert_allclose(stopped.sample(530 * MS), moving.sample(530 * MS), atol=1e-9)
    assert_within_limits(stopped)
    assert stopped.end_ns <= 540 * MS + round(0.6 / 20 * S) + 10_000
    np.testing.assert_array_equal(buffer.reference(90 * S)[0], stopped.positions[-1])
    resumed = buffer.update(
        make_ramp(0.1, stamp_ns=590 * MS, request_id=1, start=(0.3, 0.2, 0.0)), now_ns=700 * MS
    )
    np.testing.assert_allclose(resumed.sample(700 * MS)[0], stopped.positions[-1])


@pytest.mark.parametrize("now_ns", [500 * MS - 40 * S, 400 * MS, 90 * S])
def test_stop_in_another_time_rests_ahead_of_where_the_path_was(now_ns):
    buffer = make_buffer(lead_s=0.02)
    moving = buffer.update(make_ramp([0.6, 0.3, 0.0]), now_ns=0)
    stopped = buffer.stop(now_ns, was_ns=500 * MS)
    assert len(stopped) == 1 and not stopped.velocities.any()
    for late_ms in (0, 15, 40):
        state = TrajectoryPoint(now_ns, *moving.sample((500 + late_ms) * MS))
        assert_within_limits(stopped, start=state)
    np.testing.assert_array_equal(buffer.reference(now_ns + 90 * S)[0], stopped.positions[-1])


wild_chunks = st.tuples(
    arrays(np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-3, 3, width=32)),
    st.integers(0, 400),
    st.integers(0, 300),
    st.booleans(),
)


@settings(max_examples=150)
@given(
    st.sampled_from(MODES),
    st.lists(wild_chunks, min_size=1, max_size=8),
    st.sampled_from([0.0, 0.03, 0.2]),
    st.sampled_from([0.1, 0.5, np.inf]),
)
def test_any_sequence_of_chunks_and_stops_is_one_path_within_limits(mode, sequence, lead_s, max_age_s):
    buffer, now_ns = make_buffer(mode, lead_s=lead_s, max_age_s=max_age_s), S
    position = np.zeros(3)
    for i, (actions, pause_ms, delay_ms, stop) in enumerate(sequence):
        now_ns += pause_ms * MS
        state = buffer.reference(now_ns)
        chunk = make_chunk(actions, now_ns - delay_ms * MS, 1 / 30, i)
        sent = buffer.stop(now_ns) if stop else buffer.update(chunk, now_ns)
        if sent is None:
            continue
        assert sent.start_ns == now_ns
        np.testing.assert_allclose(sent.sample(now_ns), state, atol=1e-9)
        assert_within_limits(sent)
        position = sent.positions[-1]
    np.testing.assert_array_equal(buffer.reference(now_ns + 1000 * S)[0], position)


def test_a_wrong_age_limit_and_limits_of_other_joints_are_refused():
    with pytest.raises(ValueError, match="sends nothing: give seconds above zero"):
        TrajectoryBuffer(JOINTS, LIMITS, max_age_s=0.0)
    with pytest.raises(ValueError, match="3 joints, not 2"):
        TrajectoryBuffer(("a", "b"), LIMITS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", "smooth"), ("blend_s", -1.0), ("blend_s", float("nan")), ("execution_horizon", None)],
)
def test_options_of_the_motion_that_cannot_be_are_refused_by_name_and_value(name, value):
    with pytest.raises(ValueError, match=f"^{name} is .?{value}"):
        Options(**{name: value})
