"""Joint states in any order and in parts become the whole robot at any recent time; a stream's rate, age and
losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import MS, S

from vla_accel_ros.sensing.arrivals import IMAGE_HINT, StreamMonitor
from vla_accel_ros.sensing.joints import JointHistory

JOINTS = ("a", "b", "c")


def make_history(until_ms: int = 100, step_ms: int = 10) -> JointHistory:
    """Every 10 ms: a moves 1 rad/s, b stands at 5, c moves -2 rad/s."""
    history = JointHistory(JOINTS)
    for t in range(0, until_ms + 1, step_ms):
        history.add(JOINTS, [t / 1000, 5.0, -2 * t / 1000], t * MS)
    return history


@pytest.mark.parametrize(
    ("at_ms", "positions", "gap_s"),
    [
        (54, [0.054, 5.0, -0.108], 0.004),
        (50, [0.05, 5.0, -0.1], 0.0),
        (180, [0.1, 5.0, -0.2], 0.08),
        (-30, [0.0, 5.0, 0.0], 0.03),
    ],
)
def test_it_interpolates_but_does_not_extrapolate_and_says_how_far_it_is(at_ms, positions, gap_s):
    history = make_history()
    np.testing.assert_allclose(history.at(at_ms * MS), positions)
    assert history.gap_s(at_ms * MS) == pytest.approx(gap_s)
    assert history.newest_ns == 100 * MS
    np.testing.assert_allclose(history.newest(), [0.1, 5.0, -0.2])


def test_order_and_strangers_do_not_matter():
    history = JointHistory(JOINTS)
    assert history.add(("wheel", "c", "a", "b"), [9.0, 3.0, 1.0, 2.0], 0)
    np.testing.assert_array_equal(history.newest(), [1.0, 2.0, 3.0])
    assert not history.add(("wheel",), [9.0], MS)


def test_parts_from_several_drivers_keep_their_own_times():
    history = JointHistory(JOINTS)
    for t in (0, 10, 20):
        history.add(("a", "b"), [t, 0.0], t * MS)
    assert history.missing == ("c",) and history.newest_ns is None and history.gap_s(0) == float("inf")
    for t in (5, 15):
        history.add(("c",), [t], t * MS)
    assert not history.missing
    np.testing.assert_allclose(history.at(12 * MS), [12.0, 0.0, 12.0])
    assert history.newest_ns == 15 * MS
    assert history.gap_s(19 * MS) == pytest.approx(0.004)


def test_a_missing_joint_is_named():
    history = JointHistory(JOINTS)
    history.add(("b",), [0.0], 0)
    for ask in (history.newest, lambda: history.at(0)):
        with pytest.raises(ValueError, match=r"joint a, c .* b:"):
            ask()


def test_repeated_and_late_states_are_ignored():
    history = make_history()
    assert not history.add(JOINTS, [9.0, 9.0, 9.0], 100 * MS)
    assert not history.add(JOINTS, [9.0, 9.0, 9.0], 50 * MS)
    np.testing.assert_allclose(history.newest(), [0.1, 5.0, -0.2])


def test_a_clock_set_back_starts_a_new_history():
    history = JointHistory(JOINTS)
    history.add(JOINTS, [1.0, 1.0, 1.0], 100 * S)
    assert history.add(JOINTS, [2.0, 2.0, 2.0], S)
    np.testing.assert_array_equal(history.at(100 * S), [2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("names", "positions", "sentence"),
    [
        (("a", "b"), [1.0], "joint state has 2 names and 1 positions: fix its publisher"),
        (("a", "b"), [1.0, float("nan")], "joint state of b is nan: fix its driver"),
        (("a", "a"), [1.0, 2.0], "joint state names a joint twice: a, a; fix its publisher"),
    ],
)
def test_wrong_messages_are_refused_and_change_nothing(names, positions, sentence):
    history = make_history()
    with pytest.raises(ValueError, match=sentence):
        history.add(names, positions, S)
    assert history.newest_ns == 100 * MS


def test_a_message_without_positions_changes_nothing():
    assert not make_history().add(JOINTS, [], S)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(-3, 3)), min_size=2, max_size=60),
    st.integers(-100, 4000),
)
def test_it_is_numpys_interpolation_of_what_is_kept(samples, at_ms):
    history = JointHistory(("a",), capacity=16)
    times = np.cumsum([step for step, _ in samples])
    values = [value for _, value in samples]
    for t, value in zip(times, values):
        history.add(("a",), [value], int(t) * MS)
    expected = np.interp(at_ms, times[-16:], values[-16:])
    np.testing.assert_allclose(history.at(at_ms * MS), [expected], atol=1e-12)


def test_each_joint_is_taken_by_its_own_stamp_when_a_node_repeats_the_arm_beside_its_gripper():
    """shared/cases/joint_states_overlap.py: 500 Hz, and 50 Hz with stamps 3 ms old."""
    history = JointHistory(("arm", "gripper"))
    accepted = 0
    for k in range(500):
        history.add(("arm",), [k], S + 2 * k * MS)
        if k % 10 == 0:
            accepted += history.add(("arm", "gripper"), [-1.0, k], S + (2 * k - 3) * MS)
    assert not history.missing and accepted == 50
    assert history.stamps_ns.tolist() == [S + 998 * MS, S + 977 * MS] and history.newest_ns == S + 977 * MS
    np.testing.assert_array_equal(history.newest(), [499.0, 490.0])
    np.testing.assert_allclose(history.at(S + 977 * MS), [488.5, 490.0])


def test_a_source_that_is_seconds_behind_changes_no_joint_that_another_keeps_fresh():
    history = JointHistory(("arm", "gripper"))
    for k in range(100):
        history.add(("arm",), [k], (10 * S) + 10 * k * MS)
        history.add(("arm", "gripper"), [-1.0, k], 5 * S + 10 * k * MS)
        assert history.newest()[0] == k
    assert "gripper" in history.problem(11 * S, 0.5) and "arm" not in history.problem(11 * S, 0.5)
    assert not history.add(("arm", "gripper"), [-1.0, 7.0], 5 * S + 990 * MS)  # repeated


def test_a_source_whose_clock_was_set_back_begins_only_its_own_joints_anew():
    history = JointHistory(("arm", "gripper"))
    history.add(("arm",), [1.0], 100 * S)
    history.add(("gripper",), [2.0], 100 * S)
    assert history.add(("arm",), [3.0], 50 * S)
    np.testing.assert_array_equal(history.newest(), [3.0, 2.0])
    assert history.stamps_ns.tolist() == [50 * S, 100 * S]


@pytest.mark.parametrize("first", [False, True])
def test_messages_from_the_future_do_not_shut_the_driver_out(first):
    history, now_ns = JointHistory(("arm", "gripper")), 100 * S
    for k in range(100):
        now_ns += 10 * MS
        if k or first:
            history.add(("gripper", "arm"), [9.0, 9.0], now_ns + 5 * S, now_ns)
        assert history.add(("arm",), [k], now_ns, now_ns)
    assert history.stamps_ns.tolist() == [now_ns, now_ns + 5 * S] and history.newest()[0] == 99
    assert "gripper" in history.wrong_stamp(now_ns, 0.5) and "arm" not in history.wrong_stamp(now_ns, 0.5)


@pytest.mark.parametrize("ahead_ms", [490, 505, 510, 530, 2000])
def test_a_driver_whose_clock_is_ahead_is_taken_sample_by_sample(ahead_ms):
    history = JointHistory(("arm",))
    for k in range(200):
        now_ns = 100 * S + 10 * k * MS
        assert history.add(("arm",), [k], now_ns + ahead_ms * MS, now_ns)
    np.testing.assert_allclose(history.at(now_ns + (ahead_ms - 15) * MS), [197.5])


@pytest.mark.parametrize(("stamp_ns", "fact"), [(0, "no stamp"), (16 * S, "in the future")])
def test_the_joint_without_a_stamp_or_with_one_ahead_is_named(stamp_ns, fact):
    history = JointHistory(("elbow", "gripper"))
    history.add(("gripper",), [0.0], stamp_ns)
    history.add(("elbow",), [0.0], 10 * S)
    for words in (history.problem(10 * S + 10 * MS, 0.5), history.wrong_stamp(10 * S + 10 * MS, 0.5)):
        assert "gripper" in words and "elbow" not in words and fact in words
    history.add(("gripper",), [0.0], 10 * S)
    assert history.problem(10 * S, 0.5) == ""


@given(st.floats(-9, 9), st.floats(-1, 1), st.floats(0, 1))
def test_a_continuous_joint_is_interpolated_the_short_way_round(start, step, share):
    """The reference is the angle of the point between, on the unit circle's arc
    (shared/cases/continuous_wrap.py)."""
    wrapped = np.angle(np.exp(1j * np.array([start, start + step])))
    history = JointHistory(("wheel", "lift"), continuous=["wheel"])
    for t, value in enumerate(wrapped):
        history.add(("wheel", "lift"), [value, value], t * S)
    wheel, lift = history.at(round(share * S))
    share = round(share * S) / S
    assert np.exp(1j * wheel) == pytest.approx(np.exp(1j * (start + share * step)), abs=1e-9)
    assert abs(wheel) <= np.pi + 0.51
    assert lift == pytest.approx(wrapped[0] + share * (wrapped[1] - wrapped[0]))


def run(
    monitor: StreamMonitor, rate_hz: float, seconds: float, start_ns: int = 0, delay_ns: int = 5 * MS
) -> int:
    """Messages at a rate, each arriving `delay_ns` after its stamp; the time after the last."""
    now_ns = start_ns
    for i in range(1, round(rate_hz * seconds) + 1):
        now_ns = start_ns + round(i / rate_hz * S)
        monitor.seen(now_ns - delay_ns, now_ns)
    return now_ns


def test_a_good_stream_has_its_rate_and_no_warning():
    monitor = StreamMonitor(30.0)
    now_ns = run(monitor, 30.0, 5.0)
    assert monitor.rate_hz(now_ns) == pytest.approx(30.0, abs=0.5)
    assert monitor.age_s(now_ns) == pytest.approx(0.005)
    assert monitor.drops == 0 and monitor.warning(now_ns) is None


def test_a_starving_camera_is_warned_of_with_the_mend():
    monitor = StreamMonitor(30.0, "camera front", IMAGE_HINT)
    now_ns = run(monitor, 1.5, 4.0)
    warning = monitor.warning(now_ns)
    assert warning.startswith("camera front arrives at 1.5 Hz instead of 30 Hz: ")
    assert warning is not None
    assert "Fast DDS profile config/fastdds.xml" in warning and "FASTDDS_DEFAULT_PROFILES_FILE" in warning
    assert monitor.drops == pytest.approx(19 * 5, abs=1)


@pytest.mark.parametrize(("rate_hz", "warned"), [(23.0, True), (25.0, False)])
def test_the_warning_begins_below_four_fifths(rate_hz, warned):
    monitor = StreamMonitor(30.0)
    now_ns = run(monitor, rate_hz, 6.0)
    assert (monitor.warning(now_ns) is not None) == warned


def test_silence_from_the_start_is_warned_of_after_a_window():
    monitor = StreamMonitor(30.0, "joint_states")
    assert monitor.warning(0) is None and monitor.age_s(0) is None
    assert monitor.warning(1999 * MS) is None
    silent = "joint_states has sent nothing for 2 s: look at its driver and topic"
    assert monitor.warning(2 * S) == silent


def test_a_silent_camera_is_told_its_topic_and_not_the_profile():
    monitor = StreamMonitor(30.0, "camera front", IMAGE_HINT, topic="camera/front/image_raw")
    run(monitor, 30.0, 3.0)
    warning = monitor.warning(6 * S)
    assert warning == (
        "camera front has sent nothing on camera/front/image_raw for 2 s: look at its driver and topic"
    )


def test_a_stream_that_stops_ages_and_is_warned_of():
    monitor = StreamMonitor(30.0)
    now_ns = run(monitor, 30.0, 5.0)
    assert monitor.warning(now_ns + S) is not None
    assert monitor.rate_hz(now_ns + 2 * S) == 0.0
    assert monitor.age_s(now_ns + S) == pytest.approx(1.005)


def test_drops_are_gaps_between_stamps_and_not_late_arrivals():
    monitor = StreamMonitor(10.0)
    for stamp_ms, now_ms in ((100, 110), (200, 390), (300, 391), (400, 410), (700, 710)):
        monitor.seen(stamp_ms * MS, now_ms * MS)
    assert monitor.drops == 2


def test_when_time_goes_back_it_starts_over():
    monitor = StreamMonitor(30.0)
    run(monitor, 30.0, 3.0, start_ns=100 * S)
    now_ns = run(monitor, 30.0, 3.0, start_ns=S)
    assert monitor.rate_hz(now_ns) == pytest.approx(30.0, abs=0.5)
    assert monitor.drops == 0 and monitor.warning(now_ns) is None


@given(st.lists(st.tuples(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40)), max_size=30))
def test_no_order_of_times_breaks_it(events):
    monitor = StreamMonitor(30.0)
    for stamp_ns, now_ns in events:
        monitor.seen(stamp_ns, now_ns)
        assert monitor.rate_hz(now_ns) >= 0.0
        monitor.warning(now_ns)
    assert monitor.drops >= 0


def test_a_second_publisher_with_older_stamps_is_neither_a_loss_nor_a_younger_age():
    """An arm at 100 Hz, and a node that repeats it 3 ms later."""
    monitor = StreamMonitor(100.0)
    for k in range(1, 200):
        monitor.seen(10 * k * MS, 10 * k * MS)
        monitor.seen((10 * k - 23) * MS, 10 * k * MS)
    assert monitor.drops == 0 and monitor.age_s(1990 * MS) == 0.0
