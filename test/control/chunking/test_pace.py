"""How many chunks a second the model makes, and the contract needs."""

from __future__ import annotations

import math

import pytest

from vla_accel_ros.control.chunking.pace import ChunkPace

MS = 1_000_000
S = 1_000 * MS


def run(pace: ChunkPace, seconds: float, work_s: float, camera_s: float = 1 / 30, age_s: float = 0.01) -> int:
    """Work on the newest image whenever there is a new one; the time after the last chunk."""
    now_s, stamp_s = 0.0, -1.0
    while now_s < seconds:
        newest_s = math.floor((now_s - age_s) / camera_s + 1e-9) * camera_s
        if newest_s <= stamp_s:
            newest_s = stamp_s + camera_s
            now_s = newest_s + age_s
        stamp_s = newest_s
        pace.observed(round((stamp_s + 9.0) * S), round((now_s + 9.0) * S))
        now_s += work_s
        pace.made(round((stamp_s + 9.0) * S), round((now_s + 9.0) * S))
    return round((now_s + 9.0) * S)


def test_what_is_needed_follows_from_the_age_and_the_latency():
    pace = ChunkPace(0.8)
    produced, needed = pace.per_s(run(pace, 3.0, 0.25))
    assert produced == pytest.approx(4.0, rel=0.01)
    assert 1 / (0.8 - 0.26) <= needed <= 1 / (0.8 - 0.30)


@pytest.mark.parametrize("work_s", [0.1, 0.3, 0.37, 0.5])
def test_the_pace_is_enough_just_when_every_chunk_comes_before_the_last_ones_images_are_too_old(work_s):
    # Images are taken when they are worked on, so that T = L = work_s.
    pace = ChunkPace(0.8)
    for i in range(20):
        begin_ns = round(i * work_s * S)
        pace.observed(begin_ns, begin_ns)
        pace.made(begin_ns, begin_ns + round(work_s * S))
    produced, needed = pace.per_s(round(20 * work_s * S))
    assert (produced >= needed) == (2 * work_s <= 0.8)


def test_where_a_chunk_is_too_old_as_it_comes_no_pace_is_enough():
    pace = ChunkPace(0.8)
    assert pace.per_s(run(pace, 3.0, 0.9)) == pytest.approx((1 / 0.9, math.inf))


def test_a_few_late_chunks_do_not_multiply_what_the_contract_needs():
    pace, demands = ChunkPace(0.8), []
    for i in range(60):
        stamp_ns, latency_ns = i * S // 4, (790 if i % 7 == 3 else 200) * MS
        pace.observed(stamp_ns, stamp_ns)
        pace.made(stamp_ns, stamp_ns + latency_ns)
        demands.append(pace.per_s(stamp_ns + latency_ns)[1])
    assert max(demands[5:]) == pytest.approx(1 / 0.6)


def test_a_slow_camera_is_no_slow_model():
    pace = ChunkPace(0.8)
    produced, needed = pace.per_s(run(pace, 5.0, 0.05, camera_s=1.0))
    assert produced == pytest.approx(20.0, rel=0.01) and needed < 2.0


def test_before_the_first_chunk_the_expected_counts_and_without_it_nothing_is_known():
    pace = ChunkPace(0.8)
    assert pace.per_s(S) == (0.0, 0.0)
    pace.expect(0.4, 0.45)
    assert pace.per_s(S) == pytest.approx((2.5, 1 / 0.35))
    end_ns = run(pace, 3.0, 0.1)
    assert pace.per_s(end_ns)[0] == pytest.approx(10.0, rel=0.01)
    pace.clear()
    assert pace.per_s(end_ns)[0] == pytest.approx(2.5)


def test_a_chunk_that_does_not_come_slows_the_pace_as_it_waits():
    pace = ChunkPace(0.8)
    end_ns = run(pace, 3.0, 0.1)
    pace.observed(end_ns, end_ns)
    assert pace.per_s(end_ns + 4 * S)[0] == pytest.approx(0.25)
    pace.made(end_ns, end_ns + 4 * S)
    assert pace.per_s(end_ns + 4 * S)[0] > 0.25


def test_chunks_of_the_same_images_renew_nothing():
    pace = ChunkPace(0.8)
    for i in range(10):
        pace.observed(i * S // 2, i * S // 2)
        for k in (1, 2, 3):
            pace.made(i * S // 2, i * S // 2 + k * 100 * MS)
    assert pace.per_s(5 * S)[0] == pytest.approx(10.0)
    assert pace.per_s(5 * S)[1] == pytest.approx(1 / 0.7)


def test_no_more_is_made_than_is_asked_for():
    pace = ChunkPace(0.8, most_hz=2.0)
    assert pace.per_s(run(pace, 3.0, 0.01))[0] == 2.0
