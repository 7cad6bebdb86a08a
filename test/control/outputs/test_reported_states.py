"""What controllers say of themselves, the two clocks of an output, and what a stream of commands does when
its node is deactivated. Time is given."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from world import Clock, StreamLine

from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import steady_ns
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.outputs.positions import PositionOutput
from vla_accel_ros.control.outputs.reports import Execution, Reports
from vla_accel_ros.control.trajectory import Trajectory

MS = 1_000_000
BEGAN = 1000 * 1_000_000_000


def make_state(
    passed_ms: float,
    at: float,
    velocity: float | None = None,
    feedback_ms: float | None = None,
    began: int = BEGAN,
) -> Execution:
    """Of two joints, so long after a trajectory began; feedback_ms: since then by its clock, where it is not
    the same."""
    since_ns, passed_ns = (round((passed_ms if ms is None else ms) * MS) for ms in (feedback_ms, None))
    return Execution(began + since_ns, since_ns, passed_ns, {"a": at, "b": -at}, bool(velocity))


def test_when_its_trajectory_began_and_where_it_is():
    report = Reports().read(make_state(40.0, 0.3, 1.0))
    assert report.began_ns == BEGAN and report.stamp_ns == BEGAN + 40 * MS
    assert report.reference == {"a": 0.3, "b": -0.3} and not report.rests and report.speed == 1.0


def test_one_that_always_tells_no_time_says_nothing_of_when_it_began():
    """Releases before Humble, and UR's scaled controller: the reference has the next point's time."""
    reports = Reports()
    for k in range(5):
        report = reports.read(make_state(100.0 * (k + 1), 0.1 * k, 1.0)._replace(since_ns=0))
        assert report.began_ns is None and report.speed == 1.0 and not report.rests


@pytest.mark.parametrize("velocity", [None, 0.0])
def test_one_that_tells_no_velocity_rests_where_two_states_are_the_same(velocity):
    reports = Reports()
    moved = [reports.read(make_state(20.0 * k, 0.1 * min(k, 3), velocity)).rests for k in range(1, 7)]
    assert moved == [False, False, False, True, True, True]


def test_one_that_has_told_velocities_rests_where_they_are_zero():
    reports = Reports()
    rests = [
        reports.read(make_state(20.0 * k, 0.1 * k, v)).rests for k, v in enumerate((1.0, 1.0, 0.0, 0.5), 1)
    ]
    assert rests == [False, False, True, False]


def test_one_state_of_a_rest_that_is_told_again_and_again_with_new_stamps_is_none():
    """A relay or a bridge that is stuck: the controller has moved on since."""
    reports = Reports()
    for k in range(1, 5):
        reports.read(make_state(20.0 * k, 0.1 * k, 1.0))
    assert not any(
        reports.read(make_state(500.0, 0.4, 0.0, began=BEGAN + 20 * k * MS)).rests for k in range(1, 9)
    )


@pytest.mark.parametrize("share", [0.5, 0.0, 1.3])
def test_how_fast_it_executes_shows_in_what_has_passed(share):
    reports = Reports()
    for k in range(1, 4):
        assert reports.read(make_state(10.0 * k, 0.1 * k, 1.0)).speed == 1.0
    states = [make_state(30.0 + share * 20.0 * k, 0.3, 1.0, 30.0 + 20.0 * k) for k in range(1, 5)]
    assert all(abs(reports.read(state).speed - 1.0) > 0.05 for state in states)
    anew = [make_state(10.0 * k, 0.3, 1.0, began=BEGAN + 500 * MS) for k in (1, 2)]
    assert [reports.read(state).speed for state in anew][-1] == 1.0, "another trajectory"


@pytest.mark.parametrize("share", [0.9, 0.0])
def test_how_fast_it_executes_shows_in_three_states_where_it_rests_or_is_a_little_slower(share):
    reports = Reports()
    states = [make_state(share * 20.0 * k, 0.3, 0.1 * (share > 0), 20.0 * k) for k in range(1, 5)]
    speeds = [reports.read(state).speed for state in states]
    assert speeds[:2] == [1.0, 1.0] and speeds[2:] == pytest.approx([share, share])
    # At rest again by its own clock, however much of its time was lost.
    for k in range(5, 9):
        speed = reports.read(make_state(share * 80.0 + 20.0 * (k - 4), 0.3, 0.0, 20.0 * k)).speed
    assert speed == 1.0


def test_states_that_come_at_500_hz_and_jitter_are_of_its_own_speed():
    reports = Reports()
    for k in range(1, 200):
        state = make_state(2.0 * k, 0.001 * k, 0.5)
        state = state._replace(stamp_ns=BEGAN + 2 * k * MS + (k % 7) * MS // 4)  # as Humble's
        assert reports.read(state).speed == 1.0


def test_what_is_not_filled_is_not_there():
    report = Reports().read(Execution(0, 0, 0, {}, False))
    assert report.reference == {} and report.began_ns is None and not report.rests
    reports = Reports()
    states = [make_state(ms, 0.1, 0.0)._replace(passed_ns=0, reference={}) for ms in (20.0, 40.0)]
    assert [reports.read(state).rests for state in states] == [False, False]


STEADY_NS = 7_000 * MS


def clock_at(now_ns: int, passed_ns: int, simulated: bool = False) -> SimpleNamespace:
    """Both clocks, passed_ns after ROS time was now_ns and the steady clock STEADY_NS."""
    return SimpleNamespace(
        now_ns=lambda: now_ns + passed_ns, monotonic_ns=lambda: STEADY_NS + passed_ns, simulated=simulated
    )


@pytest.mark.parametrize("passed_ns", [0, 3 * MS, 900 * MS])
def test_the_steady_time_is_that_of_the_stamp_though_the_process_was_preempted_since(passed_ns: int) -> None:
    assert steady_ns(clock_at(500 * MS, passed_ns), 500 * MS) == STEADY_NS


@pytest.mark.parametrize("set_ns", [-3_600_000 * MS, -MS, 1_100 * MS, 3_600_000 * MS])
def test_a_clock_that_was_set_since_moves_no_steady_time(set_ns: int) -> None:
    clock = clock_at(500 * MS, 0)
    clock.now_ns = lambda: 500 * MS + set_ns
    assert steady_ns(clock, 500 * MS) == STEADY_NS


def test_there_is_no_steady_time_in_simulated_time() -> None:
    assert steady_ns(clock_at(500 * MS, 0, simulated=True), 500 * MS) is None


def test_readings_between_which_the_process_was_preempted_are_made_again() -> None:
    steady = iter([STEADY_NS, STEADY_NS + 3 * MS, STEADY_NS + 3 * MS, STEADY_NS + 3 * MS])
    ros = iter([500 * MS, 503 * MS])
    clock = SimpleNamespace(now_ns=ros.__next__, monotonic_ns=steady.__next__, simulated=False)
    assert steady_ns(clock, 500 * MS) == STEADY_NS


S, NAMES = 1_000_000_000, ("a", "b")
ARM = Controller("arm/commands", NAMES, "forward_command", rate_hz=100.0)
SPEED = 0.5


def rests_at(position: float, at_ns: int) -> Trajectory:
    return Trajectory(NAMES, np.array([at_ns]), np.full((1, 2), position), np.zeros((1, 2)))


@pytest.mark.parametrize(("away", "acceleration"), [(0.02, 5.0), (0.3, 5.0), (1.8, 5.0), (1.8, 0.2)])
def test_a_stream_that_is_behind_its_path_has_come_to_rest_when_its_node_is_deactivated(away, acceleration):
    """As on the way to where the joints are: 1.8 rad take 3.7 s, or more for joints that brake in 2.5 s."""
    limits = JointLimits(*(np.full(2, value) for value in (-2.0, 2.0, SPEED, acceleration)))
    heard: list[np.ndarray] = []
    now = [1000 * S]
    clock = Clock(lambda: now[0], simulated=True)
    output = PositionOutput(ARM, limits, StreamLine(lambda command: heard.append(command.copy())), clock)
    robot = Outputs(NAMES, NAMES, [output], clock, 0.0)
    output.send(rests_at(0.0, now[0]), now[0])
    output.tick(now[0])
    output.send(rests_at(away, now[0] + 5 * S), now[0])
    for _ in range(round(SPEED / acceleration * 100)):
        now[0] += S // 100
        output.tick(now[0])
    now[0] += S // 100
    for pause_s in robot.close():
        now[0] += round(pause_s * S)
    velocity = np.diff([*heard, heard[-1]], axis=0) * ARM.rate_hz
    assert np.abs(velocity).max() > 0.1
    assert np.abs(np.diff(velocity, axis=0)).max() * 100 <= acceleration * 1.01


def test_of_readings_between_which_the_process_was_preempted_each_time_the_closest_counts() -> None:
    """The clocks pass as one; every reading of ROS time takes longer, but for the third."""
    now, took_ms = [0], iter([9, 8, 1, 8, 9])

    def read() -> int:
        now[0] += next(took_ms) * MS
        return 500 * MS + now[0]

    clock = SimpleNamespace(now_ns=read, monotonic_ns=lambda: STEADY_NS + now[0], simulated=False)
    assert steady_ns(clock, 500 * MS) == STEADY_NS
