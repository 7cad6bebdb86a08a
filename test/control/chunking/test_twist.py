"""The hand's velocity from chunks of twists: whose turn it is, limits, ramps, and the stop. Time is given."""

from __future__ import annotations

import numpy as np
import pytest
from motion import make_chunk

from vla_accel_ros.control.chunking.twist import MOST_REMEMBERED, RAMP_S, TwistBuffer, WayBack

S = 1_000_000_000
MS = S // 1000
START = 1000 * S
PERIOD = 20 * MS
LINEAR, ANGULAR = 0.5, 1.0


def make_buffer(per: str = "second", **options) -> TwistBuffer:
    return TwistBuffer(per, LINEAR, ANGULAR, PERIOD / S, **options)


def make_twists(rows, **chunk):
    return make_chunk(np.asarray(rows, float), **{"stamp_ns": START, **chunk})


def run(buffer: TwistBuffer, seconds: float, start_ns: int = START) -> np.ndarray:
    """Velocities [N, 6] of ticks after start_ns."""
    return np.array([buffer.tick(start_ns + (k + 1) * PERIOD) for k in range(round(seconds * S / PERIOD))])


def assert_ramps(velocities: np.ndarray) -> None:
    """Neither half of the twist changes faster than from full speed to a stand in RAMP_S, nor is too fast."""
    halves = velocities.reshape(-1, 2, 3)
    change = np.linalg.norm(np.diff(halves, axis=0), axis=2) * S / PERIOD
    limits = np.array([LINEAR, ANGULAR])
    assert (change <= limits / RAMP_S * 1.001).all()
    assert (np.linalg.norm(halves, axis=2) <= limits * 1.001).all()


def test_nothing_is_commanded_before_the_first_chunk():
    buffer = make_buffer()
    assert buffer.tick(START) is None and buffer.at_rest(START)


def test_each_action_is_the_velocity_of_its_own_time_and_the_hand_stops_behind_the_last():
    buffer = make_buffer()
    assert buffer.update(make_twists([[0.1, 0, 0, 0, 0, 0]] * 5 + [[0, -0.1, 0, 0, 0, 0.3]] * 5), START)
    velocities = run(buffer, 2.0)
    np.testing.assert_allclose(velocities[20], [0.1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(velocities[45], [0, -0.1, 0, 0, 0, 0.3])
    assert not velocities[-40:].any() and buffer.at_rest(START + 2 * S)
    assert_ramps(velocities)


@pytest.mark.parametrize("mode", ["block", "async", "blend", "rtc"])
def test_a_chunk_moves_the_hand_as_long_as_it_says_in_every_mode(mode):
    ends = []
    for execution_horizon in (3, None):
        buffer = make_buffer(mode=mode)
        buffer.update(make_twists([[0.1, 0, 0, 0, 0, 0]] * 10, execution_horizon=execution_horizon), START)
        ends.append(np.flatnonzero(run(buffer, 3.0).any(axis=1))[-1] * PERIOD / S)
    assert ends[1] - ends[0] == pytest.approx(0.7, abs=2 * PERIOD / S)


def test_displacements_of_a_step_are_divided_by_its_time():
    buffer = make_buffer("step")
    buffer.update(make_twists([[0.01, 0, 0, 0, 0, 0.02]] * 10, step_dt_s=0.1), START)
    velocities = run(buffer, 2.0)
    np.testing.assert_allclose(velocities[30], [0.1, 0, 0, 0, 0, 0.2])
    np.testing.assert_allclose(velocities.sum(axis=0) * PERIOD / S, [0.1, 0, 0, 0, 0, 0.2], atol=4e-3)


def test_a_chunk_that_is_too_fast_keeps_its_direction():
    buffer = make_buffer()
    buffer.update(make_twists([[3.0, 4.0, 0, 0, 0, -9.0]] * 10), START)
    velocities = run(buffer, 0.8)
    np.testing.assert_allclose(velocities[-1], [0.3, 0.4, 0, 0, 0, -1.0])
    assert buffer.counts["limited"] == 10
    assert_ramps(velocities)


@pytest.mark.parametrize("per", ["step", "second"])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0, 0, 0, 0, 100.0, 0], "action 2 turns the hand 100 times as fast as the contract's 1 rad/s"),
        ([0, 100.0, 0, 0, 0, 0], "action 2 moves the hand 200 times as fast as the contract's 0.5 m/s"),
        ([0, 1e30, 0, 0, 0, 0], "action 2 moves the hand 2e"),
    ],
)
def test_a_chunk_of_another_unit_is_refused(per, row, words):
    buffer, rate = make_buffer(per), 0.1 if per == "step" else 1.0
    rows = [[0.1 * rate, 0, 0, 0, 0, 0]] * 2 + [[rate * number for number in row]]
    with pytest.raises(ValueError, match=words):
        buffer.update(make_twists(rows, step_dt_s=0.1), START)
    assert buffer.tick(START) is None


