"""A stream's rate, age and losses, and the sentence when it starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import MS, S

from vla_accel_ros.sensing.arrivals import IMAGE_HINT, StreamMonitor


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


def test_rates_must_be_above_zero():
    with pytest.raises(ValueError, match="must be above zero"):
        StreamMonitor(0.0)


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
