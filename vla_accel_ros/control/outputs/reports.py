"""What a joint_trajectory_controller says of its execution, state by state."""

from __future__ import annotations

from typing import NamedTuple

# States that are closer in time are not compared.
_APART_NS = 5_000_000
_USUAL = 0.05
"""Greatest relative difference of a speed from 1 that still counts as 1."""


class Execution(NamedTuple):
    """One state of a controller, as it reports it.

    since_ns: how long its trajectory has been executed by the clock; passed_ns: how much of the trajectory
    has passed, which is slower if the speed is scaled. reference: commanded position, by joint name. moves:
    whether a joint is commanded to move.
    """

    stamp_ns: int
    since_ns: int
    passed_ns: int
    reference: dict[str, float]
    moves: bool


class ReportedState(NamedTuple):
    """began_ns: when the executed trajectory began, None if the controller does not say; stamp_ns: stamp of
    the state, in nanoseconds. reference: commanded position, by joint name. rests: whether it reports to be
    at rest. speed: execution speed, 1 as sent."""

    began_ns: int | None
    stamp_ns: int
    reference: dict[str, float]
    rests: bool = False
    speed: float = 1.0


class Reports:
    """The states of one controller, which releases fill differently.

    One that always reports time_from_start = 0 (those before Humble, the scaled one of Universal Robots) does
    not say when its trajectory began. Two states show that it rests, even if it reports no velocity. The
    execution speed follows from how much of a trajectory has passed or, if that is little, from three states:
    some controllers have their speed scaled, by a person's slider or a safety controller.
    """

    def __init__(self) -> None:
        self._before: tuple[ReportedState, Execution] | None = None
        self._tells_speed, self._odd = False, list[float]()

    def read(self, state: Execution) -> ReportedState:
        """Evaluate the next state."""
        stamp_ns, since_ns, passed_ns, reference, moves = state
        began_ns, previous = stamp_ns - since_ns if since_ns else None, self._before
        self._tells_speed |= moves
        report = ReportedState(began_ns, stamp_ns, reference)
        if previous is None:
            self._before = report, state
            return report
        before_report, before_state = previous
        # If began_ns differs each time, the controller repeats an old state.
        same = _same(began_ns, before_report.began_ns)
        rests = bool(reference) and not moves and same
        rests = rests and (self._tells_speed or reference == before_report.reference)
        is_later = not 0 <= stamp_ns - before_report.stamp_ns < _APART_NS
        if is_later and same and began_ns is not None and since_ns > before_state.since_ns:
            speed = (passed_ns - before_state.passed_ns) / (since_ns - before_state.since_ns)
            self._odd = [*self._odd[-1:], speed] if abs(speed - 1.0) > _USUAL else []
        speed = self._odd[1] if len(self._odd) > 1 else 1.0
        if moves and began_ns is not None and abs(since_ns - passed_ns) > max(_APART_NS, _USUAL * since_ns):
            speed = passed_ns / since_ns  # average so far
        report = ReportedState(began_ns, stamp_ns, reference, rests, speed)
        if is_later:
            self._before = report, state
        return report


def _same(began_ns: int | None, other_ns: int | None) -> bool:
    if began_ns is None or other_ns is None:
        return began_ns is other_ns
    return abs(began_ns - other_ns) < _APART_NS