def test_what_is_past_of_a_late_chunk_is_not_done_again():
    buffer = make_buffer()
    buffer.update(make_twists([[0.4, 0, 0, 0, 0, 0]] * 3 + [[0, 0.2, 0, 0, 0, 0]] * 7), START + 300 * MS)
    velocities = run(buffer, 0.5, START + 300 * MS)
    assert not velocities[:, 0].any() and velocities[-1][1] == pytest.approx(0.2)


def test_chunks_that_are_past_overtaken_or_doubled_change_nothing():
    buffer = make_buffer()
    rows = [[0.1, 0, 0, 0, 0, 0]] * 5
    assert not buffer.update(make_twists(rows, request_id=1), START + S)
    assert buffer.update(make_twists(rows, stamp_ns=START + S, request_id=2), START + S)
    assert not buffer.update(make_twists(rows, stamp_ns=START + S, request_id=2), START + S)
    assert not buffer.update(make_twists(rows, stamp_ns=START + S - 1, request_id=3), START + S)
    assert buffer.counts == {"past": 1, "accepted": 1, "out_of_order": 2, "limited": 0}


def test_block_executes_a_chunk_from_when_it_comes_and_the_next_after_its_end():
    buffer = make_buffer(mode="block", execution_horizon=2)
    late_ns = START + 900 * MS
    assert buffer.update(make_twists([[0.2, 0, 0, 0, 0, 0]] * 5, request_id=1), late_ns)
    assert not buffer.update(
        make_twists([[0.4, 0, 0, 0, 0, 0]] * 5, stamp_ns=late_ns, request_id=2), late_ns + 100 * MS
    )
    velocities = run(buffer, 0.6, late_ns)
    assert velocities[:, 0].max() == pytest.approx(0.2) and not velocities[-10:].any()
    after = late_ns + 600 * MS
    assert buffer.update(make_twists([[0.4, 0, 0, 0, 0, 0]] * 5, stamp_ns=after, request_id=3), after)


def test_a_stop_takes_the_ramp_at_most_and_a_new_chunk_moves_it_again():
    buffer = make_buffer()
    buffer.update(make_twists([[0.5, 0, 0, 0, 0, 0]] * 20, request_id=1), START)
    moving = run(buffer, 0.5)
    buffer.stop()
    stopping = run(buffer, RAMP_S + 0.02, START + S // 2)
    assert not stopping[-1].any() and buffer.at_rest(START + S)
    assert_ramps(np.concatenate([moving, stopping]))
    assert buffer.update(make_twists([[0.1] + [0] * 5] * 9, stamp_ns=START + S, request_id=2), START + S)


def test_simulated_time_that_goes_on_in_long_steps_makes_the_ramp_no_longer():
    buffer = TwistBuffer("second", LINEAR, ANGULAR, 0.004)
    run(buffer, 0.5, START - S)
    buffer.update(make_twists([[LINEAR, 0, 0, 0, 0, 0]] * 30), START)
    assert run(buffer, RAMP_S + PERIOD / S)[-1][0] == pytest.approx(LINEAR)


def test_after_a_pause_it_starts_from_a_stand():
    buffer = make_buffer()
    buffer.update(make_twists([[0.5, 0, 0, 0, 0, 0]] * 30), START)
    run(buffer, 0.5)
    velocity = buffer.tick(START + S)
    assert velocity is not None and np.linalg.norm(velocity) <= LINEAR / RAMP_S * 2 * PERIOD / S * 1.001


def test_a_number_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"'angular\.z' is nan at point 1"):
        make_buffer().update(make_twists([[0] * 6, [0] * 5 + [np.nan]]), START)


class TestAfterAContact:
    """The hand brakes, goes back the way it came, and takes no chunk until it may go on."""

    BACK = WayBack(m=0.05, rad=0.2, s=1.0, speed=1.0)

    def moving(self, way_back: WayBack | None = BACK) -> tuple[TwistBuffer, np.ndarray]:
        """A buffer whose hand is in the middle of a curve, and the velocities so far."""
        buffer = make_buffer(way_back=way_back)
        curve = [[0.1, 0, 0, 0, 0, 0]] * 5 + [[0.06, 0.08, 0, 0, 0, 0.2]] * 20
        assert buffer.update(make_twists(curve), START)
        return buffer, run(buffer, 0.8)

    @pytest.mark.parametrize("speed", [1.0, 0.5])
    def test_it_comes_to_rest_within_bounds_on_the_way_that_it_came(self, speed: float) -> None:
        buffer, came = self.moving(self.BACK._replace(speed=speed))
        now = START + 800 * MS
        rests_s = buffer.react(goes_back=True)
        back = run(buffer, 2.0, now)
        assert_ramps(np.concatenate([came, back]))
        assert buffer.at_rest(now + 2 * S) and not back[-1].any()
        brakes = int(np.flatnonzero(~back.any(axis=1))[0])
        assert brakes <= np.ceil(rests_s * S / PERIOD)
        way = np.concatenate([came, back[:brakes]])[::-1].cumsum(axis=0) * PERIOD / S  # to each earlier place
        returned = -back[brakes:].cumsum(axis=0) * PERIOD / S
        gone = np.linalg.norm(returned[:, :3], axis=1)
        assert 0.04 < gone[-1] <= 0.05 and (np.diff(gone) > -1e-12).all()
        for place in returned[::5]:  # near the path by which it came
            assert np.linalg.norm(way - place, axis=1).min() < 0.003

    def test_no_further_than_its_angle_nor_longer_than_its_time(self) -> None:
        for bound in ({"rad": 0.02}, {"s": 0.1}):
            buffer, _ = self.moving(self.BACK._replace(**bound))
            buffer.react(goes_back=True)
            back = run(buffer, 2.0, START + 800 * MS)
            back = back[int(np.flatnonzero(~back.any(axis=1))[0]) :] * PERIOD / S
            assert 0 < np.linalg.norm(back[:, 3:].sum(axis=0)) <= bound.get("rad", 0.2) + 1e-3
            assert np.count_nonzero(back.any(axis=1)) * PERIOD / S <= bound.get("s", 1.0) + RAMP_S

    def test_a_way_back_without_end_at_hardly_any_speed_has_a_bound(self) -> None:
        buffer, _ = self.moving(WayBack(m=1e9, rad=1e9, s=1e12, speed=1e-9))
        now = START + 800 * MS
        buffer.react(goes_back=True)
        run(buffer, 1.0, now)
        assert not buffer.at_rest(now + S)
        over = now + S + MOST_REMEMBERED * PERIOD
        run(buffer, 0.1, over)
        assert buffer.at_rest(over + S)

    def test_without_a_way_back_it_stops(self) -> None:
        for buffer, goes_back in ((self.moving(None)[0], True), (self.moving()[0], False)):
            buffer.react(goes_back)
            stop = run(buffer, 1.0, START + 800 * MS)
            assert (stop[:, 0] >= 0).all() and not stop[-1].any()

    def test_chunks_move_it_again_when_it_may_go_on_and_not_before(self) -> None:
        buffer, _ = self.moving()
        buffer.react(goes_back=True)
        now = START + 800 * MS
        chunk = make_twists([[0.1, 0, 0, 0, 0, 0]] * 50, stamp_ns=now, request_id=9)
        assert not buffer.update(chunk, now) and buffer.counts["after_contact"] == 1
        buffer.stop()  # as the node does that holds it: the way back is not broken off
        assert (run(buffer, 0.5, now)[:, 0] < 0).any()
        buffer.go_on()
        assert buffer.update(chunk, now + S)
        assert run(buffer, 0.3, now + S)[-1, 0] == pytest.approx(0.1)

    def test_a_second_contact_on_the_way_back_stops_it_and_leads_nowhere(self) -> None:
        buffer, _ = self.moving()
        buffer.react(goes_back=True)
        run(buffer, 0.4, START + 800 * MS)
        buffer.react(goes_back=True)
        after = run(buffer, 1.0, START + 1200 * MS)
        assert not after[-1].any() and (after[:, 0] <= 0).all(), "it never goes towards the first contact"

    def test_a_jump_of_the_clock_ends_the_way_back(self) -> None:
        buffer, _ = self.moving()
        buffer.react(goes_back=True)
        run(buffer, 0.4, START + 800 * MS)
        buffer.restart(START + 100 * S)
        after = run(buffer, 1.0, START + 100 * S)
        assert not after[-1].any() and np.abs(after).sum() < np.abs(after[0]).sum() * 10
        assert buffer.at_rest(START + 102 * S)
